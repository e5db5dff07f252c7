"""Environments, conda files and run configurations."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from azureml.core import (
    ContainerRegistry,
    Environment,
    RunConfiguration,
    ScriptRunConfig,
    Workspace,
)
from azureml.core.conda_dependencies import CondaDependencies
from azureml.core.runconfig import (
    DockerConfiguration,
    MpiConfiguration,
    PyTorchConfiguration,
    TensorflowConfiguration,
)
from azureml.exceptions import UserErrorException

from farandole.job.runs.home import RunsHome
from tests.kits.messages import mentioning

CONDA = """
name: seed
channels:
- conda-forge
dependencies:
- python=3.6.2
- pytorch=1.6.0
- pip:
  - --extra-index-url https://example.org/simple
  - tensorflow-gpu==2.2.0
  - azureml-core==1.25.0
"""


@pytest.fixture
def workspace(home: RunsHome, request: pytest.FixtureRequest) -> Workspace:
    return Workspace(workspace_name=request.function.__name__)


@pytest.fixture
def conda_file(tmp_path: Path) -> str:
    path = tmp_path / "conda.yml"
    path.write_text(CONDA)
    return str(path)


def test_conda_file_is_read_and_written(conda_file: str, tmp_path: Path) -> None:
    found = CondaDependencies(conda_file)
    assert list(found.conda_packages) == ["python=3.6.2", "pytorch=1.6.0"]
    assert list(found.pip_packages) == ["tensorflow-gpu==2.2.0", "azureml-core==1.25.0"]
    assert list(found.pip_options) == ["--extra-index-url https://example.org/simple"]
    assert list(found.conda_channels) == ["conda-forge"]
    assert found.get_python_version() == "3.6.2"
    assert found.save_to_file(str(tmp_path), "copy.yml") == "copy.yml"
    assert CondaDependencies(str(tmp_path / "copy.yml")).as_dict() == found.as_dict()
    (tmp_path / "bad.yml").write_text("- a")
    for wrong in ("bad.yml", "absent.yml"):
        with pytest.raises(UserErrorException, match=mentioning(wrong)):
            CondaDependencies(str(tmp_path / wrong))


def test_packages_are_added_and_removed() -> None:
    made = CondaDependencies.create(
        pip_packages=["numpy"], conda_packages=["scipy=1.9"], python_version="3.11"
    )
    assert made.as_dict()["dependencies"] == ["python=3.11", "scipy=1.9", {"pip": ["numpy"]}]
    made.add_pip_package("NumPy==2.0")
    made.add_conda_package("scipy=1.10")
    made.add_channel("nvidia")
    made.set_pip_option("--index-url https://a")
    made.set_pip_option("--index-url https://b")
    made.set_python_version("3.12")
    assert made.as_dict()["dependencies"] == [
        *("python=3.12", "scipy=1.10"),
        {"pip": ["--index-url https://b", "NumPy==2.0"]},
    ]
    made.remove_pip_package("numpy")
    made.remove_conda_package("scipy")
    assert (list(made.pip_packages), list(made.conda_packages)) == ([], ["python=3.12"])
    assert "nvidia" in made.serialize_to_string()


def test_environments_from_files_and_images(conda_file: str, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("# comment\nnumpy==1.26\n\nscipy\n")
    pip = Environment.from_pip_requirements("pip", str(tmp_path / "requirements.txt"))
    assert list(pip.python.conda_dependencies.pip_packages) == ["numpy==1.26", "scipy"]
    registry = ContainerRegistry("reg.io", "me", "secret")
    image = Environment.from_docker_image("image", "reg.io/a:1", registry, conda_file)
    assert image.docker.base_image == "reg.io/a:1"
    assert image.python.conda_dependencies.get_python_version() == "3.6.2"
    assert "secret" not in repr(image)
    docker = Environment.from_dockerfile("docker", "FROM scratch")
    assert docker.docker.base_dockerfile == "FROM scratch"
    assert docker.environment_variables == {"EXAMPLE_ENV_VAR": "EXAMPLE_VALUE"}
    with pytest.raises(UserErrorException, match=mentioning("conda_specification")):
        Environment.from_docker_image("x", "y", None, conda_file, "requirements.txt")


def test_old_docker_switch_prints_the_sdks_text(capsys: pytest.CaptureFixture[str]) -> None:
    environment = Environment("old")
    environment.docker.enabled = True
    assert capsys.readouterr().err == (
        "'enabled' is deprecated. Please use the azureml.core.runconfig.DockerConfiguration object"
        " with the 'use_docker' param instead.\n"
    )
    assert environment.docker.enabled is True


def test_registered_environments_have_versions(workspace: Workspace, conda_file: str) -> None:
    made = Environment.from_conda_specification("seed", conda_file)
    assert made.register(workspace).version == "1"
    assert made.register(workspace).version == "1"
    made.environment_variables["NEW"] = "1"
    assert made.register(workspace).version == "2"
    assert Environment.get(workspace, "seed").environment_variables["NEW"] == "1"
    first = Environment.get(workspace, "seed", version="1")
    assert "NEW" not in first.environment_variables
    assert list(workspace.environments) == ["seed"]
    assert made.clone("other").name == "other"
    for name, version in (("absent", None), ("seed", "7")):
        with pytest.raises(UserErrorException, match=mentioning(repr(name), "seed")):
            Environment.get(workspace, name, version)
    assert Environment.get(workspace, "azureml-sklearn-1.5").name == "azureml-sklearn-1.5"
    for wrong in ("", "..", "a/b"):
        with pytest.raises(UserErrorException, match=mentioning(repr(wrong))):
            Environment(wrong)
    curated = Environment.get(workspace, "AzureML-pytorch-1.10-ubuntu18.04-py38-cuda11-gpu")
    assert curated.python.conda_dependencies is None


def test_environment_is_kept_in_a_folder(conda_file: str, tmp_path: Path) -> None:
    made = Environment.from_conda_specification("seed", conda_file)
    made.save_to_directory(str(tmp_path / "kept"))
    assert Environment.load_from_directory(str(tmp_path / "kept")).as_dict() == made.as_dict()
    with pytest.raises(UserErrorException, match=mentioning("overwrite=True")):
        made.save_to_directory(str(tmp_path / "kept"))
    with pytest.raises(UserErrorException, match=mentioning(str(tmp_path))):
        Environment.load_from_directory(str(tmp_path))


def test_run_configuration_is_kept_in_a_file(conda_file: str, tmp_path: Path) -> None:
    config = RunConfiguration("train.py", ["--n", 1], framework="PyTorch", communicator="Nccl")
    config.target, config.node_count = "gpus", 2
    config.pytorch = PyTorchConfiguration("Gloo", process_count=4)
    config.environment = Environment.from_conda_specification("seed", conda_file)
    config.environment_variables["A"] = "1"
    path = config.save(str(tmp_path), "own")
    assert path == str(tmp_path / ".azureml" / "own.runconfig")
    again = RunConfiguration.load(str(tmp_path), "own")
    assert (again.script, again.arguments, again.target) == ("train.py", ["--n", "1"], "gpus")
    assert (again.framework, again.communicator, again.node_count) == ("PyTorch", "Nccl", 2)
    assert (again.pytorch.process_count, again.pytorch.communication_backend) == (4, "gloo")
    assert again.environment.as_dict() == config.environment.as_dict()
    assert again.environment_variables == {"A": "1"}
    with pytest.raises(UserErrorException, match=mentioning("absent.runconfig")):
        RunConfiguration.load(str(tmp_path), "absent")


def test_run_configuration_of_the_sdk_is_read(conda_file: str, tmp_path: Path) -> None:
    folder = tmp_path / ".azureml"
    folder.mkdir()
    (folder / "train.runconfig").write_text(
        """
