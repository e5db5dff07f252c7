"""The environment of a run, for Farandole's jobs."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

from azureml._farandole.errors import raised_as
from azureml._farandole.texts import warn
from azureml.exceptions import UserErrorException
from farandole.job.runs.spec import EnvironmentSpec
from farandole.jobs.environments.files import EnvironmentFile, parse
from farandole.jobs.environments.installed import canonical, differences, interpreter, listed

if TYPE_CHECKING:
    from azureml.core.environment import Environment

_FILE = "conda_dependencies.yml"


def spec_of(environment: Environment) -> EnvironmentSpec:
    """Return the environment of a run.

    Raises UserErrorException if its packages or its interpreter cannot be used.
    """
    python = environment.python
    own = python.user_managed_dependencies
    given = python.interpreter_path if own and python.interpreter_path != "python" else ""
    with raised_as(UserErrorException):
        file = file_of(environment) if not own and _is_chosen(environment) else None
    return EnvironmentSpec(
        policy=environment._policy if file is not None else "current",
        python=given,
        image=_image(environment) if environment._policy == "current" else "",
        name=environment.name,
        content=file.to_json() if file is not None else {},
    )


def file_of(environment: Environment) -> EnvironmentFile | None:
    """Return the packages of an environment, without ``azureml-*``; None if it has no list."""
    packages = environment.python.conda_dependencies
    if packages is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        name = os.path.basename(environment.python.conda_dependencies_file or _FILE)
        path = os.path.join(folder, name if name.endswith((".yml", ".yaml")) else _FILE)
        file = parse(packages.save(path))
    kept = (line for line in file.requirements if not canonical(line).startswith("azureml-"))
    return file._replace(requirements=tuple(kept))


def report(environment: Environment, spec: EnvironmentSpec) -> None:
    """Print a line for the packages that differ, and a line for the image that is not used."""
    if spec.policy == "current" and spec.content:
        file = EnvironmentFile.from_json(spec.content)
        differing = differences(file, interpreter(spec.python))
        if differing:
            warn(
                f"farandole: the run uses this interpreter, which differs from {file.name}:"
                f" {listed(differing)}; env.build(ws) builds the environment instead"
            )
    if spec.image:
        warn(f"farandole: the image {spec.image} is not used: runs are processes of their host")


def _is_chosen(environment: Environment) -> bool:
    """Return whether the packages differ from the default, which is only Python."""
    from azureml.core.conda_dependencies import CondaDependencies

    packages = environment.python.conda_dependencies
    return packages is not None and packages.as_dict() != CondaDependencies().as_dict()


def _image(environment: Environment) -> str:
    docker = environment.docker
    if docker.base_dockerfile:
        return "of the Dockerfile"
    return docker.base_image or ""
