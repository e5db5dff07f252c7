"""The packages of an environment, as a conda file lists them."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterator
from typing import Any

from azureml.exceptions import UserErrorException
from farandole.base.optional import require

PYTHON = "3.10.18"  # the SDK's default
_FILE = "conda_dependencies.yml"


class CondaDependencies:
    """The content of a conda file: channels, packages of conda and packages of pip."""

    DEFAULT_NUMBER_OF_CONDA_PACKAGES = 0
    PYTHON_PREFIX = "python"

    def __init__(
        self, conda_dependencies_file_path: str | None = None, _underlying_structure: Any = None
    ) -> None:
        """Read the conda file ``conda_dependencies_file_path``; without one, list only Python.

        Raises UserErrorException if the file is not a conda file.
        """
        if conda_dependencies_file_path is not None:
            _underlying_structure = _read(conda_dependencies_file_path)
        self._document: dict[str, Any] = _underlying_structure or {
            "name": "project_environment",
            "dependencies": [f"python={PYTHON}", {"pip": ["azureml-defaults"]}],
            "channels": ["anaconda", "conda-forge"],
        }
        self._document.setdefault("dependencies", [])

    @staticmethod
    def create(
        pip_indexurl: str | None = None,
        pip_packages: list[str] | None = None,
        conda_packages: list[str] | None = None,
        python_version: str = PYTHON,
        pin_sdk_version: bool = True,
        **kwargs: Any,
    ) -> CondaDependencies:
        """Return the dependencies with these packages.

        Arguments:
            pip_indexurl: The URL of pip's index.
            pip_packages: Requirements of pip, such as ``numpy>=2``.
            conda_packages: Specifications of conda, such as ``numpy=2``.
            python_version: The version of Python.
            pin_sdk_version: Not used.
        """
        made = CondaDependencies()
        made.set_python_version(python_version)
        if pip_packages is not None:
            made._pip()[:] = []
        if pip_indexurl:
            made.set_pip_option(f"--index-url {pip_indexurl}")
        for package in pip_packages or ():
            made.add_pip_package(package)
        for package in conda_packages or ():
            made.add_conda_package(package)
        return made

    # --- contents

    @property
    def conda_channels(self) -> Iterator[str]:
        return iter(self._document.get("channels") or [])

    @property
    def conda_packages(self) -> Iterator[str]:
        return (each for each in self._document["dependencies"] if isinstance(each, str))

    @property
    def pip_packages(self) -> Iterator[str]:
        return (each for each in self._pip_lines() if not each.startswith("-"))

    @property
    def pip_options(self) -> Iterator[str]:
        return (each for each in self._pip_lines() if each.startswith("-"))

    def get_python_version(self) -> str | None:
        """Return the version of Python; None for any."""
        for each in self.conda_packages:
            if _name(each) == "python":
                return each.partition("=")[2].lstrip("=") or None
        return None

    def as_dict(self) -> dict[str, Any]:
        """Return the content as data."""
        return copy.deepcopy(self._document)

    def serialize_to_string(self) -> str:
        """Return the content as YAML."""
        yaml = require("yaml", "conda files")
        text: str = yaml.safe_dump(self._document, sort_keys=False)
        return text

    # --- changes

    def add_channel(self, channel: str) -> None:
        """Add a channel of conda."""
        channels = self._document.setdefault("channels", [])
        if channel not in channels:
            channels.append(channel)

    def remove_channel(self, channel: str) -> None:
        """Remove a channel of conda."""
        self._document["channels"] = [each for each in self.conda_channels if each != channel]

    def add_conda_package(self, conda_package: str) -> None:
        """Add a package of conda; it replaces another version of the package."""
        self.remove_conda_package(conda_package)
        lines = self._document["dependencies"]
        place = next((i for i, each in enumerate(lines) if not isinstance(each, str)), len(lines))
        lines.insert(place, conda_package)

    def remove_conda_package(self, conda_package: str) -> None:
        """Remove a package of conda."""
        lines = self._document["dependencies"]
        lines[:] = [
            each
            for each in lines
            if not isinstance(each, str) or _name(each) != _name(conda_package)
        ]

    def add_pip_package(self, pip_package: str) -> None:
        """Add a package of pip; it replaces another version of the package."""
        self.remove_pip_package(pip_package)
        self._pip().append(pip_package)

    def remove_pip_package(self, pip_package: str) -> None:
        """Remove a package of pip."""
        lines = self._pip()
        lines[:] = [each for each in lines if _name(each) != _name(pip_package)]

    def set_pip_option(self, pip_option: str) -> None:
        """Add an option of pip, such as ``--index-url URL``."""
        self.remove_pip_option(pip_option)
        self._pip().insert(0, pip_option)

    def remove_pip_option(self, pip_option: str) -> None:
        """Remove an option of pip."""
        option = re.split(r"[\s=]", pip_option, maxsplit=1)[0]
        lines = self._pip()
        lines[:] = [each for each in lines if re.split(r"[\s=]", each, maxsplit=1)[0] != option]

    def set_pip_requirements(self, pip_requirements: list[str]) -> None:
        """Replace all packages of pip."""
        self._pip()[:] = [*self.pip_options, *pip_requirements]

    def set_pip_index_url(self, index_url: str) -> None:
        """Set the index of pip."""
        self.set_pip_option(f"--index-url {index_url}")

    def set_python_version(self, version: str) -> None:
        """Set the version of Python."""
        self.remove_conda_package("python")
        self._document["dependencies"].insert(0, f"python={version}")

    # --- files

    def save(self, path: str | None = None) -> str:
        """Write the conda file ``path`` and return its path."""
        path = path or _FILE
        if os.path.isdir(path):
            path = os.path.join(path, _FILE)
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.serialize_to_string())
        return path

    def save_to_file(self, base_directory: str, conda_file_path: str | None = None) -> str:
        """Write the conda file below ``base_directory`` and return its path relative to it."""
        name = conda_file_path or _FILE
        self.save(os.path.join(base_directory, name))
        return name

    # --- parts

    def _pip(self) -> list[str]:
        """Return the list of pip's lines. A change of the list changes the dependencies."""
        for each in self._document["dependencies"]:
            if isinstance(each, dict) and "pip" in each:
                each["pip"] = each["pip"] or []
                found: list[str] = each["pip"]
                return found
        found = []
        self._document["dependencies"].append({"pip": found})
        return found

    def _pip_lines(self) -> list[str]:
        return [
            str(line)
            for each in self._document["dependencies"]
            if isinstance(each, dict)
            for line in each.get("pip") or ()
        ]


def _name(package: str) -> str:
    """Return the name of a package without its version."""
    found = re.match(r"\s*(?:\S+::)?([A-Za-z0-9_.-]+)", package)
    return re.sub(r"[-_.]+", "-", found[1]).lower() if found else package


def _read(path: str) -> dict[str, Any]:
    yaml = require("yaml", "conda files")
    try:
        with open(path, encoding="utf-8") as file:
            document = yaml.safe_load(file)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserErrorException(f"the conda file {path!r} cannot be read: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("dependencies"), list):
        raise UserErrorException(f"the conda file {path!r} has no list 'dependencies'")
    return document
