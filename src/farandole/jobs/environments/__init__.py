"""The Python environment of a run.

A submission stores the content of the environment file in the run's specification, so that a rerun
does not depend on the file.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from collections.abc import Mapping
from typing import NamedTuple

from farandole.errors import SettingsError
from farandole.job.runs.folder import RunFolder
from farandole.job.runs.home import RunsHome
from farandole.job.runs.spec import POLICIES, EnvironmentSpec
from farandole.jobs.environments import package
from farandole.jobs.environments.build import LOCK, EnvironmentBuild, find_conda, find_uv
from farandole.jobs.environments.files import EnvironmentFile, find, parse
from farandole.jobs.environments.installed import (
    differences,
    installed_lines,
    interpreter,
    listed,
)

__all__ = ["LOCK", "PreparedEnvironment", "check", "prepare", "with_content"]


class PreparedEnvironment(NamedTuple):
    """An environment that is ready.

    - ``python``: The interpreter of the ranks' programs.
    - ``variables``: Environment variables of the ranks.
    - ``notes``: Messages for the user.
    """

    python: str
    variables: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()


def with_content(spec: EnvironmentSpec, source: str) -> EnvironmentSpec:
    """Return the specification with the content of its file.

    The file is looked up in ``source``, then relative to the current directory. Raises
    SettingsError if it cannot be read.
    """
    if not spec.file or spec.content:
        return spec
    return dataclasses.replace(spec, content=parse(find(spec.file, source)).to_json())


def check(spec: EnvironmentSpec, source: str) -> None:
    """Raise SettingsError for a specification that this host knows to be impossible."""
    if spec.policy not in POLICIES:
        raise SettingsError(
            f"the environment's policy {spec.policy!r} is none of {', '.join(POLICIES)}"
        )
    file = _file(with_content(spec, source))
    if spec.image and spec.policy != "current":
        raise SettingsError(
            f"the image {spec.image!r} cannot be used with the policy {spec.policy!r}: runs are"
            " processes of their host, not of containers; use the policy 'current', or start"
            " Farandole inside the container"
        )
    if spec.policy == "build":
        if file is None:
            raise SettingsError(
                "the policy 'build' needs an environment file; pass one with --environment"
            )
        find_uv()
    if spec.python:
        interpreter(spec.python)
    if spec.policy == "strict":
        _require_equal(file, spec.python)


def _file(spec: EnvironmentSpec) -> EnvironmentFile | None:
    return EnvironmentFile.from_json(spec.content) if spec.content else None


def _require_equal(file: EnvironmentFile | None, python: str) -> None:
    if file is None:
        raise SettingsError(
            "the policy 'strict' needs an environment file; pass one with --environment"
        )
    if differing := differences(file, interpreter(python)):
        raise SettingsError(
            f"the interpreter {python or sys.executable} differs from {file.name}:"
            f" {listed(differing)}; install these, or use the policy 'build' or 'current'"
        )


def prepare(spec: EnvironmentSpec, folder: RunFolder, home: RunsHome) -> PreparedEnvironment:
    """Prepare the environment and return it.

    Raises SettingsError if it differs from the file under ``strict``, and RunError if the build
    fails.
    """
    file = _file(with_content(spec, folder.file("snapshot")))
    if spec.policy == "strict":
        _require_equal(file, spec.python)
    if spec.policy == "build" and file is not None:
        python = EnvironmentBuild(file, folder, home, spec.python).ready()
        return PreparedEnvironment(python, _variables(python), _notes_of_build(file))
    notes = _notes(spec, file)
    if spec.python:
        linked = package.link(os.path.join(home.folder("environments"), package.identity()))
        path = os.pathsep.join(filter(None, (linked, os.environ.get("PYTHONPATH", ""))))
        variables = {**_variables(spec.python), "PYTHONPATH": path}
        return PreparedEnvironment(spec.python, variables, notes)
    with open(folder.file(LOCK), "w", encoding="utf-8") as lock:
        lock.write("\n".join(installed_lines()) + "\n")
    return PreparedEnvironment(sys.executable, _variables(sys.executable), notes)


def _notes(spec: EnvironmentSpec, file: EnvironmentFile | None) -> tuple[str, ...]:
    """Return messages about unmet requirements under the policy ``current``."""
    notes = []
    if spec.image:
        notes.append(f"the image {spec.image} is not used: the policy is 'current'")
    if file is not None and (differing := differences(file, interpreter(spec.python))):
        notes.append(f"this environment differs from {file.name}: {listed(differing)}")
    return tuple(notes)


def _notes_of_build(file: EnvironmentFile) -> tuple[str, ...]:
    if not file.conda or find_conda() is not None:
        return ()
    return (
        "omitted from the environment, because only conda has them and it is not installed:"
        f" {', '.join(file.conda)}",
    )


def _variables(python: str) -> dict[str, str]:
    """Return environment variables that make ``python`` in a shell command this interpreter."""
    folder = os.path.dirname(python)
    path = os.environ.get("PATH", os.defpath)
    if not folder or os.path.dirname(shutil.which("python") or "") == folder:
        return {}
    found = {"PATH": folder + os.pathsep + path}
    prefix = os.path.dirname(folder)
    if os.path.isfile(os.path.join(prefix, "pyvenv.cfg")):
        found["VIRTUAL_ENV"] = prefix
    return found
