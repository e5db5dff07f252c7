"""The output of the ranks: merged line by line, prefixed with rank and stream, and kept in
files on request.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import fcntl
import functools
import itertools
import os
import re
import time
from collections.abc import Callable, Collection
from typing import TextIO

from farandole.base.descriptors import write_all
from farandole.base.log import logger
from farandole.errors import SettingsError
from farandole.job.launch.display import OutputFiles

LONGEST = 1 << 20  # maximum characters of an unfinished line that are buffered
TAIL = 8 << 10
TAIL_LINES = 20
# Seconds for which a traceback is held back; if its rank ends, the driver shows the traceback once.
HOLD = 2.0
HOLD_LIMIT = 64 << 10
_TRACEBACK = (  # an error, an exception group or a syntax error
    r"(?m)^(?:Traceback \(most recent call last\):|  \+ Exception Group Traceback \(most|  File"
    r" \".*\", line \d+)"
)
_RANK = r"(rank|server)\.\d+$"
_PIECES = r"[^\r\n]*[\r\n]"
Key = tuple[int, str]


class Lines:
    """The text of one stream: bytes in as they arrive, finished pieces out.

    A piece ends with a newline or a carriage return, or is cut after LONGEST characters.
    """

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest = ""
        self.tail = ""
        self.fed = 0.0  # time of the last bytes
        self.returned = False  # the last piece ended with a carriage return

    def feed(self, data: bytes) -> str:
        """Return all text up to the end of the last finished piece."""
        self.fed = time.monotonic()
        text = self._decode(data)
        self.tail = (self.tail + text)[-TAIL:]
        text = self._rest + text
        end = max(text.rfind("\n"), text.rfind("\r")) + 1
        if len(text) - end > LONGEST:
            end = len(text)
        self._rest = text[end:]
        if end:
            self.returned = text[end - 1] == "\r"
        return text[:end]

    def take(self) -> str:
        """Return the unfinished line, because the stream has ended or paused."""
        rest, self._rest = self._rest, ""
        return rest

    @property
    def pending(self) -> bool:
        return bool(self._rest)


class Console:
    """A text stream shared by several ranks.

    The console remembers which rank's unfinished line is shown, so that a progress bar overwrites
    itself. On a terminal the bars of several ranks take turns on one line; elsewhere each turn is a
    separate line.
    """

    def __init__(self, sink: TextIO) -> None:
        self.sink = sink
        self.muted = False
        self.broken = False  # the reader of the stream has gone
        self.terminal = is_terminal(sink)
        self._open: Key | None = None
        self._returned = False  # the unfinished line ended with a carriage return
        self._bar = ""  # the unfinished line, if it is a progress bar
        self._erased: dict[Key, str] = {}  # bars erased to make room for another rank's line

    def write(self, key: Key, prefix: str, text: str, progress: bool = False) -> None:
        """Write ``text``, which consists of pieces; only the last may be unfinished.

        ``progress``: the last piece is a progress bar.
        """
        if self._open != key and not text.strip("\r"):
            return  # a return to the start of a line that is not shown
        parts: list[str] = []
        if self._open is not None and self._open != key:
            parts.append(self._make_room(self._open))
        if key in self._erased:
            bar = self._erased.pop(key)
            text = bar + text if text[0] == "\n" else text
        bar = _last_bar(text, progress) or (self._bar if self._open == key and text == "\r" else "")
        if self._open == key:
            if self._returned and text[0] == "\n":
                parts.append("\n")  # a "\r\n" split between two writes
                text = text[1:]
            elif not self._returned:
                end = _first_end(text)
                parts.append(text[:end])
                text = text[end:]
        parts.append(_prefixed(prefix, text))
        self._bar = bar
        self._emit(key, "".join(parts))

    def _make_room(self, owner: Key) -> str:
        """Return the text that frees the line of ``owner``'s unfinished text for another rank."""
        self._open = None
        if not (self.terminal and self._bar):
            return "\n"
        self._erased[owner] = self._bar
        return "\r\x1b[2K"

    def finish(self) -> None:
        """End an unfinished line."""
        if self._open is not None:
            self._emit(self._open, "\n")

    @property
    def at_line_start(self) -> bool:
        return self._open is None

    def _emit(self, key: Key, text: str) -> None:
        if not text:
            return
        self._open = None if text.endswith("\n") else key
        self._returned = text.endswith("\r")
        if self.muted:
            return
        try:
            try:
                self.sink.write(text)
            except UnicodeEncodeError:
                encoding = getattr(self.sink, "encoding", None) or "ascii"
                self.sink.write(text.encode(encoding, "replace").decode(encoding))
            self.sink.flush()
        except BrokenPipeError:
            self.muted = True
            self.broken = True
        except (OSError, ValueError) as error:
            self.muted = True
            logger.warning("output can no longer be shown: %s; the job continues", error)


