"""The messages of a board's rounds, and those that a rank of a tree still has to pass on. Pure.

A run is one message that ranks with adjacent numbers have posted: ranks of a training step mostly
say the same, so that a run stands for a whole subtree.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_RUN = struct.Struct("<III")  # first rank, number of ranks, bytes of the message
HOLD = 1e-3  # seconds for which messages wait for those that are to go with them
HOLD_MORE = 50e-3  # the same, when others of this round have gone before


class MessageRun(NamedTuple):
    first: int
    ranks: int  # so many, from that one on
    message: bytes


class BoardRounds:
    """Who has posted what in the present round, and in the next: a rank that has collected may post
    again.
    """

    def __init__(self, rank: int, size: int) -> None:
        self._rank = rank
        self._size = size
        self._now: list[bytes | None] = [None] * size
        self._next: list[bytes | None] = [None] * size
        self._known = self._ahead = 0  # messages of the present round, of the next

    def put(self, first: int, message: bytes, ranks: int = 1) -> bool:
        """The ``message`` of so many ``ranks``. False for one that cannot be: its rank has not read
        the last round.
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
        """Is this rank's message of the present round there?"""
        return self._now[self._rank] is not None

    @property
    def complete(self) -> bool:
        return self._known == self._size

    def started(self) -> bool:
        return self._known > self.posted

    def missing(self, ranks: range) -> list[int]:
        """Those of ``ranks`` that have not posted in the present round."""
        return [] if self.complete else [rank for rank in ranks if self._now[rank] is None]

    def collect(self) -> list[bytes]:
        """The messages of the present round, which is complete; the next one begins."""
        messages, self._now, self._next = self._now, self._next, [None] * self._size
        self._known, self._ahead = self._ahead, 0
        return messages  # type: ignore[return-value]


class ForwardQueue:
    """What is to be passed on to one neighbour: the messages of the ranks on this side, ``total``
    in a round.

    They go together when the round has all of them. Before, some go after a while, so that
    everybody hears that a round has begun, and who is missing.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._finished = b""  # rounds that have all their messages
        self._runs: list[MessageRun] = []  # of the round that has not
        self._kept = self._gone = 0  # messages of that one: in ``runs``, and those that went
        self._since = 0.0

    def add(self, run: MessageRun, now: float) -> None:
        """``now``: seconds on any clock."""
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
        """Is there anything to pass on?"""
        return bool(self._finished or self._runs)

    @property
    def due(self) -> float:
        """When it has to go, on that clock."""
        if self._finished:
            return 0.0
        if not self._runs:
            return float("inf")
        return self._since + (HOLD_MORE if self._gone else HOLD)

    def take(self) -> bytes:
        """All of it, as it travels."""
        data = self._finished + packed(merged(self._runs))
        self._gone += self._kept
        self._finished = b""
        self._runs = []
        self._kept = 0
        return data


def merged(runs: Sequence[MessageRun]) -> list[MessageRun]:
    """As few runs as will do."""
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
    """The runs of ``packed``. Raises ValueError for bytes that are none of ``size`` ranks."""
    place = 0
    while place < len(data):
        if len(data) - place < _RUN.size:
            raise ValueError(f"{len(data) - place} bytes are no run of messages")
        first, count, length = _RUN.unpack_from(data, place)
        place += _RUN.size
        if not 0 < count <= size - first or length > len(data) - place:
            raise ValueError(
                f"ranks {first} to {first + count - 1} of {size}, {length} bytes of"
                f" {len(data) - place}"
            )
        yield MessageRun(first, count, data[place : place + length])
        place += length
