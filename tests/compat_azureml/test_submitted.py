"""Submitted runs: the program of a user, its status, its output, its details."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from azureml.core import Environment, Experiment, Run, ScriptRunConfig, Workspace
from azureml.core.compute import AmlCompute, ComputeTarget
from azureml.core.runconfig import MpiConfiguration, PyTorchConfiguration, TensorflowConfiguration
from azureml.core.script_run import ScriptRun
from azureml.exceptions import (
    ActivityFailedException,
    ExperimentExecutionException,
    SnapshotException,
    UserErrorException,
)

import farandole
from farandole.job.runs.home import RunsHome
from farandole.jobs import attempts
from tests.compat_azureml.tools import python
from tests.kits.messages import mentioning, mentions

# A script as users write it: it runs by hand, and as a run.
TRAIN = """
import argparse, json, os
from azureml.core import Run

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
epochs = parser.parse_args().epochs
run = Run.get_context()
rank = os.environ.get("OMPI_COMM_WORLD_RANK", "0")
for epoch in range(epochs):
    run.log("loss", 1 / (epoch + 1))
os.makedirs("outputs", exist_ok=True)
os.makedirs("logs", exist_ok=True)
with open(f"outputs/model-{rank}.txt", "w") as file:
    file.write("weights")
with open(f"logs/rank-{rank}.txt", "w") as file:
    file.write("log")
run.tag("trained", "yes")
names = ("AZ", "OMPI", "MASTER", "NODE_RANK", "NCCL_SOCKET", "EXAMPLE")
print("variables", json.dumps({name: os.environ[name] for name in os.environ if name.startswith(names)}))
print("directory", os.getcwd())
print("context", run.id)
"""
CONDA = """
name: project_environment
dependencies:
- python=3.6.2
- pip:
  - horovod==0.19.5
  - azureml-core==1.25.0
  - no-such-package==2.2.0
"""
IMAGE = "mcr.microsoft.com/azureml/openmpi3.1.2-cuda10.1-cudnn7-ubuntu18.04"
KEYS = [
    *("script", "command", "useAbsolutePath", "arguments", "sourceDirectoryDataStore", "framework"),
    *("communicator", "target", "dataReferences", "data", "outputData", "jobName", "nodeCount"),
    *("maxRunDurationSeconds", "priority", "credentialPassthrough", "identity", "environment"),
    *("history", "tensorflow", "mpi", "pyTorch", "docker", "environmentVariables", "spark"),
    *("applicationEndpoints", "parallelTask", "amlCompute", "aiSuperComputer", "hdi"),
    *("containerInstance", "exposedPorts", "cmk8sCompute", "commandReturnCodeConfig"),
]


class Done(NamedTuple):
    run: Any
    first: str  # the status after the submission
    printed: str
    noted: str
    details: dict[str, Any]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "train.py").write_text(TRAIN)
    (folder / "conda.yml").write_text(CONDA)
    (folder / "stop.py").write_text("import time; print('started', flush=True); time.sleep(100)")
    (folder / "bad.py").write_text("raise RuntimeError('out of data')")
    return folder


@pytest.fixture(scope="module")
def experiment(home: RunsHome) -> Experiment:
    return Experiment(Workspace("s", "g", "here"), "effusion-detector")


@pytest.fixture(scope="module")
def done(experiment: Experiment, project: Path) -> Done:
    """Return a run of two nodes that has ended."""
    environment = Environment.from_conda_specification("image", str(project / "conda.yml"))
    environment.docker.base_image = IMAGE
    configuration = AmlCompute.provisioning_configuration(vm_size="STANDARD_NC6", max_nodes=2)
    target = ComputeTarget.create(experiment.workspace, "gpus", configuration)
    config = ScriptRunConfig(
        str(project),
        "train.py",
        arguments=["--epochs", 3],
        compute_target=target,
        environment=environment,
        distributed_job_config=MpiConfiguration(node_count=2),
    )
    with pytest.MonkeyPatch.context() as patch, Heard(patch) as heard:
        run = experiment.submit(config, tags={"purpose": "test"})
        first = run.get_status()
        details = run.wait_for_completion(show_output=True)
    return Done(run, first, heard.out(), heard.err(), details)


class Heard:
    """The text on stdout and stderr, for fixtures of a module, which cannot use ``capsys``."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        import io

        self._patch = patch
        self._out, self._err = io.StringIO(), io.StringIO()

    def __enter__(self) -> Heard:
        self._patch.setattr("sys.stdout", self._out)
        self._patch.setattr("sys.stderr", self._err)
        return self

    def __exit__(self, *_: Any) -> None:
        self._patch.undo()

    def out(self) -> str:
        return self._out.getvalue()

    def err(self) -> str:
        return self._err.getvalue()


