"""Environment files: requirements, ``pyproject.toml`` and conda files, in one common form."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from farandole.base.optional import require
from farandole.errors import SettingsError

# Conda packages that PyPI lacks: compilers, drivers, system libraries.
_CONDA_ONLY = {
    *("cudatoolkit", "cudnn", "cuda", "cuda-toolkit", "nccl", "pytorch-cuda", "mkl", "blas"),
    *("openmpi", "mpich", "gcc", "gxx", "gcc_linux-64", "gxx_linux-64", "compilers", "openblas"),
    *("ffmpeg", "libgcc-ng", "libstdcxx-ng", "openssl", "zlib", "cpuonly", "nodejs", "git"),
}
_PYPI_NAMES = {"pytorch": "torch", "tensorflow-base": "tensorflow", "pytables": "tables"}
# Tools in conda files to omit: every environment has the tools that it needs.
_TOOLS = {"pip", "setuptools", "wheel"}


class EnvironmentFile(NamedTuple):
    """The content of an environment file.

    - ``name``: Its file name.
    - ``kind``: ``requirements``, ``pyproject`` or ``conda``.
    - ``python``: Version specifiers of Python, such as ``==3.11.*``; empty for any.
    - ``requirements``: Requirements (PEP 508), and other lines that pip accepts.
    - ``options``: Index options of pip, one per line.
    - ``conda``: The dependencies of a conda file that PyPI lacks.
    - ``document``: The whole conda file.
    """

    name: str
    kind: str
    python: str = ""
    requirements: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    conda: tuple[str, ...] = ()
    document: Mapping[str, Any] = {}

    def to_json(self) -> dict[str, Any]:
        return self._asdict()

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> EnvironmentFile:
        values = {name: data[name] for name in EnvironmentFile._fields if name in data}
        for name in ("requirements", "options", "conda"):
            values[name] = tuple(values.get(name, ()))
        return EnvironmentFile(**values)


def find(file: str, source: str) -> str:
    """Return the path of an environment file: in the source, otherwise in the current directory.

    Raises SettingsError if neither exists.
    """
    for path in (os.path.join(source, file) if source else "", os.path.abspath(file)):
        if path and os.path.isfile(path):
            return path
    raise SettingsError(
        f"the environment file {file!r} exists neither in the source {source!r} nor in"
        f" {os.getcwd()}"
    )


def parse(path: str) -> EnvironmentFile:
    """Return the content of an environment file. Raises SettingsError if it cannot be read."""
    name = os.path.basename(path)
    try:
        if name.endswith((".yml", ".yaml")):
            return _conda(path, name)
        if name.endswith(".toml"):
            return _pyproject(path, name)
        lines = list(_lines(path, ()))
    except (OSError, UnicodeDecodeError, RecursionError) as error:
        raise SettingsError(f"the environment file {path} cannot be read: {error}") from error
    options = tuple(line for line in lines if line.startswith("-") and not _is_editable(line))
    wanted = tuple(line for line in lines if not line.startswith("-") or _is_editable(line))
    return _checked(EnvironmentFile(name, "requirements", "", wanted, options))


def _is_editable(line: str) -> bool:
    return line.startswith(("-e ", "--editable"))


def _lines(path: str, above: tuple[str, ...]) -> Iterator[str]:
    """Yield the lines of a requirements file and of the files that it includes with ``-r``."""
    if path in above:
        raise SettingsError(f"the requirements file {path} includes itself; remove that -r line")
    with open(path, encoding="utf-8") as file:
        text = file.read().replace("\\\n", " ")
    for line in text.splitlines():
        line = re.sub(r"(^|\s)#.*", "", line).strip()
        included = re.match(r"(?:-r|--requirement)[\s=]*(.+)", line)
        limits = re.match(r"(?:-c|--constraint)[\s=]*(.+)", line)
        if included:
            inner = os.path.join(os.path.dirname(path), included[1].strip())
            yield from _lines(inner, (*above, path))
        elif limits:
            yield f"--constraint {os.path.abspath(os.path.join(os.path.dirname(path), limits[1]))}"
        elif line:
            yield line


def _pyproject(path: str, name: str) -> EnvironmentFile:
    try:
        tomllib = require("tomllib", "reading pyproject.toml")  # from Python 3.11 on
    except ImportError:
        tomllib = require("tomli", "reading pyproject.toml")
    with open(path, "rb") as file:
        try:
            project = tomllib.load(file).get("project", {})
        except ValueError as error:
            raise SettingsError(f"the environment file {path} is not valid: {error}") from error
    return _checked(
        EnvironmentFile(
            name,
            "pyproject",
            project.get("requires-python", ""),
            tuple(project.get("dependencies", ())),
        )
    )


def _conda(path: str, name: str) -> EnvironmentFile:
    yaml = require("yaml", "reading conda files")
    with open(path, encoding="utf-8") as file:
        try:
            document = yaml.safe_load(file)
        except yaml.YAMLError as error:
            raise SettingsError(f"the environment file {path} is not valid: {error}") from error
    found = (document or {}).get("dependencies") if isinstance(document, dict) else None
    if not isinstance(found, list):
        raise SettingsError(f"the conda file {path} has no list 'dependencies'")
    python, wanted, only = "", [], []
    for each in found:
        if isinstance(each, dict):
            wanted += [str(line) for line in each.get("pip") or ()]
            continue
        package, limits = _conda_package(str(each))
        if package == "python":
            python = limits
        elif package in _CONDA_ONLY or package.startswith("_"):
            only.append(str(each))
        elif package not in _TOOLS:
            wanted.append(_PYPI_NAMES.get(package, package) + limits)
    options = tuple(line for line in wanted if line.startswith("--"))
    requirements = tuple(line for line in wanted if not line.startswith("--"))
    return _checked(
        EnvironmentFile(name, "conda", python, requirements, options, tuple(only), document)
    )


def _conda_package(text: str) -> tuple[str, str]:
    """Return the name and version specifiers of a dependency: ``main::numpy=1.26=py311_0``."""
    text = text.rpartition("::")[2].strip()
    found = re.match(r"([A-Za-z0-9_.-]+)\s*(.*)", text)
    if found is None:
        return text, ""
    name, limits = found[1].lower(), found[2].replace(" ", "")
    exact = re.fullmatch(r"(={1,2})([^=,<>!]+)(?:=.*)?", limits)
    if exact:  # name=1.2 means 1.2 and all versions that begin with 1.2.
        version = exact[2].rstrip(".*")
        return name, f"=={version}.*" if exact[1] == "=" else f"=={version}"
    return name, limits


def _checked(file: EnvironmentFile) -> EnvironmentFile:
    """Return ``file`` without Farandole, added separately. Raises SettingsError for credentials."""
    for line in (*file.requirements, *file.options):
        if re.search(r"://[^/\s@]*:[^/\s@$]+@", line):
            shown = re.sub(r"://[^/\s@]*@", "://***@", line)
            raise SettingsError(
                f"{file.name} has credentials in {shown!r}, which would be copied into the run;"
                " write ${NAME} there and set the variable NAME"
            )
    ours = re.compile(r"(farandole|horovod)(?![\w.-])", re.IGNORECASE)
    return file._replace(requirements=tuple(r for r in file.requirements if not ours.match(r)))
