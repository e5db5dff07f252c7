"""Python environments of runs."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import time
import uuid
from collections.abc import Mapping
from typing import Any

from azureml._farandole.texts import say, warn
from azureml.core.conda_dependencies import CondaDependencies as CondaDependencies
from azureml.core.container_registry import ContainerRegistry
from azureml.core.workspace import Workspace
from azureml.exceptions import UserErrorException
from farandole.job.runs.folder import read_json, write_json

DEFAULT_CPU_IMAGE = "mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04"
DEFAULT_GPU_IMAGE = "mcr.microsoft.com/azureml/openmpi4.1.0-cuda11.8-cudnn8-ubuntu22.04"
_CURATED = "azureml-"
_FILE = "azureml_environment.json"


class PythonSection:
    """The Python part of an environment.

    With ``user_managed_dependencies``, runs use the interpreter ``interpreter_path``.
    """

    def __init__(self) -> None:
        self.interpreter_path = "python"
        self.user_managed_dependencies = False
        self.conda_dependencies: CondaDependencies | None = CondaDependencies()
        self.base_conda_environment: str | None = None
        self.conda_dependencies_file: str | None = None


class DockerSection:
    """The container of an environment. Runs are processes of their host and use none."""

    def __init__(self) -> None:
        self._enabled = False
        self._gpu_support = True
        self.base_image: str | None = None
        self.base_dockerfile: str | None = None
        self.base_image_registry = ContainerRegistry()
        self.platform: dict[str, str] = {"os": "Linux", "architecture": "amd64"}
        self.arguments: list[str] = []
        self.shared_volumes = True
        self.shm_size: str | None = None

    @property
    def enabled(self) -> bool:
        return self._enabled

    @enabled.setter
    def enabled(self, value: bool) -> None:
        warn(
            "'enabled' is deprecated. Please use the azureml.core.runconfig.DockerConfiguration"
            " object with the 'use_docker' param instead."
        )
        self._enabled = value

    @property
    def gpu_support(self) -> bool:
        return self._gpu_support

    @gpu_support.setter
    def gpu_support(self, value: bool) -> None:
        warn(
            "'gpu_support' is no longer necessary; Azure ML now automatically detects and uses"
            " nvidia docker extension when available."
        )
        self._gpu_support = value


class BuiltEnvironment:
    """The result of ``Environment.build``."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.status = "Succeeded"

    def wait_for_completion(self, show_output: bool = True, **kwargs: Any) -> BuiltEnvironment:
        """Return immediately: the next run builds the environment."""
        return self