def _prefixed(prefix: str, text: str) -> str:
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    if "\r" in text:
        pieces = re.findall(_PIECES, text)
        pieces.append(text[sum(map(len, pieces)) :])
        return "".join(prefix + piece for piece in pieces if piece not in ("", "\r"))
    if not text:
        return ""
    body = text.removesuffix("\n")
    return prefix + body.replace("\n", "\n" + prefix) + text[len(body) :]


def _last_bar(text: str, progress: bool) -> str:
    """Return the unfinished line at the end of ``text`` if it is a progress bar, i.e. next to a
    carriage return.
    """
    line = text.rsplit("\n", 1)[-1]
    if not (progress or line.endswith("\r")):
        return ""
    return line.rstrip("\r").rsplit("\r", 1)[-1]


def _first_end(text: str) -> int:
    found = re.match(_PIECES, text)
    return found.end() if found else len(text)


class OutputFolder:
    """Output files ``DIR/rank.<number>/stdout`` and ``stderr``, without prefixes.

    Output of an older run is moved to a folder in the same directory, named after that run's time.
    While another job writes there, this job uses such a folder itself. ``notes`` report both. A
    full disk causes one warning and does not end the job.
    """

    def __init__(self, directory: str, size: int) -> None:
        self._directory = directory
        self._width = len(str(size - 1))
        self._files: dict[Key, int] = {}
        self._warned = False
        self._claim = -1
        self.notes: list[str] = []
        self._try(self._begin)
        for rank in range(size):
            self._try(functools.partial(self._open, rank))

    def _begin(self) -> None:
        directory = self._directory
        if not os.path.exists(directory):
            os.makedirs(directory, exist_ok=True)  # another job may be creating it at this moment
        self._claim = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if not claimed(self._claim):
            self._directory = new_folder(directory, time.time())
            self.notes.append(
                f"another job is writing to {directory}; the output of this one is in"
                f" {self._directory}"
            )
        elif moved := put_aside(directory):
            self.notes.append(f"{directory} held the output of an older run, now in {moved}")

    def add(self, rank: int, name: str) -> None:
        """Add the files of a process that is not a rank."""
        self._try(functools.partial(self._open, rank, name))

    def _open(self, rank: int, name: str = "") -> None:
        folder = os.path.join(self._directory, name or f"rank.{rank:0{self._width}d}")
        os.makedirs(folder, exist_ok=True)
        for stream in ("stdout", "stderr"):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            self._files[rank, stream] = os.open(os.path.join(folder, stream), flags, 0o666)

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                self.close()
                raise SettingsError(
                    f"--output-dir={self._directory!r} cannot be used: {error.strerror}"
                    f" ({error.filename}); name a writable directory"
                ) from error
            self._warn(error)

    def write(self, key: Key, data: bytes) -> None:
        file = self._files.get(key)
        if file is None:
            return
        try:
            write_all(file, data)
        except OSError as error:
            self._warn(error)
            os.close(self._files.pop(key))

    def close(self) -> None:
        while self._files:
            os.close(self._files.popitem()[1])
        if self._claim >= 0:
            os.close(self._claim)
            self._claim = -1

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "output under %s is incomplete from here on: %s; the job continues",
                self._directory,
                error.strerror,
            )


