"""The display of a job for the user who started it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol, TextIO

from farandole.base.types import Slot
from farandole.job.launch.limits import standard


class OutputFiles(Protocol):
    """A place for the output of all ranks, as bytes and without prefixes.

    ``notes`` are messages for the user about that place.
    """

    notes: list[str]

    def add(self, rank: int, name: str) -> None:
        """Add a process that is not a rank, such as ``server.0``, under a number ``rank``."""

    def write(self, key: tuple[int, str], data: bytes) -> None:
        """Store output of a rank and stream (``stdout``, ``stderr``). Must not raise."""

    def close(self) -> None:
        """End the storage; may be called twice."""


class RankRecords(Protocol):
    """A place for the starts and ends of the ranks' processes. Methods must not raise."""

    def started(self, slots: Sequence[Slot]) -> None:
        """Record the slots of all ranks of a job."""

    def ended(self, rank: int, code: int) -> None:
        """Record the exit code of a rank, or of a process of an elastic job; the negative number of
        a signal.
        """

    def added(self, process: int, host: str) -> None:
        """Record the start of a process of an elastic job."""

    def formed(self, number: int, members: Sequence[tuple[int, str]]) -> None:
        """Record a membership of an elastic job: its number, and the process and host of each
        rank, in rank order.
        """


class Display:
    """Options and streams for showing a job.

    - ``show_ranks``: The ranks whose output is shown; None shows all.
    - ``output_dir``: A folder that keeps all output.
    - ``files``: Another place for all output, besides ``output_dir``.
    - ``ranks``: A place for the starts and ends of ranks.
    - ``verbose``, ``quiet``: Report more events, or only errors.
    - ``say``: The stream for Farandole's own messages.
    - ``messages``: The stream for the messages of ``log_to_driver``.

    Streams default to stdout and stderr.
    """

    def __init__(
        self,
        *,
        out: TextIO | None = None,
        err: TextIO | None = None,
        say: TextIO | None = None,
        messages: TextIO | None = None,
        output_dir: str | None = None,
        files: OutputFiles | None = None,
        ranks: RankRecords | None = None,
        prefix_timestamp: bool = False,
        show_ranks: Collection[int] | None = None,
        verbose: bool = False,
        quiet: bool = False,
    ) -> None:
        self.out = out or standard("stdout")
        self.messages = messages or standard("stdout")
        self.err = err or standard("stderr")
        self.say = say or standard("stderr")
        self.output_dir = output_dir
        self.files = files
        self.ranks = ranks
        self.prefix_timestamp = prefix_timestamp
        self.show_ranks = show_ranks
        self.verbose = verbose
        self.quiet = quiet

    def note(self, text: str) -> None:
        """Show one of Farandole's own messages."""
        self.say.write(f"farandole: {text}\n")
        self.say.flush()