class Environment:
    """The Python environment of a run.

    By default a run uses the interpreter that submits it, and one line names the packages that
    differ. After ``build(workspace)``, runs use an environment that is built from the packages.
    """

    def __init__(self, name: str, **kwargs: Any) -> None:
        """Create an environment. Raises UserErrorException if ``name`` is not the name of a
        file.
        """
        if not name or "/" in str(name) or str(name).startswith("."):
            raise UserErrorException(f"the environment's name {name!r} must be a file's name")
        self.name = name
        self.version: str | None = None
        self.python = PythonSection()
        self.docker = DockerSection()
        self.spark = None
        self.r = None
        self.databricks = None
        self.inferencing_stack_version: str | None = None
        self.environment_variables: dict[str, str] = {"EXAMPLE_ENV_VAR": "EXAMPLE_VALUE"}
        self._policy = "current"

    # --- constructors

    @staticmethod
    def from_conda_specification(name: str, file_path: str) -> Environment:
        """Return the environment of a conda file. Raises UserErrorException for any other file."""
        made = Environment(name)
        made.python.conda_dependencies = CondaDependencies(file_path)
        made.python.conda_dependencies_file = os.path.basename(file_path)
        return made

    @staticmethod
    def from_pip_requirements(
        name: str, file_path: str, pip_version: str | None = None
    ) -> Environment:
        """Return the environment of a requirements file, with the version ``pip_version`` of pip.

        Raises UserErrorException if the file cannot be read.
        """
        made = Environment(name)
        dependencies = CondaDependencies.create(pip_packages=_requirements(file_path))
        if pip_version:
            dependencies.add_conda_package(f"pip={pip_version}")
        made.python.conda_dependencies = dependencies
        made.python.conda_dependencies_file = os.path.basename(file_path)
        return made

    @staticmethod
    def from_docker_image(
        name: str,
        image: str,
        container_registry: ContainerRegistry | None = None,
        conda_specification: str | None = None,
        pip_requirements: str | None = None,
    ) -> Environment:
        """Return an environment with an image, which runs do not use."""
        made = _with_packages(name, conda_specification, pip_requirements)
        made.docker.base_image = image
        made.docker.base_image_registry = container_registry or ContainerRegistry()
        return made

    @staticmethod
    def from_dockerfile(
        name: str,
        dockerfile: str,
        conda_specification: str | None = None,
        pip_requirements: str | None = None,
    ) -> Environment:
        """Return an environment with a Dockerfile, given as text or path; runs do not use it."""
        made = _with_packages(name, conda_specification, pip_requirements)
        if os.path.isfile(dockerfile):
            with open(dockerfile, encoding="utf-8") as file:
                dockerfile = file.read()
        made.docker.base_dockerfile = dockerfile
        return made

    @staticmethod
    def from_existing_conda_environment(
        name: str, conda_environment_name: str
    ) -> Environment | None:
        """Return an environment with the interpreter of a conda environment on this machine.

        Raises UserErrorException if conda has no environment ``conda_environment_name``.
        """
        for root in (os.environ.get("CONDA_PREFIX", ""), *_conda_roots()):
            python = os.path.join(root, "envs", conda_environment_name, "bin", "python")
            if os.path.basename(root) == conda_environment_name:
                python = os.path.join(root, "bin", "python")
            if os.path.isfile(python):
                made = Environment(name)
                made.python.user_managed_dependencies = True
                made.python.interpreter_path = python
                return made
        raise UserErrorException(
            f"there is no environment of conda {conda_environment_name!r} here"
        )

    # --- the workspace's environments

    def register(self, workspace: Workspace) -> Environment:
        """Store the environment in a workspace and return it with its version.

        The first version of a name is 1. An unchanged environment keeps its version.
        """
        versions = _versions(workspace, self.name)
        if versions:
            last = _stored(workspace, self.name, versions[-1])
            if _digest(last) == _digest(self.as_dict()):
                return Environment._from_dict(last)
        number = (versions[-1] if versions else 0) + 1
        made = self.clone(self.name)
        made.version = str(number)
        folder = os.path.join(workspace._storage("environments"), self.name)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        write_json(os.path.join(folder, f"{number}.json"), made.as_dict())
        return made

    @staticmethod
    def get(
        workspace: Workspace, name: str, version: str | None = None, label: str | None = None
    ) -> Environment:
        """Return a registered environment, by default its last version.

        A curated environment (``AzureML-...``) that is not registered has no packages, so its runs
        use the current interpreter. Raises UserErrorException for any other unknown name or
        version.
        """
        versions = _versions(workspace, name)
        if versions and version is None:
            return Environment._from_dict(_stored(workspace, name, versions[-1]))
        if str(version).isdecimal() and int(version or 0) in versions:
            return Environment._from_dict(_stored(workspace, name, int(version or 0)))
        if name.lower().startswith(_CURATED) and not versions:
            made = Environment(name)
            made.version = version or "1"
            made.python.conda_dependencies = None
            return made
        known = ", ".join(_registered(workspace)) or "none"
        raise UserErrorException(
            f"there is no environment {name!r}{f' in version {version}' if version else ''}"
            f" (registered: {known}; versions: {', '.join(map(str, versions)) or 'none'})"
        )

    @staticmethod
    def list(workspace: Workspace) -> dict[str, Environment]:
        """Return the last version of each registered environment by name."""
        return {name: Environment.get(workspace, name) for name in _registered(workspace)}

    def build(self, workspace: Workspace, image_build_compute: Any = None) -> BuiltEnvironment:
        """Let the next run build the environment from its packages; this call builds nothing."""
        self._policy = "build"
        say(f"{self.name}: its next run builds the environment from its packages")
        return BuiltEnvironment(self)

    def build_local(self, workspace: Workspace, **kwargs: Any) -> BuiltEnvironment:
        """Let the next run build the environment from its packages, as ``build``."""
        return self.build(workspace)

    # --- copies and files

    def clone(self, new_name: str) -> Environment:
        """Return a copy with another name."""
        made = copy.deepcopy(self)
        made.name, made.version = new_name, None
        return made

    def save_to_directory(self, path: str, overwrite: bool = False) -> None:
        """Write the environment to files in ``path``.

        Raises UserErrorException if the folder exists, unless ``overwrite``.
        """
        if os.path.isdir(path) and not overwrite:
            raise UserErrorException(f"{path!r} exists; pass overwrite=True to replace its files")
        os.makedirs(path, exist_ok=True)
        with open(os.path.join(path, _FILE), "w", encoding="utf-8") as file:
            json.dump(self.as_dict(), file, indent=4)
        if self.python.conda_dependencies is not None:
            self.python.conda_dependencies.save_to_file(path)

    @staticmethod
    def load_from_directory(path: str) -> Environment:
        """Return the environment that ``save_to_directory`` wrote.

        Raises UserErrorException if there is none.
        """
        found = read_json(os.path.join(path, _FILE))
        if found is None:
            raise UserErrorException(f"{path!r} has no file {_FILE}")
        return Environment._from_dict(found)

    def as_dict(self) -> dict[str, Any]:
        """Return the environment with the keys of ``get_details()['runDefinition']``."""
        python, docker = self.python, self.docker
        packages = python.conda_dependencies.as_dict() if python.conda_dependencies else None
        if packages is not None and not python.user_managed_dependencies:
            packages.pop("name", None)  # the digest becomes the name
            text = json.dumps(packages, sort_keys=True).encode()
            digest = hashlib.md5(text, usedforsecurity=False).hexdigest()
            packages["name"] = f"azureml_{digest}"
        return {
            "name": self.name,
            "version": self.version,
            "python": {
                "interpreterPath": python.interpreter_path,
                "userManagedDependencies": python.user_managed_dependencies,
                "condaDependencies": packages,
                "baseCondaEnvironment": python.base_conda_environment,
                "condaDependenciesFile": python.conda_dependencies_file,
            },
            "environmentVariables": dict(self.environment_variables),
            "docker": {
                "baseImage": docker.base_image,
                "platform": dict(docker.platform),
                "baseDockerfile": docker.base_dockerfile,
                "dockerContext": None,
                "baseImageRegistry": {
                    "address": docker.base_image_registry.address,
                    "username": None,
                    "password": None,
                },
                "enabled": docker.enabled,
                "arguments": [*docker.arguments],
            },
            "spark": {"repositories": [], "packages": [], "precachePackages": True},
            "inferencingStackVersion": self.inferencing_stack_version,
            "policy": self._policy,
        }

    @staticmethod
    def _from_dict(data: Mapping[str, Any], folder: str = "") -> Environment:
        """Return an environment from data with the keys of the SDK; any may be missing.

        ``folder``: the folder of the conda file that is named in the data.
        """
        made = Environment(data.get("name") or "default-environment")
        made.version = data.get("version")
        python, docker = data.get("python") or {}, data.get("docker") or {}
        made.python.interpreter_path = python.get("interpreterPath") or "python"
        made.python.user_managed_dependencies = bool(python.get("userManagedDependencies"))
        made.python.conda_dependencies_file = python.get("condaDependenciesFile")
        made.python.conda_dependencies = _packages_of(python, folder)
        made.python.base_conda_environment = python.get("baseCondaEnvironment")
        variables = data.get("environmentVariables")
        made.environment_variables = dict(variables or {})
        made.docker.base_image = docker.get("baseImage")
        made.docker.base_dockerfile = docker.get("baseDockerfile")
        made.docker._enabled = bool(docker.get("enabled"))
        made.docker.arguments = [*(docker.get("arguments") or [])]
        made.inferencing_stack_version = data.get("inferencingStackVersion")
        made._policy = data.get("policy", "current")
        return made

    def __repr__(self) -> str:
        return json.dumps(self.as_dict(), indent=4)


