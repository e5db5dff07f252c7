"""The first program on an agent's place, run from source because the host may not have Farandole.

It makes the driver's Farandole importable and starts ``agent``. Standard library only.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import shutil
import socket
import stat
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

SUFFIXES = (".py", ".typed")
FETCH = 10.0  # seconds without a byte of the archive, for each of the driver's addresses


def digest(name: str) -> str:
    """Return a digest of the sources of an importable package; empty if there is none, or if it
    is in an archive.
    """
    root = folder_of(name)
    if not root:
        return ""
    total = hashlib.sha256()
    for path in sources(root):
        total.update(f"{os.path.relpath(path, root)}\0".encode())
        with open(path, "rb") as file:
            total.update(file.read())
    return total.hexdigest()


def folder_of(name: str) -> str:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return ""
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return places[0] if places and os.path.isdir(places[0]) else ""


def sources(root: str) -> list[str]:
    found = []
    for folder, folders, files in os.walk(root):
        folders.sort()
        found += [os.path.join(folder, name) for name in sorted(files) if name.endswith(SUFFIXES)]
    return found


def cache() -> str:
    """Return the user's cache folder; empty if there is no writable one."""
    folder = os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "farandole"
    )
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError:
        return ""
    return folder if os.access(folder, os.W_OK) else ""


def fetch(addresses: Sequence[str], wanted: Mapping[str, str]) -> bytes:
    """Return the archive from the first of the driver's addresses that provides it.

    Raises OSError or ValueError.
    """
    trouble: Exception = ValueError("no address is known")
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            with (
                socket.create_connection((host.strip("[]"), int(port)), FETCH) as sock,
                sock.makefile("rb") as file,
            ):
                archive = file.read()
            if contents(archive) == wanted:
                return archive
            trouble = ValueError(f"{address} sent a different package than the driver's")
        except (OSError, zipfile.BadZipFile) as error:
            trouble = error
    raise trouble


def contents(archive: bytes) -> dict[str, str]:
    """Return the digest of each package in the archive.

    An entry that ``digest`` ignores is listed under its own name.
    """
    totals: dict[str, Any] = {}
    with zipfile.ZipFile(io.BytesIO(archive)) as packed:
        for entry in packed.namelist():
            name, _, path = entry.partition("/")
            total = totals.setdefault(name if path.endswith(SUFFIXES) else entry, hashlib.sha256())
            total.update(f"{path}\0".encode() + packed.read(entry))
    return {name: total.hexdigest() for name, total in totals.items()}


def provide(
    archive: bytes, wanted: Mapping[str, str], home: str = ""
) -> tuple[str, dict[str, str]]:
    """Unpack the driver's packages in ``home`` if any package here differs.

    Returns the folder and the packages that differ, with their location ("" if not installed); ("",
    {}) if all packages are the driver's.
    """
    odd = {}
    for name, sum_ in wanted.items():
        if digest(name) != sum_:
            odd[name] = folder_of(name)
    if not odd:
        return "", {}
    trouble = []
    # a home directory may be full or over its quota
    for place in filter(None, (home, _temporary())):
        try:
            return _unpacked(archive, place), odd
        except OSError as error:
            trouble.append(f"{place} ({error.strerror or error})")
    raise OSError(
        f"Farandole cannot be unpacked to {' or '.join(trouble)}: free space there, or set TMPDIR"
    )


def _temporary() -> str:
    """Return Spark's own folder, which Spark empties, or the system's temporary folder; empty
    if none is writable.
    """
    try:
        return (os.environ.get("SPARK_LOCAL_DIRS") or tempfile.gettempdir()).split(",")[0]
    except OSError:
        return ""


def _unpacked(archive: bytes, home: str) -> str:
    """Return the folder in ``home`` with the unpacked archive. Raises OSError, leaving nothing
    behind.
    """
    folder = os.path.join(
        home, f"farandole-{hashlib.sha256(archive).hexdigest()[:16]}-{os.getuid()}"
    )
    if _is_ours(folder):
        return folder
    os.makedirs(home, exist_ok=True)
    fresh = tempfile.mkdtemp(prefix="farandole-", dir=home)
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as packed:
            packed.extractall(fresh)
    except OSError:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    try:
        os.rename(fresh, folder)  # another task of this host may do the same
    except OSError:
        if not _is_ours(folder):  # another user's folder is not trusted
            return fresh
        shutil.rmtree(fresh)
    return folder


def _is_ours(folder: str) -> bool:
    """Return whether the folder exists and only this user can write to it."""
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    return (
        stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
    )


def prefer(folder: str, names: list[str]) -> None:
    """Import ``names`` from ``folder`` from now on, even if they are already imported."""
    if folder in sys.path:
        sys.path.remove(folder)
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    for name in list(sys.modules):
        if name.partition(".")[0] in names:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if not file.startswith(folder + os.sep):
                del sys.modules[name]


def main(archive: bytes, wanted: Mapping[str, str], task: Mapping[str, Any]) -> None:
    """Run the agent of this place; for ``task`` see ``agent.Agent``."""
    folder, odd = provide(archive, wanted)
    if folder:
        prefer(folder, list(wanted))
    from farandole.job.launch.agents.agent import Agent

    Agent(task, folder, odd).run()


def begin(task: Mapping[str, Any]) -> int:
    """Run an agent that was started by the cluster's own command (``task.main``), and return its
    status.

    The agent fetches packages that are missing.
    """
    folder, odd = "", dict[str, str]()
    wanted = task["wanted"]
    if any(digest(name) != sum_ for name, sum_ in wanted.items()):
        try:
            folder, odd = provide(fetch(task["packages"], wanted), wanted, cache())
        except (OSError, ValueError) as error:
            here, there = socket.gethostname(), folder_of("farandole") or "none"
            sys.stderr.write(
                f"farandole: {here} does not have the driver's version of Farandole (installed:"
                f" {there}) and cannot fetch it ({error}): install that version there, or open"
                " the firewall for it\n"
            )
            return 1
        prefer(folder, list(wanted))
    from farandole.job.launch.agents.task import main

    return main(task, folder, odd)