def line(done: Done, rank: int, word: str) -> str:
    log = farandole.Run.get(done.run.id).logs(rank)
    return next(each for each in log.splitlines() if each.startswith(word))[len(word) + 1 :]


def test_run_has_the_sdks_id_and_states(done: Done) -> None:
    assert isinstance(done.run, ScriptRun)
    assert re.fullmatch(r"effusion-detector_\d{10}_[0-9a-f]{8}", done.run.id)
    assert done.first in ("Queued", "Preparing", "Starting", "Running")
    assert done.run.status == "Completed"
    assert repr(done.run) == (
        f"Run(Experiment: effusion-detector,\nId: {done.run.id},\nType: azureml.scriptrun,\n"
        "Status: Completed)"
    )
    assert done.run.get_tags() == {"purpose": "test", "trained": "yes"}


def test_output_follows_the_first_rank(done: Done) -> None:
    head, _, rest = done.printed.partition("\n\n")
    assert head.startswith(f"RunId: {done.run.id}\nWeb View: http://127.0.0.1:")
    title = "user_logs/std_log_process_0.txt"
    assert rest.startswith(f"Streaming {title}\n{'=' * (len(title) + 10)}\n\nvariables")
    assert rest.endswith(f"\nWeb View: {done.run.get_portal_url()}\n\n")
    assert f"\nExecution Summary\n=================\nRunId: {done.run.id}\n" in rest
    assert "token" not in done.printed


def test_notices_are_one_line_each(done: Done) -> None:
    lines = done.noted.splitlines()
    assert mentions(lines, "conda.yml", "python==3.6.2.*", "no-such-package==2.2.0")
    assert mentions(lines, IMAGE)
    assert "azureml-core" not in done.noted
    assert len(lines) <= 3  # the third one only where there are fewer cores than ranks


def test_ranks_see_the_variables_of_azure(done: Done) -> None:
    found = [json.loads(line(done, rank, "variables")) for rank in (0, 1)]
    host, port = found[0]["MASTER_ADDR"], found[0]["MASTER_PORT"]
    for rank, variables in enumerate(found):
        assert variables["OMPI_COMM_WORLD_RANK"] == str(rank) == variables["NODE_RANK"]
        assert variables["OMPI_COMM_WORLD_SIZE"] == "2"
        assert variables["OMPI_COMM_WORLD_LOCAL_SIZE"] == "1"
        assert variables["AZ_BATCH_MASTER_NODE"] == f"{host}:{port}"
        assert variables["AZ_BATCHAI_MPI_MASTER_NODE"] == host
        assert variables["NCCL_SOCKET_IFNAME"]
        assert variables["AZUREML_RUN_ID"] == done.run.id
        assert variables["AZUREML_ARM_SUBSCRIPTION"] == "s"
        assert variables["AZUREML_ARM_RESOURCEGROUP"] == "g"
        assert variables["AZUREML_ARM_WORKSPACE_NAME"] == "here"
        assert variables["AZUREML_ARM_PROJECT_NAME"] == "effusion-detector"
        assert variables["AZUREML_EXPERIMENT_ID"] == done.run.experiment.id
        assert variables["AZUREML_OUTPUT_DIRECTORY"].endswith("outputs")
        assert variables["EXAMPLE_ENV_VAR"] == "EXAMPLE_VALUE"
    assert line(done, 0, "directory") != line(done, 1, "directory")
    assert line(done, 1, "context") == done.run.id


def test_files_and_metrics_of_all_ranks(done: Done, tmp_path: Path) -> None:
    assert done.run.get_file_names() == [
        *("logs/rank-0.txt", "logs/rank-1.txt", "outputs/model-0.txt", "outputs/model-1.txt"),
        *("user_logs/std_log_process_0.txt", "user_logs/std_log_process_1.txt"),
    ]
    assert sorted(done.run.get_metrics()["loss"]) == [1 / 3, 1 / 3, 0.5, 0.5, 1.0, 1.0]
    copies = done.run.get_all_logs(str(tmp_path))
    assert [Path(copy).name for copy in copies] == [
        *("std_log_process_0.txt", "std_log_process_1.txt", "rank-0.txt", "rank-1.txt")
    ]
    texts = done.run.get_details_with_logs()["logFiles"]
    assert texts["logs/rank-1.txt"] == "log"


