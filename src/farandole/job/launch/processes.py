"""The ranks of one host as processes below a reaper, seen from the process that started them."""

from __future__ import annotations

import contextlib
import errno
import marshal
import math
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from farandole.base.types import Slot
from farandole.errors import SettingsError, counted
from farandole.job.launch.limits import check_proc, cure

if TYPE_CHECKING:
    import subprocess

# As a module, it is loaded from its bytecode; as a script, Python would compile it for every job.
REAPER = "import sys; sys.path.append(sys.argv[1]); import reaper; reaper.main()"
MARK = "FARANDOLE_REAPER"  # the variable by which processes are found whose reaper was killed
COMMAND = 100  # characters of a command line that are shown
STATES = {
    "R": "computes",
    "S": "waits (for input, a lock, the network or a clock)",
    "D": "waits for a disk or a file system",
    "T": "was stopped by a signal (SIGCONT lets it go on)",
    "t": "is held by a debugger",
    "Z": "has ended",
}
PATIENCE = 1.0  # seconds in which a reaper ends that has nothing left to do


def start_ranks(
    slots: Sequence[Slot],
    command: Sequence[str],
    env: Mapping[str, str],
    envs: Sequence[Mapping[str, str]] | None = None,
    cwd: str = "",
) -> list[LocalWorker]:
    """One process per slot, below a reaper of their own, in the folder ``cwd`` (default: here).
    ``envs``: variables of each, beside ``env``. SettingsError says how many could be started; then
    none is left.
    """
    check_proc()
    token = os.urandom(16).hex()
    # An environment may hold "=text", whose name is empty, and Python starts nothing with that.
    base, pipes = {name: text for name, text in {**env, MARK: token}.items() if name}, _Pipes()
    handle = Reaper(f"{MARK}={token}", cwd)
    try:
        places = []
        for slot, more in zip(slots, envs or [{}] * len(slots), strict=True):
            own = {
                **more,
                "FARANDOLE_RANK": str(slot.rank),
                "FARANDOLE_LOCAL_RANK": str(slot.local_rank),
            }
            places.append((list(command), own, pipes.open(), pipes.open()))
        pids = handle.start(base, places, pipes.writers)
    except OSError as error:
        pipes.close(pipes.readers)
        raise SettingsError(
            f"{counted(len(slots), 'rank')} could not be started, only {handle.started}:"
            f" {error}{cure(error)}"
        ) from error
    finally:
        pipes.close(pipes.writers)
    outputs = zip(pipes.readers[::2], pipes.readers[1::2], strict=True)
    return [
        LocalWorker(slot, handle, index, pid, *output)
        for index, (slot, pid, output) in enumerate(zip(slots, pids, outputs, strict=True))
    ]


class _Pipes:
    def __init__(self) -> None:
        self.readers: list[int] = []
        self.writers: list[int] = []

    def open(self) -> int:
        """A new pipe's end to write to."""
        reader, writer = os.pipe()
        self.readers.append(reader)
        self.writers.append(writer)
        return writer

    def close(self, ends: list[int]) -> None:
        while ends:
            os.close(ends.pop())


class LocalWorker:
    """One rank's process and its descendants."""

    def __init__(
        self, slot: Slot, handle: Reaper, index: int, pid: int, stdout: int, stderr: int
    ) -> None:
        self.slot = slot
        self.pid = pid
        self.stdout: int | None = stdout  # closed by their reader
        self.stderr: int | None = stderr
        self._reaper = handle
        self._index = index

    @property
    def ended(self) -> float:
        return self._reaper.times.get(self._index, math.inf)

    def poll(self) -> int | None:
        return self._reaper.code(self._index)

    def alive(self) -> bool:
        """Is the rank running, or anything of the job? (Processes that ranks leave behind belong to
        all of them.)
        """
        return self.poll() is None or self._reaper.has_left()

    def activity(self) -> str:
        try:
            with open(f"/proc/{self.pid}/stat") as file:
                state = file.read().rpartition(")")[2].split()[0]
            with open(f"/proc/{self.pid}/cmdline") as file:
                command = file.read().replace("\0", " ").strip()
        except (OSError, ValueError):
            return ""
        if "-m farandole.job.worker" in command:
            return (
                f"process {self.pid} has not started the program yet, or runs a function that has"
                " not called init()"
            )
        command = command if len(command) <= COMMAND else f"{command[:COMMAND]}..."
        return f"process {self.pid} ({command}) {STATES.get(state, 'runs')}"

    def signal(self, number: int) -> None:
        self._reaper.pass_on(self._index, number)

    def terminate(self) -> None:
        self._reaper.signal(self._index, signal.SIGTERM)

    def kill(self) -> None:
        self._reaper.signal(self._index, signal.SIGKILL)


