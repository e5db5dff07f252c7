"""The ranks of one host as processes under a reaper, as seen by the process that starts them."""

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
from farandole.job.config import Settings
from farandole.job.launch.limits import check_proc, cure

if TYPE_CHECKING:
    import subprocess

# A module is loaded from its bytecode, whereas Python would compile a script for every job.
REAPER = "import sys; sys.path.append(sys.argv[1]); import reaper; reaper.main()"
MARK = "FARANDOLE_REAPER"  # environment variable that identifies processes whose reaper was killed
COMMAND = 100  # characters of a command line to show
STATES = {
    "R": "computes",
    "S": "is waiting (for input, a lock, the network or a timer)",
    "D": "is waiting for a disk or a file system",
    "T": "is stopped by a signal (SIGCONT resumes it)",
    "t": "is stopped by a debugger",
    "Z": "has ended",
}
PATIENCE = 1.0  # seconds for an idle reaper to exit


def start_ranks(
    slots: Sequence[Slot],
    command: Sequence[str],
    env: Mapping[str, str],
    envs: Sequence[Mapping[str, str]] | None = None,
    cwd: str = "",
) -> list[LocalWorker]:
    """Start one process per slot under a new reaper, in the folder ``cwd`` (default: the current
    one).

    ``envs`` are variables per process, added to ``env``. Raises SettingsError with the number of
    started processes if not all could be started; these are ended first.
    """
    check_proc()
    token = os.urandom(16).hex()
    # An environment may contain "=text", with an empty name, which Python cannot pass to a process.
    base, pipes = {name: text for name, text in {**env, MARK: token}.items() if name}, _Pipes()
    handle = Reaper(f"{MARK}={token}", cwd, _grace({**env, **(envs[0] if envs else {})}))
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
            f"only {handle.started} of {counted(len(slots), 'rank')} could be started:"
            f" {error}{cure(error)}"
        ) from error
    finally:
        pipes.close(pipes.writers)
    outputs = zip(pipes.readers[::2], pipes.readers[1::2], strict=True)
    return [
        LocalWorker(slot, handle, index, pid, *output)
        for index, (slot, pid, output) in enumerate(zip(slots, pids, outputs, strict=True))
    ]


def _grace(env: Mapping[str, str]) -> float:
    """Return the grace period of the ranks with these variables, in seconds."""
    return Settings.from_env(env).grace_seconds


class _Pipes:
    def __init__(self) -> None:
        self.readers: list[int] = []
        self.writers: list[int] = []

    def open(self) -> int:
        """Create a pipe and return its write end."""
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
        self.stdout: int | None = stdout  # closed by the reader
        self.stderr: int | None = stderr
        self._reaper = handle
        self._index = index

    @property
    def ended(self) -> float:
        return self._reaper.times.get(self._index, math.inf)

    def poll(self) -> int | None:
        return self._reaper.code(self._index)

    def alive(self) -> bool:
        """Return whether the rank is running or the job has processes left.

        Processes that ranks leave behind count for all ranks.
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
        return f"process {self.pid} ({command}) {STATES.get(state, 'is running')}"

    def signal(self, number: int) -> None:
        self._reaper.pass_on(self._index, number)

    def terminate(self) -> None:
        self._reaper.signal(self._index, signal.SIGTERM)

    def kill(self) -> None:
        self._reaper.signal(self._index, signal.SIGKILL)


class Reaper:
    """The driver's end of a reaper's pipes.

    ``mark`` (NAME=value) is in the environment of all its ranks. ``grace`` is the time in seconds
    that they have for ending if the driver is lost.
    """

    def __init__(self, mark: str, cwd: str = "", grace: float = Settings().grace_seconds) -> None:
        self.started = 0
        # Times at which exit codes were reported; the reaper reports them in the order in which
        # ranks ended.
        self.times: dict[int, float] = {}
        self._cwd = cwd
        self._grace = grace
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
        """Start the ranks and return their pids.

        Raises OSError if they cannot be started; then no rank is left, and ``started`` is the
        number of ranks that had started.
        """
        # imported here to keep a worker's placement query fast
        import subprocess

        from farandole.job.launch import reaper  # imported here so that its bytecode is up to date

        command = [sys.executable, "-I", "-S", "-B", "-c", REAPER]
        self._process = subprocess.Popen(
            [*command, os.path.dirname(reaper.__file__), str(self._grace)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=keep,
            cwd=self._cwd or None,
        )
        frame = marshal.dumps((dict(base), list(places)))
        # the reaper has ended, and may have reported why
        with contextlib.suppress(BrokenPipeError):
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
        """Return a rank's exit code (negative: the signal), or None while it runs."""
        self._listen()
        if self._lost:
            # The ranks receive this signal when their parent dies.
            return self._codes.setdefault(index, -signal.SIGTERM)
        return self._codes.get(index)

    def has_left(self) -> bool:
        """Return whether any process that the ranks have started is still running."""
        from farandole.job.launch import reaper

        self._listen()
        return not self._gone and (self._process is not None or bool(reaper.marked(self._mark)))

    def pass_on(self, index: int, number: int) -> None:
        """Send a signal that does not end it to a rank's process."""
        with contextlib.suppress(OSError):
            self._write(f"send {int(number)} {index}\n".encode())

    def signal(self, index: int, number: int) -> None:
        """Ask a rank and then its descendants to end (SIGTERM), or kill all of them (SIGKILL)."""
        if self._lost and self._process is None:  # the guard was killed as well
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
        """Wait for the first line and return it; empty if the reaper has ended."""
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
        """Process pending messages of the reaper."""
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
                self._lost = True  # the reaper was killed
            elif verb == b"gone":
                self._gone = True
        if self._gone or data == b"":
            self._lost = self._lost or not self._gone
            self._end()

    def _end(self) -> None:
        """Clean up after the reaper has ended."""
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