def claimed(folder: int) -> bool:
    """Lock the open folder until it is closed; return whether no other process has locked it.

    A file system without locks counts as unlocked.
    """
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EACCES, errno.EAGAIN)
    return True


def new_folder(directory: str, when: float) -> str:
    """Create a new folder ``DIR/run-<when>`` and return its path."""
    began = time.strftime("run-%Y-%m-%d_%H.%M.%S", time.localtime(when))
    for number in itertools.count():
        path = os.path.join(directory, f"{began}.{number}" if number else began)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
            return path
    raise AssertionError


def put_aside(directory: str) -> str:
    """Move the logs of an older run, if any, to ``DIR/run-<its start>``; return that path or an
    empty string.
    """
    names = os.listdir(directory) if os.path.isdir(directory) else []
    folders = [os.path.join(directory, name) for name in names if re.match(_RANK, name)]
    files = [os.path.join(folder, name) for folder in folders for name in ("stdout", "stderr")]
    if not any(os.path.isfile(file) and os.path.getsize(file) for file in files):
        return ""
    aside = new_folder(directory, min(map(os.path.getmtime, folders)))
    for folder in folders:
        os.rename(folder, os.path.join(aside, os.path.basename(folder)))
    return aside


class OutputStreams:
    """All output streams of a job, on their way to the console and to files."""

    def __init__(
        self,
        size: int,
        out: TextIO,
        err: TextIO,
        *,
        messages: TextIO | None = None,
        directory: str | None = None,
        files: OutputFiles | None = None,
        timestamp: bool = False,
        shown: Collection[int] | None = None,
    ) -> None:
        self._files = [] if files is None else [files]
        if directory:
            self._files.append(OutputFolder(directory, size))
        # messages about the location of files
        self.notes = [note for each in self._files for note in each.notes]
        self._servers: dict[int, str] = {}  # labels of processes that are not ranks
        self._lines: dict[Key, Lines] = {
            (rank, name): Lines() for rank in range(size) for name in ("stdout", "stderr")
        }
        self._timestamp = timestamp
        self._shown = None if shown is None else frozenset(shown)
        self.out = Console(out)
        # out and err on one terminal share its cursor.
        self.err = self.out if out is err or _same_terminal(out, err) else Console(err)
        messages = messages or out
        self.messages = (
            self.out if messages is out or _same_terminal(out, messages) else Console(messages)
        )
        # Per rank: the time and text of a traceback that is held back.
        self._held: dict[int, tuple[float, str]] = {}
        self.ending: set[int] = set()  # failed ranks, whose tracebacks stay held back
        self.before_write: Callable[[], None] = lambda: None  # removes a status line

    def add_rank(self, rank: int) -> None:
        """Add the streams of a process that starts later, if they do not exist."""
        if (rank, "stdout") not in self._lines:
            self._lines |= {(rank, name): Lines() for name in ("stdout", "stderr")}
            for each in self._files:
                each.add(rank, f"rank.{rank}")

    def add_server(self, rank: int, number: int | str) -> None:
        """Add the streams of a parameter server under the number ``rank``, which follows the
        job's ranks. ``number``: the server in prefixes and folders.
        """
        self._servers[rank] = f"server {number}"
        self._lines |= {(rank, name): Lines() for name in ("stdout", "stderr")}
        for each in self._files:
            each.add(rank, f"server.{number}")

    def feed(self, rank: int, name: str, data: bytes) -> None:
        for each in self._files:
            each.write((rank, name), data)
        self._show((rank, name), self._lines[rank, name].feed(data))

    def say(self, text: str) -> None:
        """Show a rank's message to the user, unchanged."""
        self.before_write()
        self.messages.write((-1, "message"), "", f"{text}\n")

    def pause(self, rank: int, name: str) -> None:
        """Show the unfinished line of a stream that has paused or ended."""
        lines = self._lines[rank, name]
        self._show((rank, name), lines.take(), lines.returned)

    def show_stale(self, seconds: float) -> None:
        """Show text that was held back too long.

        This applies to tracebacks of ranks that are still running and, on a terminal, to the
        unfinished line (a prompt, a progress bar) of a rank that pauses.
        """
        now = time.monotonic()
        for rank in [rank for rank, (since, _) in self._held.items() if now - since > HOLD]:
            if rank not in self.ending:
                self._release(rank)
        for (rank, name), lines in self._lines.items():
            if (
                lines.pending
                and now - lines.fed > seconds
                and (self.out if name == "stdout" else self.err).terminal
            ):
                self.pause(rank, name)

    def tails(self) -> dict[int, str]:
        """Return the end of each rank's stderr: its final traceback, or else its last lines."""
        found = {}
        for (rank, name), lines in self._lines.items():
            if rank in self._held:
                found[rank] = self._held[rank][1]
            elif name == "stderr" and lines.tail.strip():
                # Remove overwritten text, as on a terminal.
                text = re.sub(r"[^\n]*\r(?!\n)", "", lines.tail).replace("\r\n", "\n")
                found[rank] = "\n".join(text.rstrip("\n").split("\n")[-TAIL_LINES:])
        return found

    def last_line(self, rank: int) -> str:
        """Return the last line of the rank's output on either stream."""
        latest = max(
            (self._lines[rank, name] for name in ("stdout", "stderr")), key=lambda lines: lines.fed
        )
        return latest.tail.strip().replace("\r", "\n").rsplit("\n", 1)[-1]

    def close(self, drop: Collection[int] = ()) -> None:
        """Show the remaining text, except tracebacks of the ranks in ``drop``. May be called
        twice.
        """
        for key in self._lines:
            self.pause(*key)
        for rank in sorted(self._held):
            if rank in drop:
                del self._held[rank]
            else:
                self._release(rank)
        self.out.finish()
        self.err.finish()
        for each in self._files:
            each.close()

    def _show(self, key: Key, text: str, progress: bool = False) -> None:
        if key[1] == "stderr":
            text = self._hold(key[0], text)
        if text:
            self._write(key, text, progress)

    def _hold(self, rank: int, text: str) -> str:
        """Hold back the text from a traceback on; return the text before it."""
        if rank in self._held:
            since, before = self._held[rank]
            self._held[rank] = since, before + text
            if len(before) + len(text) > HOLD_LIMIT:
                self._release(rank)
            return ""
        found = re.search(_TRACEBACK, text)
        if found is None:
            return text
        self._held[rank] = time.monotonic(), text[found.start() :]
        return text[: found.start()]

    def _release(self, rank: int) -> None:
        self._write((rank, "stderr"), self._held.pop(rank)[1])

    def _write(self, key: Key, text: str, progress: bool = False) -> None:
        hidden = self._shown is not None and key[0] not in self._shown
        if hidden and key[0] not in self._servers:
            return
        self.before_write()
        stamp = time.ctime() if self._timestamp else ""
        console = self.out if key[1] == "stdout" else self.err
        console.write(
            key, f"{stamp}[{self._servers.get(key[0], key[0])}]<{key[1]}>:", text, progress
        )


def is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # closed, or not a standard stream
        return False


def _same_terminal(one: TextIO, other: TextIO) -> bool:
    if not (is_terminal(one) and is_terminal(other)):
        return False
    try:
        return os.ttyname(one.fileno()) == os.ttyname(other.fileno())
    except (OSError, ValueError):
        return False
