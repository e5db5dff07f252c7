"""Copies of a run's folder on hosts that do not share the runner's file system.

Before the ranks start, each such host receives its working directories under the same path. The
metric journals are fetched while the ranks run, and the outputs at the end. Then the copy is
deleted.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO

from farandole.errors import RunError, SettingsError
from farandole.job.config import Settings
from farandole.job.launch.openssh import command, failures, reason
from farandole.job.runs.folder import COMMITS, RunFolder, make_private
from farandole.jobs.targets.ssh import journals
from farandole.net.interfaces import is_here

MARK = "copy"  # a file only in copies; its time is the end of the last transfer to the copy
_AGAIN = 1.0  # seconds before a broken journal connection is reopened

# $1: the run's folder; $2: the name of a file in this folder on the runner's file system; others:
# paths that the host may already have received.
ASK = """
[ -e "$1/$2" ] && echo shared && exit
shift 2
for path; do [ -e "$path.arrived" ] && echo "$path"; done
exit 0
"""
RECEIVE = """
umask 077
run=$1; shift
[ -e "$run/copy" ] && rm -rf "$run"
mkdir -p "$run/work/node-0/source" "$run/outputs" "$run/metrics" && touch "$run/copy" || exit 1
tar -x -f - -C / --no-same-owner || exit 1
for path; do touch "$path.arrived" || exit 1; done
touch "$run/copy"
"""
# Compare ctime, because programs may copy an old mtime to a new file.
RETURN = """
cd "$1" && find outputs $([ -d commits ] && echo commits) \\( -type d -o -cnewer copy \\) -print0 |
tar -c -f - --null --no-recursion -T -
"""
# The commits in a copy of an earlier attempt, whose runner was killed.
COMMITTED = """
cd "$1" 2>/dev/null && [ -e copy ] && [ -d commits ] && exec tar -c -f - commits
tar -c -f - -T /dev/null
"""
DELETE = '[ -e "$1/copy" ] && chmod -R u+rwX "$1/work" && rm -rf "$1"'


@contextlib.contextmanager
def copied(
    hosts: Sequence[str], settings: Settings, folder: RunFolder, paths: Sequence[str]
) -> Iterator[None]:
    """Keep copies of a run on hosts without a shared file system, until the block ends.

    The outputs are fetched even if the block fails. A lost host is recorded as a warning in the
    run's events.

    Args:
        hosts: The host of each node of the run.
        settings: The port, identity and options of ssh.
        folder: The run's folder.
        paths: Other files and folders that the ranks read, such as fetched inputs.

    Raises:
        SettingsError: If a host cannot be reached, or cannot receive its copy.
    """
    remote = [host for host in dict.fromkeys(hosts) if not is_here(host.rpartition("@")[2])]
    copies = [
        HostCopy(host, settings, folder, [node for node, name in enumerate(hosts) if name == host])
        for host in remote
    ]
    copies = _unshared(copies, folder, paths)
    if not copies:
        yield
        return
    folder.record("note", text=f"copied to {', '.join(copy.host for copy in copies)}")
    make_private(folder.file("metrics"))
    for copy in copies:
        copy.follow()
    try:
        yield
    finally:
        # A second SIGTERM must not interrupt the return of the outputs.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for host, why in _all(copies, HostCopy.close).items():
            folder.record("warning", text=f"the outputs on {host} were not fetched: {why}")


def _unshared(
    copies: Sequence[HostCopy], folder: RunFolder, paths: Sequence[str]
) -> list[HostCopy]:
    """Send the run to all hosts that do not see its folder; return these copies."""
    if not copies:
        return []
    token = f".{secrets.token_hex(8)}.shared"
    with open(folder.file(token), "wb") as file:
        os.fsync(file.fileno())
    try:
        _check(_all(copies, lambda copy: copy.query(token, paths)))
    finally:
        os.unlink(folder.file(token))
    found = [copy for copy in copies if not copy.shared]
    if folder.spec().resources.elastic:
        _check(_all(found, HostCopy.fetch_commits))
    _check(_all(found, HostCopy.send))
    return found


def _check(problems: Mapping[str, str]) -> None:
    if problems:
        raise SettingsError(failures(problems))


def _all(copies: Iterable[HostCopy], action: Callable[[HostCopy], None]) -> dict[str, str]:
    """Run an action on all hosts in parallel; return the reasons of failures by host."""

    def result(copy: HostCopy) -> tuple[str, str]:
        try:
            action(copy)
        except (RunError, OSError) as error:
            return copy.host, str(error)
        return copy.host, ""

    copies = list(copies)
    with ThreadPoolExecutor(max(1, min(32, len(copies)))) as pool:
        return {host: why for host, why in pool.map(result, copies) if why}


class HostCopy:
    """The copy of a run on one host; ``nodes``: the numbers of the run's nodes on this host."""

    def __init__(
        self, host: str, settings: Settings, folder: RunFolder, nodes: Sequence[int]
    ) -> None:
        self.host = host
        self.shared = False
        self._settings = settings
        self._folder = folder
        self._nodes = nodes
        self._missing: list[str] = []
        self._offsets: dict[str, int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"copy-{host}", daemon=True)
        self._lock = threading.Lock()
        self._session: subprocess.Popen[bytes] | None = None

    def query(self, token: str, paths: Sequence[str]) -> None:
        """Query whether the host sees the run's folder, and which paths it has already received.

        Raises RunError if ssh fails.
        """
        lines = self._run(ASK, token, *paths).decode().splitlines()
        self.shared = "shared" in lines
        self._missing = [path for path in paths if path not in lines]

    def send(self) -> None:
        """Send the working directories, the outputs and commits so far, and the paths that the host
        lacks.
        """
        names = [f"work/node-{node}" for node in self._nodes]
        names += ["work/inputs", "outputs", COMMITS]
        own = [self._folder.file(*name.split("/")) for name in names]
        paths = [path for path in (*own, *self._missing) if os.path.lexists(path)]
        packed = subprocess.Popen(
            ["tar", "-c", "-f", "-", "-C", "/", "--", *(path.lstrip("/") for path in paths)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        with packed:
            self._run(RECEIVE, *self._missing, stdin=packed.stdout)
        if packed.returncode:
            raise RunError(f"tar could not pack the run (status {packed.returncode})")

    def follow(self) -> None:
        """Start fetching the journals of metrics, about once a second."""
        self._thread.start()

    def close(self) -> None:
        """Fetch the rest of the journals, the outputs and the commits, then delete the copy.

        Raises RunError if the host is lost. Then its copy remains.
        """
        self._over.set()
        with self._lock:
            if self._session is not None and self._session.stdin is not None:
                self._session.stdin.close()
        self._thread.join()
        self._receive_journals()  # the session may have ended early
        self._fetch(RETURN)
        self._run(DELETE)

    def fetch_commits(self) -> None:
        """Fetch the commits left on the host by an earlier attempt. Raises RunError if the host is
        lost.
        """
        self._fetch(COMMITTED)

    def _fetch(self, script: str) -> None:
        """Run a script on the host, and unpack the archive that it prints into the run's folder."""
        source = subprocess.Popen(
            self._command(script),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert source.stdout is not None
        assert source.stderr is not None
        unpacked = subprocess.run(
            ["tar", "-x", "-f", "-", "-C", self._folder.path, "--no-same-owner"],
            stdin=source.stdout,
            capture_output=True,
            text=True,
            check=False,
        )
        source.stdout.close()
        with source:
            problem = source.stderr.read().decode(errors="replace")
        if source.returncode:
            raise RunError(reason(self.host, source.returncode, problem))
        if unpacked.returncode:
            raise RunError(unpacked.stderr.strip())

    def _follow(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(OSError, RunError):
                self._receive_journals()
            self._over.wait(_AGAIN)

    def _receive_journals(self) -> None:
        """Append new bytes to the journals until the session ends. Raises RunError if the session
        breaks.
        """
        words = [json.dumps(self._offsets)]
        with self._lock:
            session = subprocess.Popen(
                command(
                    self.host,
                    self._settings,
                    journals.program(sys.executable, self._metrics, *words),
                ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            self._session = session
            assert session.stdin is not None
            if self._over.is_set():
                session.stdin.close()
        assert session.stdout is not None
        assert session.stderr is not None
        for name, data in journals.received(session.stdout):
            self._append(name, data)
        problem = session.stderr.read().decode(errors="replace")
        session.stdout.close()
        session.stderr.close()
        if code := session.wait():
            raise RunError(reason(self.host, code, problem))

    @property
    def _metrics(self) -> str:
        return self._folder.file("metrics")

    def _append(self, name: str, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(os.path.join(self._metrics, os.path.basename(name)), flags, 0o600)
        with open(descriptor, "ab") as file:
            file.write(data)
        self._offsets[name] = self._offsets.get(name, 0) + len(data)

    def _command(self, script: str, *words: str) -> list[str]:
        shell = ["sh", "-c", script, "sh", self._folder.path, *words]
        return command(self.host, self._settings, shell)

    def _run(self, script: str, *words: str, stdin: int | IO[bytes] | None = None) -> bytes:
        """Run a script on the host and return its output. Raises RunError if it fails."""
        done = subprocess.run(
            self._command(script, *words),
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            capture_output=True,
            check=False,
        )
        if done.returncode:
            text = done.stderr.decode(errors="replace")
            raise RunError(reason(self.host, done.returncode, text))
        return done.stdout