def autosaved_version() -> str:
    """Return the version of an environment that is not registered."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return f"Autosave_{stamp}_{uuid.uuid4().hex[:8]}"


def _packages_of(python: Mapping[str, Any], folder: str) -> CondaDependencies | None:
    """Return the packages in the Python part of an environment, from its data or its conda file."""
    packages, file = python.get("condaDependencies"), python.get("condaDependenciesFile")
    if packages:
        return CondaDependencies(_underlying_structure=copy.deepcopy(packages))
    path = os.path.join(folder, file) if folder and file else ""
    return CondaDependencies(path) if os.path.isfile(path) else None


def _with_packages(name: str, conda: str | None, requirements: str | None) -> Environment:
    if conda and requirements:
        raise UserErrorException("give either conda_specification or pip_requirements, not both")
    if conda:
        return Environment.from_conda_specification(name, conda)
    if requirements:
        return Environment.from_pip_requirements(name, requirements)
    made = Environment(name)
    made.python.conda_dependencies = None
    return made


def _requirements(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.strip() for line in file]
    except OSError as error:
        raise UserErrorException(
            f"the requirements file {path!r} cannot be read: {error}"
        ) from error
    return [line for line in lines if line and not line.startswith("#")]


def _conda_roots() -> list[str]:
    return [os.path.expanduser(f"~/{name}") for name in ("miniconda3", "anaconda3", "miniforge3")]


def _registered(workspace: Workspace) -> list[str]:
    return sorted(os.listdir(workspace._storage("environments")))


def _versions(workspace: Workspace, name: str) -> list[int]:
    folder = os.path.join(workspace._storage("environments"), name)
    if not os.path.isdir(folder):
        return []
    return sorted(int(file[:-5]) for file in os.listdir(folder) if file[:-5].isdecimal())


def _stored(workspace: Workspace, name: str, version: int) -> dict[str, Any]:
    found = read_json(os.path.join(workspace._storage("environments"), name, f"{version}.json"))
    return found or {}


def _digest(data: dict[str, Any]) -> str:
    return json.dumps({**data, "version": None}, sort_keys=True)
