"""Discovery by a program that prints hosts, as with Horovod's ``--host-discovery-script``."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from farandole.errors import SettingsError
from farandole.job.elastic.discovery.contract import Hosts, parse_host

if TYPE_CHECKING:
    import subprocess

PATIENCE = 60.0  # seconds for one run of the script


class ScriptDiscovery:
    """Hosts that a script prints, one per line: ``host`` or ``host:slots``.

    ``command``: the path of an executable file, with its arguments, if any. ``slots``: the number
    for lines without one; None for no default. The MPI operator's ``/etc/mpi/discover_hosts.sh``
    is such a script. ``find`` raises SettingsError if the script fails, or runs for more than
    ``PATIENCE`` seconds.
    """

    def __init__(self, command: str, slots: int | None = None) -> None:
        # A path that contains blanks is one word.
        self._words = [command] if os.path.exists(command) else shlex.split(command)
        self._slots = slots
        self._command = command
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def close(self) -> None:
        """End the script and its child processes, and refuse further runs."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                _kill_group(self._process.pid)

    def reopened(self) -> ScriptDiscovery:
        return ScriptDiscovery(self._command, self._slots)

    def describe(self) -> str:
        return f"the script {self._command}"

    def find(self) -> Hosts:
        return parse_lines(self._run(), self._slots, self.describe())

    def _run(self) -> str:
        import subprocess  # imported here because other discoveries start no program

        words = self._words
        if words and os.path.dirname(words[0]) == "" and os.path.isfile(words[0]):
            words = [os.path.join(".", words[0]), *words[1:]]  # as with horovodrun
        try:
            code, out, err = self._communicate(words)
        except PermissionError as error:
            raise SettingsError(
                f"the host discovery script {self._command!r} cannot be executed ({error}). Run:"
                f" chmod +x {self._command}"
            ) from None
        except (OSError, ValueError, IndexError, subprocess.TimeoutExpired) as error:
            raise SettingsError(
                f"the host discovery script {self._command!r} failed: {error}"
            ) from None
        if code:
            raise SettingsError(
                f"the host discovery script {self._command!r} ended with exit code {code}:"
                f" {err.strip()[-500:] or 'it printed no error'}"
            )
        return out

    def _communicate(self, words: Sequence[str]) -> tuple[int, str, str]:
        """Run the script; return its exit code and its output. Raises TimeoutExpired after
        ``PATIENCE`` seconds.
        """
        import subprocess

        with self._lock:
            if self._closed:
                raise SettingsError(f"{self.describe()} was ended together with the job")
            # A separate session, so that the script can be ended together with its child processes.
            process = self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        try:
            out, err = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            _kill_group(process.pid)
            process.communicate()
            raise
        finally:
            with self._lock:
                self._process = None
        return process.returncode, out.decode(), err.decode(errors="replace")


def _kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def parse_lines(text: str, slots: int | None, source: str) -> Hosts:
    """Parse lines like ``host`` or ``host:slots``. Slots of a repeated host are added up; empty
    lines and lines that begin with ``#`` are skipped.

    ``slots`` and ``source``: see ``parse_host``. Raises SettingsError for any other line.
    """
    hosts: Hosts = {}
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            host, count = parse_host(line.strip(), slots, source)
            hosts[host] = hosts.get(host, 0) + count
    return {host: count for host, count in hosts.items() if count}
