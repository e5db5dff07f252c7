"""Builds of Python environments with uv, or with conda if it is installed: one per file content.

Runs that need the same environment simultaneously wait for one build. The resolved versions are
saved as ``environment.lock`` in the run's folder, and a rerun installs exactly these versions.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from farandole.errors import RunError, SettingsError
from farandole.job.runs.folder import RunFolder, read_json, write_json
from farandole.job.runs.home import RunsHome
from farandole.jobs.environments import package
from farandole.jobs.environments.files import EnvironmentFile
from farandole.jobs.environments.indexes import uv_variables

LOCK = "environment.lock"
CHECK = "import farandole.numpy"  # the program that a built environment must be able to run
_TAIL = 15  # lines of the log in an error message
_CONDAS = ("micromamba", "mamba", "conda")


def find_uv() -> str:
    """Return the path of uv. Raises SettingsError if it is not installed."""
    if importlib.util.find_spec("uv") is not None:
        from importlib import import_module

        with contextlib.suppress(FileNotFoundError):
            return str(import_module("uv").find_uv_bin())
    path = shutil.which("uv")
    if path is None:
        raise SettingsError(
            "building an environment needs uv, which is not installed: pip install uv"
        )
    return path


def find_conda() -> str | None:
    """Return the path of micromamba, mamba or conda; None if none is installed."""
    return next((path for name in _CONDAS if (path := shutil.which(name))), None)


class EnvironmentBuild:
    """The environment for a file, built if it does not exist yet."""

    def __init__(
        self, file: EnvironmentFile, folder: RunFolder, home: RunsHome, python: str = ""
    ) -> None:
        """``python``: the interpreter to build with; by default the version that the file requires,
        otherwise the running interpreter.
        """
        self._file = file
        self._folder = folder
        self._wanted = python or file.python or sys.executable
        self._lock = _read(folder.file(LOCK))
        facts = [file.to_json(), self._wanted, self._lock, package.identity(), sys.platform]
        key = hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()[:16]
        self._path = os.path.join(home.folder("environments"), key)
        self._log = folder.file("logs", "environment.txt")

    def ready(self) -> str:
        """Build the environment if necessary, and return the path of its interpreter.

        Raises RunError, with the end of the log, if the build fails.
        """
        python = os.path.join(self._path, "bin", "python")
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        lock = os.open(self._path + ".lock", flags, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._say("waits for another run that builds the same environment")
                fcntl.flock(lock, fcntl.LOCK_EX)
            if read_json(self._file_of("built.json")) is None:
                self._build(python)
            shutil.copyfile(self._file_of(LOCK), self._folder.file(LOCK))
            return python
        finally:
            os.close(lock)

    def _file_of(self, name: str) -> str:
        return os.path.join(self._path, name)

    def _say(self, text: str) -> None:
        self._folder.record("progress", text=text)

    def _build(self, python: str) -> None:
        began = time.monotonic()
        self._folder.folder("logs")
        shutil.rmtree(self._path, ignore_errors=True)
        conda = find_conda() if self._file.conda else None
        self._say(f"builds the environment of {self._file.name}")
        if conda is None:
            self._build_with_uv(python)
        else:
            self._build_with_conda(conda, python)
        linked = package.link(self._file_of("farandole"))
        packages = self._output([python, "-c", _SITE]).strip()
        with open(os.path.join(packages, "farandole-running.pth"), "w", encoding="utf-8") as file:
            file.write(linked + "\n")
        self._run([python, "-c", CHECK], "checking the environment")
        write_json(self._file_of("built.json"), {"file": self._file.name, "time": time.time()})
        self._say(f"built the environment in {time.monotonic() - began:.1f} s")

    def _build_with_uv(self, python: str) -> None:
        uv = find_uv()
        self._run([uv, "venv", "--python", self._wanted, self._path], self._making())
        self._resolve(uv, python)
        self._say(f"installs {_count(_read(self._file_of(LOCK)))} packages")
        self._run(
            [uv, "pip", "sync", "--python", python, *self._options(), self._file_of(LOCK)],
            "installing the packages",
        )

    def _making(self) -> str:
        return (
            f"making an environment with Python {self._wanted} (uv downloads a Python that this"
            " host lacks, if it has a network)"
        )

    def _resolve(self, uv: str, python: str) -> None:
        """Write the lock file: the run's own, otherwise the newest versions that the file
        allows.
        """
        lock, wanted = self._file_of(LOCK), self._file_of("requirements.in")
        if self._lock:
            _write(lock, self._lock)
            return
        _write(wanted, "\n".join([*self._file.requirements, *package.requirements()]) + "\n")
        self._say(f"resolves {len(self._file.requirements)} requirements")
        self._run(
            [
                *(uv, "pip", "compile", "--quiet", "--no-header", "--no-annotate"),
                *("--python", python, *self._options(), "--output-file", lock, wanted),
            ],
            "resolving the requirements",
        )

    def _options(self) -> list[str]:
        words: list[str] = []
        for line in self._file.options:
            name, _, value = line.replace("=", " ", 1).partition(" ")
            name = {"-i": "--index-url", "-f": "--find-links"}.get(name, name)
            words += [name, os.path.expandvars(value.strip())] if value else [name]
        return words

    def _build_with_conda(self, conda: str, python: str) -> None:
        document = self._file_of("environment.yml")
        os.makedirs(self._path, mode=0o700)
        _write(document, json.dumps(self._file.document))  # JSON is YAML
        kind = os.path.basename(conda)
        verb = ["create", "-y"] if kind == "micromamba" else ["env", "create"]
        prefix = self._file_of("conda")
        self._run([conda, *verb, "-p", prefix, "-f", document], f"building with {kind}")
        os.symlink(os.path.join(prefix, "bin"), self._file_of("bin"))
        self._run(
            [find_uv(), "pip", "install", "--python", python, *package.requirements()],
            "installing what Farandole needs",
        )
        listed = self._output([find_uv(), "pip", "freeze", "--python", python])
        _write(self._file_of(LOCK), listed)

    # --- processes

    def _run(self, command: Sequence[str], step: str) -> None:
        """Run a command with its output in the log. Raises RunError if the command fails."""
        with open(os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as log:
            log.write(f"$ {' '.join(command)}\n".encode())
            log.flush()
            start = log.tell()
            done = subprocess.run(command, stdout=log, stderr=log, env=_environment(), check=False)
        if done.returncode:
            with open(self._log, "rb") as file:
                file.seek(start)
                text = file.read().decode(errors="replace")
            raise RunError(
                f"the environment of {self._file.name} cannot be built: {step} failed with status"
                f" {done.returncode}. The log is {os.path.relpath(self._log, self._folder.path)};"
                f" its end:\n{_tail(text)}"
            )

    def _output(self, command: Sequence[str]) -> str:
        done: Any = subprocess.run(
            command, capture_output=True, env=_environment(), check=True, text=True
        )
        return str(done.stdout)


_SITE = "import sysconfig; print(sysconfig.get_paths()['purelib'])"


def _environment() -> dict[str, str]:
    found = {**os.environ, **uv_variables(os.environ), "UV_NO_PROGRESS": "1"}
    for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
        found.pop(name, None)
    return found


def _tail(text: str) -> str:
    hidden = re.sub(r"://[^/\s@]+@", "://***@", text)
    return "\n".join(hidden.rstrip().splitlines()[-_TAIL:])


def _count(lock: str) -> int:
    return sum(bool(line.strip()) and line[0] not in "#- " for line in lock.splitlines())


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def remove_unused(home: RunsHome) -> int:
    """Delete built environments that no process uses, and return the freed bytes."""
    root, freed = home.folder("environments"), 0
    used = _running_interpreters()
    for name in sorted(os.listdir(root)):
        path = os.path.join(root, name)
        if name.endswith(".lock") or any(each.startswith(path + os.sep) for each in used):
            continue
        lock = os.open(path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            freed += sum(
                os.lstat(os.path.join(where, each)).st_size
                for where, _, names in os.walk(path)
                for each in names
            )
            shutil.rmtree(path, ignore_errors=True)
        except BlockingIOError:  # the environment is being built
            continue
        finally:
            os.close(lock)
    return freed


def _running_interpreters() -> set[str]:
    """Return all paths in the command lines of this user's processes."""
    found: set[str] = set()
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().decode(errors="replace").split("\0")
            found.update(word for word in words if word.startswith("/"))
    return found