def test_details_have_all_keys(done: Done) -> None:
    details = done.details
    definition = details["runDefinition"]
    assert (details["runId"], details["target"], details["status"]) == (
        done.run.id,
        "gpus",
        "Completed",
    )
    assert details["properties"]["_azureml.ComputeTargetType"] == "amlcompute"
    assert set(KEYS) <= set(definition)
    assert definition["arguments"] == ["--epochs", "3"]
    assert (definition["script"], definition["command"]) == ("train.py", "")
    assert (definition["communicator"], definition["nodeCount"]) == ("Mpi", 2)
    assert definition["maxRunDurationSeconds"] == 2592000
    environment = definition["environment"]
    assert re.fullmatch(r"Autosave_.+Z_[0-9a-f]{8}", environment["version"])
    assert re.fullmatch(r"azureml_[0-9a-f]{32}", environment["python"]["condaDependencies"]["name"])
    assert environment["docker"]["baseImage"] == IMAGE
    assert environment["docker"]["baseImageRegistry"]["password"] is None
    name, url = next(iter(details["logFiles"].items()))
    assert name == "user_logs/std_log_process_0.txt"
    assert url.startswith("http://127.0.0.1:")
    assert url.endswith("file?path=user_logs%2Fstd_log_process_0.txt&raw=1")
    assert RunsHome().path not in json.dumps(details)
    assert (details["inputDatasets"], details["outputDatasets"]) == ([], [])
    assert done.run.get_environment().python.conda_dependencies.get_python_version() == "3.6.2"


def test_same_script_runs_by_hand(done: Done, project: Path, tmp_path: Path) -> None:
    ended = python(project / "train.py", "--epochs", "1", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("Attempted to log scalar metric loss:\n1.0\n")


def test_failure_raises_with_the_error(experiment: Experiment, project: Path) -> None:
    run = experiment.submit(ScriptRunConfig(str(project), "bad.py"))
    with pytest.raises(ActivityFailedException, match=mentioning("out of data")) as raised:
        run.wait_for_completion()
    error = json.loads(raised.value.error_details)["error"]
    assert error["code"] == "UserError"
    assert "out of data" in raised.value.message
    details = run.wait_for_completion(raise_on_error=False)
    assert details["status"] == "Failed"
    assert details["error"]["error"]["message"] == error["message"]


def test_cancellation_is_not_an_error(experiment: Experiment, project: Path) -> None:
    run = experiment.submit(ScriptRunConfig(str(project), "stop.py"))
    next(farandole.Run.get(run.id).follow(0))
    run.cancel()
    assert run.get_status() in ("CancelRequested", "Finalizing", "Canceled")
    assert run.wait_for_completion()["status"] == "Canceled"


def test_run_can_be_failed_from_outside(experiment: Experiment, project: Path) -> None:
    run = experiment.submit(ScriptRunConfig(str(project), "stop.py"))
    next(farandole.Run.get(run.id).follow(0))
    run.fail("too slow")
    assert run.get_status() == "Failed"
    assert run.get_details()["error"]["error"]["message"] == "too slow"
    runner = attempts.claimant(run._folder, 1)
    deadline = time.monotonic() + 60
    while runner.alive() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not runner.alive()
    assert run.get_status() == "Failed"
    queued = experiment.submit(ScriptRunConfig(str(project), "stop.py"))
    queued.fail()
    assert queued.wait_for_completion(raise_on_error=False)["status"] == "Failed"


def test_interruption_of_the_wait_keeps_the_run(
    experiment: Experiment, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = experiment.submit(ScriptRunConfig(str(project), "stop.py"))

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("farandole.jobs.follow.wait", interrupt)
        with pytest.raises(ExperimentExecutionException, match=mentioning(run.id)):
            run.wait_for_completion()
    assert run.get_status() not in ("Failed", "Canceled")
    run.cancel()
    run.wait_for_completion()


def test_command_is_run_by_a_shell(experiment: Experiment, project: Path) -> None:
    words = ["echo", "node", "$NODE_RANK", "of", "$NODE_COUNT", "at", "$MASTER_ADDR:$MASTER_PORT"]
    words += ["${#API_KEY}"]
    job = PyTorchConfiguration(node_count=2)
    config = ScriptRunConfig(str(project), command=words, distributed_job_config=job)
    config.run_config.environment_variables["API_KEY"] = "hidden"
    python = config.run_config.environment.python
    python.user_managed_dependencies = True
    python.conda_dependencies.set_pip_option("--index-url https://me:hidden@host/simple")
    parent = experiment.start_logging(snapshot_directory=None)
    run = parent.submit_child(config)
    details = run.wait_for_completion()
    log = farandole.Run.get(run.id).logs(1)
    assert re.fullmatch(r"node 1 of 2 at [\w.]+:\d+ 6\n", log)
    files = [path for path in Path(farandole.Run.get(run.id).folder).rglob("*") if path.is_file()]
    assert not [path for path in files if b"hidden" in path.read_bytes()]
    assert details["runDefinition"]["command"] == " ".join(words)
    assert details["runDefinition"]["framework"] == "PyTorch"
    assert [each.id for each in parent.get_children()] == [run.id]
    parent.complete()


def test_tensorflow_and_fail_in_one_program(experiment: Experiment, project: Path) -> None:
    (project / "tf.py").write_text(
        "import os\nfrom azureml.core import Run\nprint(os.environ['TF_CONFIG'])\n"
        "Run.get_context().fail('no convergence')\n"
    )
    job = TensorflowConfiguration(worker_count=1, parameter_server_count=1)
    config = ScriptRunConfig(str(project), "tf.py", distributed_job_config=job)
    run = experiment.submit(config)
    details = run.wait_for_completion(raise_on_error=False)
    assert details["status"] == "Failed"
    log = farandole.Run.get(run.id).logs(0)
    assert set(json.loads(log.splitlines()[0])["cluster"]) == {"worker", "ps"}
    assert mentions(log, "no convergence")


def test_runs_of_the_command_can_be_opened(experiment: Experiment, project: Path) -> None:
    request = farandole.ScriptRun(str(project), "train.py", ["--epochs", 1])
    own = farandole.Experiment("effusion-detector").submit(request).wait()
    run = Run.get(experiment.workspace, own.id)
    definition = run.get_details()["runDefinition"]
    assert set(KEYS) <= set(definition)
    assert (definition["script"], definition["arguments"]) == ("train.py", ["--epochs", "1"])


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ({"script": "absent.py"}, ("absent.py",)),
        ({"script": "train.py", "command": "ls"}, ("script=", "command=")),
        ({"script": "train.py", "compute_target": "nowhere"}, ("nowhere",)),
        (
            {
                "script": "train.py",
                "distributed_job_config": PyTorchConfiguration(process_count=3, node_count=2),
            },
            ("process_count=3", "node_count=2"),
        ),
        (
            {
                "script": "train.py",
                "distributed_job_config": MpiConfiguration(process_count_per_node=0),
            },
            ("process_count_per_node=0",),
        ),
    ],
)
def test_mistakes_are_named(
    experiment: Experiment, project: Path, arguments: dict[str, Any], values: tuple[str, ...]
) -> None:
    with pytest.raises(UserErrorException, match=mentioning(*values)):
        experiment.submit(ScriptRunConfig(str(project), **arguments))


