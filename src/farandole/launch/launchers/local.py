"""Processes of this machine: each rank in a session of its own, watched over by a nanny."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from farandole.config import knobs
from farandole.errors import SettingsError
from farandole.launch import nanny
from farandole.types import Slot

if TYPE_CHECKING:
    import subprocess


class Local:
    """The launcher for this machine."""

    name: ClassVar[str] = "local"

    def affinity(self) -> int:
        return 1

    def start(self, slots: Sequence[Slot], command: Sequence[str], env: Mapping[str, str]) -> Sequence[LocalWorker]:
        for slot in slots:
            if not _is_here(slot.host):
                raise SettingsError(
                    f"the local launcher starts processes on this machine only, and {slot.host!r} is not a name of it "
                    f"(localhost, {socket.gethostname()})"
                )
        # Settings in our own environment have been read already and are part of env where they matter.
        known = {name for each in knobs() for name in (each.variable, each.horovod) if name}
        base = {name: value for name, value in os.environ.items() if name not in known}
        watcher = Nanny(f"FARANDOLE_STORE={env['FARANDOLE_STORE']}")
        workers: list[LocalWorker] = []
        try:
            for slot in slots:
                who = {"FARANDOLE_RANK": str(slot.rank), "FARANDOLE_LOCAL_RANK": str(slot.local_rank)}
                workers.append(LocalWorker(slot, command, {**base, **env, **who}, watcher))
            watcher.start(worker.group for worker in workers)
        except OSError as error:
            for worker in workers:
                worker.abandon()
            watcher.end()
            raise SettingsError(f"{len(slots)} ranks could not be started, only {len(workers)}: {error}") from error
        return workers

    def where_am_i(self, env: Mapping[str, str]) -> tuple[int, int]:
        return int(env["FARANDOLE_RANK"]), int(env["FARANDOLE_LOCAL_RANK"])


def _is_here(host: str) -> bool:
    if host in ("localhost", socket.gethostname()) or host.startswith("127."):
        return True
    import psutil

    return any(host == each.address for network in psutil.net_if_addrs().values() for each in network)


class LocalWorker:
    """One rank's process and whatever it starts in its process group."""

    def __init__(self, slot: Slot, command: Sequence[str], env: Mapping[str, str], watcher: Nanny) -> None:
        import subprocess  # here, so that a worker that asks where_am_i does not pay for it

        self.slot = slot
        self._watcher = watcher
        self._gone = False
        pipes: list[int] = []
        try:
            pipes += os.pipe()
            pipes += os.pipe()
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=pipes[1], stderr=pipes[3], start_new_session=True
            )
        except OSError:
            for each in pipes[::2]:
                os.close(each)
            raise
        finally:
            for each in pipes[1::2]:
                os.close(each)
        self.stdout: int | None = pipes[0]  # closed by whoever reads them
        self.stderr: int | None = pipes[2]
        self.group = self._process.pid

    def poll(self) -> int | None:
        return self._process.poll()

    def alive(self) -> bool:
        """Is anything left of the process or of what it started?"""
        if not self._gone and self.poll() is not None:
            # The leader is reaped; its number stays taken as long as the group has members.
            self._gone = not (nanny.signal_group(self.group, 0) and nanny.members({self.group}))
            if self._gone:
                self._watcher.forget(self.group)
        return not self._gone

    def terminate(self) -> None:
        if self.alive():
            nanny.signal_group(self.group, signal.SIGTERM)

    def kill(self) -> None:
        if self.alive():
            nanny.signal_group(self.group, signal.SIGKILL)
        self._watcher.untidy = True

    def abandon(self) -> None:
        """Undo the start, when the job cannot begin."""
        self.kill()
        self._process.wait()
        for fd in (self.stdout, self.stderr):
            if fd is not None:
                os.close(fd)


class Nanny:
    """The driver's end of the nanny's pipe. It says goodbye when the last group is gone."""

    def __init__(self, mark: str) -> None:
        self.untidy = False  # something had to be killed, so processes that left their group may be about
        self._mark = mark
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, groups: Iterable[int]) -> None:
        import subprocess

        self._groups = set(groups)
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", nanny.__file__, self._mark],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self._say("".join(f"+{group}\n" for group in self._groups))

    def forget(self, group: int) -> None:
        if group in self._groups:
            self._groups.discard(group)
            self._say(f"-{group}\n")
        if not self._groups:
            self.end()

    def end(self) -> None:
        if self.untidy:
            nanny.sweep(self._mark)
        if self._process is not None and self._process.stdin is not None:
            self._say("bye\n")
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            self._process.wait()
            self._process = None

    def _say(self, words: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):  # somebody killed it; the workers still die with their parent
                self._process.stdin.write(words.encode())
                self._process.stdin.flush()