script: train.py
arguments: []
target: cpu-cluster
framework: Python
communicator: Mpi
maxRunDurationSeconds:
nodeCount: 2
environment:
  name:
  version:
  environmentVariables:
    A: b
  python:
    userManagedDependencies: false
    interpreterPath: python
    condaDependenciesFile: conda.yml
    baseCondaEnvironment:
  docker:
    enabled: true
    baseImage: image:1
    arguments: []
history:
  outputCollection: true
mpi:
  processCountPerNode: 3
pytorch:
  communicationBackend: nccl
  processCount:
tensorflow:
"""
    )
    found = RunConfiguration.load(str(tmp_path), "train")
    assert (found.script, found.target, found.node_count) == ("train.py", "cpu-cluster", 2)
    assert found.mpi.process_count_per_node == 3
    assert found.environment.python.conda_dependencies.get_python_version() == "3.6.2"
    assert found.environment.environment_variables == {"A": "b"}
    assert found.environment.docker.base_image == "image:1"


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (None, (1, 1, 0)),
        (MpiConfiguration(2, 3), (3, 2, 0)),
        (PyTorchConfiguration(process_count=4, node_count=2), (2, 2, 0)),
        (PyTorchConfiguration(node_count=2), (2, 1, 0)),
        (TensorflowConfiguration(worker_count=3, parameter_server_count=1), (4, 1, 3)),
    ],
)
def test_jobs_become_nodes_and_ranks(job: Any, expected: tuple[int, ...]) -> None:
    from azureml._farandole.layout import layout_of

    config = ScriptRunConfig(".", "train.py", distributed_job_config=job)
    assert layout_of(config.run_config) == expected


def test_run_config_gives_the_missing_arguments() -> None:
    given = RunConfiguration("train.py", ["--a"])
    given.mpi, given.communicator, given.node_count = MpiConfiguration(2), "OpenMpi", 2
    config = ScriptRunConfig(".", run_config=given, docker_runtime_config=DockerConfiguration(True))
    assert (config.script, config.arguments, config.run_config.target) == (
        *("train.py", ["--a"], "local"),
    )
    assert config.run_config.docker.use_docker
    assert given.docker is None
    with pytest.raises(UserErrorException, match=mentioning("MpiConfiguration", "int")):
        ScriptRunConfig(".", "train.py", distributed_job_config=4)


def test_packages_are_built_on_request_only(workspace: Workspace, conda_file: str) -> None:
    from azureml._farandole.environments import spec_of

    environment = Environment.from_conda_specification("seed", conda_file)
    environment.docker.base_image = "image:1"
    spec = spec_of(environment)
    assert (spec.policy, spec.image, spec.python) == ("current", "image:1", "")
    assert spec.content["name"] == "conda.yml"
    assert spec.content["requirements"] == ("torch==1.6.0.*", "tensorflow-gpu==2.2.0")
    environment.build(workspace).wait_for_completion(show_output=True)
    assert (spec_of(environment).policy, spec_of(environment).image) == ("build", "")
    environment.python.user_managed_dependencies = True
    environment.python.interpreter_path = sys.executable
    spec = spec_of(environment)
    assert (spec.policy, spec.python, spec.content) == ("current", sys.executable, {})
    assert spec_of(Environment("default")).content == {}