class Reaper:
    """The driver's end of a reaper's pipes. ``mark`` (NAME=value) is in the environment of all its
    ranks.
    """

    def __init__(self, mark: str, cwd: str = "") -> None:
        self.started = 0
        # when codes were told, which the reaper does in the order of the ends
        self.times: dict[int, float] = {}
        self._cwd = cwd
        self._mark = mark
        self._codes: dict[int, int] = {}
        self._text = b""
        self._gone = False
        self._lost = False
        self._process: subprocess.Popen[bytes] | None = None

    def start(
        self,
        base: Mapping[str, str],
        places: Sequence[tuple[list[str], dict[str, str], int, int]],
        keep: Sequence[int],
    ) -> list[int]:
        """The pids of the ranks. OSError when they cannot be started: none is left then, and
        ``started`` says how many there were.
        """
        # here, so that a worker that asks for its surroundings does not pay for it
        import subprocess

        from farandole.job.launch import reaper  # now, so that its bytecode is up to date

        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-c", REAPER, os.path.dirname(reaper.__file__)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=keep,
            cwd=self._cwd or None,
        )
        frame = marshal.dumps((dict(base), list(places)))
        with contextlib.suppress(BrokenPipeError):  # it has ended; it may have said why
            self._write(len(frame).to_bytes(8, "little") + frame)
        answer = self._first_line()
        verb, *numbers = answer.split() or [b"failed", b"0", b"%d" % errno.ECHILD]
        if verb == b"started":
            self.started = len(numbers)
            return [int(pid) for pid in numbers]
        self.started, number = (int(word) for word in numbers)
        self._end()
        raise OSError(number, os.strerror(number), places[0][0][0])

    def code(self, index: int) -> int | None:
        """The exit code of a rank (negative: the signal), None while it runs."""
        self._listen()
        if self._lost:
            # which ranks get when their parent dies
            return self._codes.setdefault(index, -signal.SIGTERM)
        return self._codes.get(index)

    def has_left(self) -> bool:
        """Does anything run that the ranks have started?"""
        from farandole.job.launch import reaper

        self._listen()
        return not self._gone and (self._process is not None or bool(reaper.marked(self._mark)))

    def pass_on(self, index: int, number: int) -> None:
        """Send a signal that is not to end it to the process of a rank."""
        with contextlib.suppress(OSError):
            self._write(f"send {int(number)} {index}\n".encode())

    def signal(self, index: int, number: int) -> None:
        """SIGTERM or SIGKILL, to a rank and all below it."""
        if self._lost and self._process is None:  # its guard was killed, too
            from farandole.job.launch import reaper

            for pid, seen in reaper.marked(self._mark).items():
                reaper.send(pid, seen, number)
        elif not self._gone:
            with contextlib.suppress(OSError):
                self._write(f"{'kill' if number == signal.SIGKILL else 'term'} {index}\n".encode())

    def _write(self, data: bytes) -> None:
        if self._process is not None and self._process.stdin is not None:
            view = memoryview(data)
            while view:
                view = view[os.write(self._process.stdin.fileno(), view) :]

    def _first_line(self) -> bytes:
        """Waits for it; empty if the reaper has ended."""
        assert self._process is not None
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        while b"\n" not in self._text:
            data = os.read(fd, 65536)
            if not data:
                return b""
            self._text += data
        os.set_blocking(fd, False)
        line, _, self._text = self._text.partition(b"\n")
        return line

    def _listen(self) -> None:
        """Take the reaper's messages."""
        if self._process is None or self._process.stdout is None:
            return
        try:
            data = os.read(self._process.stdout.fileno(), 65536)
        except BlockingIOError:
            data = None
        if data:
            self._text += data
        *lines, self._text = self._text.split(b"\n")
        for line in lines:
            verb, *numbers = line.split()
            if verb == b"exit":
                self._codes[int(numbers[0])] = int(numbers[1])
                self.times[int(numbers[0])] = time.monotonic()
            elif verb == b"lost":
                self._lost = True  # somebody killed it
            elif verb == b"gone":
                self._gone = True
        if self._gone or data == b"":
            self._lost = self._lost or not self._gone
            self._end()

    def _end(self) -> None:
        """Of the reaper itself."""
        process, self._process = self._process, None
        if process is None:
            return
        import subprocess

        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
