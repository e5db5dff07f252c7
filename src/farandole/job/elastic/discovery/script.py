"""Discovery by a program that prints hosts, as with Horovod's ``--host-discovery-script``."""

from __future__ import annotations

import os
import shlex

from farandole.errors import SettingsError
from farandole.job.elastic.discovery.contract import Hosts, parse_host

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
            done = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
        except PermissionError as error:
            raise SettingsError(
                f"the host discovery script {self._command!r} cannot be executed ({error}). Run:"
                f" chmod +x {self._command}"
            ) from None
        except (OSError, ValueError, IndexError, subprocess.TimeoutExpired) as error:
            raise SettingsError(
                f"the host discovery script {self._command!r} failed: {error}"
            ) from None
        if done.returncode:
            raise SettingsError(
                f"the host discovery script {self._command!r} ended with exit code"
                f" {done.returncode}: {done.stderr.strip()[-500:] or 'it printed no error'}"
            )
        return done.stdout


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
