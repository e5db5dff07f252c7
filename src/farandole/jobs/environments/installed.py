"""The packages of an interpreter, and their differences from an environment file."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from farandole.base.optional import require
from farandole.errors import SettingsError, counted
from farandole.jobs.environments.files import EnvironmentFile

_SAME = {"sklearn": "scikit-learn", "tensorflow-gpu": "tensorflow", "tensorflow-cpu": "tensorflow"}
_SHOWN = 8
_FACTS = """
import importlib.metadata as m, json, sys
print(json.dumps({"python": "%d.%d.%d" % sys.version_info[:3],
                  "packages": {str(d.metadata["Name"]): d.version for d in m.distributions()}}))
"""


class Interpreter(NamedTuple):
    """An interpreter: its path, its version, and the versions of its packages by canonical name."""

    path: str
    python: str
    packages: Mapping[str, str]


def canonical(name: str) -> str:
    """Return the canonical name of a package (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def interpreter(path: str = "") -> Interpreter:
    """Return the facts about an interpreter; by default the running interpreter.

    Raises SettingsError if it cannot run.
    """
    if not path or os.path.abspath(path) == sys.executable:
        return Interpreter(sys.executable, platform.python_version(), _Running())
    try:
        done = subprocess.run(
            [path, "-I", "-c", _FACTS], capture_output=True, timeout=60, check=True
        )
        facts: dict[str, Any] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or b""
        raise SettingsError(
            f"the interpreter {path!r} cannot be used: {error} {said.decode(errors='replace')}"
        ) from error
    packages = {canonical(name): version for name, version in facts["packages"].items()}
    return Interpreter(path, facts["python"], packages)


class _Running(dict[str, str]):
    """The packages of the running interpreter, read one by one on lookup."""

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return default


def differences(file: EnvironmentFile, found: Interpreter) -> list[str]:
    """Return an interpreter's unmet requirements, with its actual versions."""
    specifiers: Any = require("packaging.specifiers", "comparing environments")
    requirements: Any = require("packaging.requirements", "comparing environments")
    differing = []
    if file.python and not specifiers.SpecifierSet(file.python).contains(found.python, True):
        differing.append(f"python{file.python} (running: {found.python})")
    for line in file.requirements:
        try:
            wanted = requirements.Requirement(line.partition(" --hash")[0])
        except requirements.InvalidRequirement:
            continue  # a path or a URL without a name
        if wanted.marker is not None and not wanted.marker.evaluate():
            continue
        name = canonical(wanted.name)
        version = found.packages.get(name) or found.packages.get(_SAME.get(name, name))
        if version is None:
            differing.append(f"{line} (not installed)")
        elif not wanted.specifier.contains(version, True):
            differing.append(f"{line} (installed: {version})")
    return differing + [f"{each} (only conda has it)" for each in file.conda]


def listed(differing: list[str]) -> str:
    """Return differences as one line."""
    more = len(differing) - _SHOWN
    end = f" and {counted(more, 'other')}" if more > 0 else ""
    return ", ".join(differing[:_SHOWN]) + end


def installed_lines() -> list[str]:
    """Return ``name==version`` of the running interpreter's packages. Reads no files."""
    found = set()
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            match = re.fullmatch(r"(.+)-([^-]+)\.dist-info", name)
            if match:
                found.add(f"{canonical(match[1])}=={match[2]}")
    return sorted(found)