def test_missing_source_is_a_snapshot_error(experiment: Experiment, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    for name in ("project", "train.py"):  # a folder that does not exist, and a file
        source = str(tmp_path / name)
        with pytest.raises(SnapshotException, match=mentioning(repr(source), os.getcwd())):
            experiment.submit(ScriptRunConfig(source, "train.py"))


def test_large_source_is_a_snapshot_error(experiment: Experiment, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    for number in range(2000):
        (tmp_path / f"{number}.txt").touch()
    with pytest.raises(SnapshotException, match=mentioning("2001 files", "2000 files")):
        experiment.submit(ScriptRunConfig(str(tmp_path), "train.py"))


def test_runs_of_farandole_run_end_with_their_program(home: RunsHome, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from azureml.core import Run\nrun = Run.get_context()\nrun.log('loss', 1)\n"
        "with run.child_run('fold') as child:\n    child.log('loss', 2)\n"
        "run.complete()\nprint(run.id, run.get_status(), run.experiment.name)\n"
    )
    command = ("-m", "farandole.cli", "run", "-np", "1", "--track")
    done = python(*command, sys.executable, "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = re.search(r"(train_\w+) Running train", done.stdout)
    assert found, done.stdout
    run = Run.get(Workspace(), found[1])
    assert (run.get_status(), run.type) == ("Completed", "azureml.scriptrun")
    assert run.get_metrics() == {"loss": 1.0}
    assert [(each.name, each.get_metrics()) for each in run.get_children()] == [
        ("fold", {"loss": 2.0})
    ]


def test_rank_on_a_host_without_the_runs_files_records(tmp_path: Path) -> None:
    """On ssh hosts without a shared file system, a run's folder has only working directories."""
    program = (
        "from azureml.core import Run\n"
        "run = Run.get_context()\n"
        "run.log('loss', 0.5)\n"
        "run.tag('seen')\n"
        "run.upload_file('outputs/a.txt', 'a.txt')\n"
        "print(run.id, run.experiment.name, run.experiment.workspace.name)\n"
    )
    folder = tmp_path / "e_1_ab"
    folder.mkdir()
    (tmp_path / "a.txt").touch()
    done = python(
        *("-c", program),
        cwd=tmp_path,
        FARANDOLE_HOME=str(tmp_path / "home"),
        FARANDOLE_RUN_DIR=str(folder),
        AZUREML_ARM_SUBSCRIPTION="s",
        AZUREML_ARM_RESOURCEGROUP="g",
        AZUREML_ARM_WORKSPACE_NAME="there",
        AZUREML_ARM_PROJECT_NAME="detector",
    )
    assert done.stdout == "e_1_ab detector there\n", done.stderr
    assert '"loss":0.5' in (folder / "metrics" / "rank-0.jsonl").read_text().replace(" ", "")
    assert (folder / "outputs" / "a.txt").exists()
