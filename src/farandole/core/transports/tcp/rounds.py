"""The messages of a board's rounds, and the queue of messages that a rank of a tree forwards. Pure.

A run is one message posted by ranks with adjacent numbers. In a training step most ranks post the
same message, so one run represents a whole subtree.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_RUN = struct.Struct("<III")  # first rank, number of ranks, bytes of the message
HOLD = 1e-3  # seconds for which messages are held to be sent together
HOLD_MORE = 50e-3  # the same, once other messages of this round have been sent


class MessageRun(NamedTuple):
    first: int
    ranks: int  # number of ranks from ``first`` on
    message: bytes


class BoardRounds:
    """The messages of the current and the next round: a rank that has collected may post again."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank = rank
        self._size = size
        self._now: list[bytes | None] = [None] * size
        self._next: list[bytes | None] = [None] * size
        self._known = self._ahead = 0  # messages of the current and of the next round

    def put(self, first: int, message: bytes, ranks: int = 1) -> bool:
        """Store the ``message`` of ``ranks`` ranks from ``first`` on. Return False if it is two
        rounds early, which is the sender's error.
        """
        row = self._now
        if row[first] is None:
            self._known += ranks
        else:
            row = self._next
            if row[first] is not None:
                return False
            self._ahead += ranks
        if ranks == 1:
            row[first] = message
        else:
            row[first : first + ranks] = [message] * ranks
        return True

    @property
    def posted(self) -> bool:
        """True if this rank has posted in the current round."""
        return self._now[self._rank] is not None

    @property
    def complete(self) -> bool:
        return self._known == self._size

    def started(self) -> bool:
        return self._known > self.posted

    def missing(self, ranks: range) -> list[int]:
        """Return the ranks among ``ranks`` that have not posted in the current round."""
        return [] if self.complete else [rank for rank in ranks if self._now[rank] is None]

    def collect(self) -> list[bytes]:
        """Return the messages of the current round, which must be complete, and begin the next
        one.
        """
        messages, self._now, self._next = self._now, self._next, [None] * self._size
        self._known, self._ahead = self._ahead, 0
        return messages  # type: ignore[return-value]


class ForwardQueue:
    """The messages to forward to one neighbour: one from each rank on this side, ``total`` in a
    round.

    They are sent together once the round is complete. Earlier, the available messages are sent
    after a while, so that all ranks learn of the new round and its missing ranks.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._finished = b""  # rounds with all their messages
        self._runs: list[MessageRun] = []  # of the incomplete round
        self._kept = self._gone = 0  # messages of that round: kept in ``runs``, and already sent
        self._since = 0.0

    def add(self, run: MessageRun, now: float) -> None:
        """Queue a run. ``now``: seconds on any clock."""
        if not self._runs:
            self._since = now
        self._runs.append(run)
        self._kept += run.ranks
        if self._kept + self._gone == self._total:
            self._finished += packed(merged(self._runs))
            self._runs = []
            self._kept = self._gone = 0

    @property
    def waiting(self) -> bool:
        """True if there are messages to forward."""
        return bool(self._finished or self._runs)

    @property
    def due(self) -> float:
        """The time at which they must be sent, on the clock of ``add``."""
        if self._finished:
            return 0.0
        if not self._runs:
            return float("inf")
        return self._since + (HOLD_MORE if self._gone else HOLD)

    def take(self) -> bytes:
        """Return all queued messages in packed form, and remove them."""
        data = self._finished + packed(merged(self._runs))
        self._gone += self._kept
        self._finished = b""
        self._runs = []
        self._kept = 0
        return data


def merged(runs: Sequence[MessageRun]) -> list[MessageRun]:
    """Merge runs of equal messages into as few runs as possible."""
    found: list[MessageRun] = []
    for run in sorted(runs, key=lambda run: run.first):
        last = found[-1] if found else None
        if (
            last is not None
            and last.first + last.ranks == run.first
            and last.message == run.message
        ):
            found[-1] = MessageRun(last.first, last.ranks + run.ranks, last.message)
        else:
            found.append(run)
    return found


def packed(runs: Sequence[MessageRun]) -> bytes:
    return b"".join(
        [
            part
            for run in runs
            for part in (_RUN.pack(run.first, run.ranks, len(run.message)), run.message)
        ]
    )


def unpacked(data: bytes, size: int) -> Iterator[MessageRun]:
    """Yield the runs in packed ``data``. Raises ValueError unless ``data`` consists of runs of
    ``size`` ranks.
    """
    place = 0
    while place < len(data):
        if len(data) - place < _RUN.size:
            raise ValueError(f"{len(data) - place} bytes are not a sequence of messages")
        first, count, length = _RUN.unpack_from(data, place)
        place += _RUN.size
        if not 0 < count <= size - first or length > len(data) - place:
            raise ValueError(
                f"ranks {first} to {first + count - 1} of {size}, {length} bytes of"
                f" {len(data) - place}"
            )
        yield MessageRun(first, count, data[place : place + length])
        place += length
