"""The order of an epoch over rows in blocks, and each rank's rows in it. Pure.

The blocks (row groups of files) are shuffled and concatenated. That sequence is cut into lanes of
equal length; position p of the epoch's order is step ``p // lanes`` of lane ``p % lanes``. Within a
lane the rows of each block are shuffled. So a batch mixes rows of as many blocks as there are
lanes, and only one block per lane is in memory.

Rank r of n takes positions r, r + n, ...: batch k of n ranks holds the rows of batch k of one
process with n times the batch size. If n divides the number of lanes, a rank reads only its own
lanes, and no two ranks decode the same block.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from farandole.base.types import Array

# the shuffling algorithm, as recorded in states; a different algorithm needs a new name
SHUFFLE = "PCG64"
# Numbers with many divisors, so that most numbers of ranks read no block twice. The choice does not
# depend on the number of ranks.
LANES = (48, 36, 24, 16, 12, 8, 6, 4, 3, 2)
_BLOCKS_PER_LANE = 4  # minimum: lanes end within blocks, and such a block is decoded for both lanes
_RESERVE = 0.75  # part of the memory for blocks in use; blocks being decoded need the rest

_AHEAD_PER_THREAD = 2


def lanes_for(blocks: int, largest: int, memory: int) -> int:
    """Return the number of lanes for ``blocks`` of at most ``largest`` bytes, with ``memory`` for
    all lanes together.
    """
    fitting = (
        lanes
        for lanes in LANES
        if lanes * _BLOCKS_PER_LANE <= blocks and lanes * largest <= memory * _RESERVE
    )
    return next(fitting, 1)


def ahead_for(threads: int, lanes: int, largest: int, memory: int) -> int:
    """Return the number of pieces that ``threads`` prefetch: one per lane, more for many threads if
    memory suffices, and at least one.

    Lanes reach the ends of their pieces at about the same time.
    """
    if not threads:
        return 0
    return min(max(_AHEAD_PER_THREAD * threads, lanes), max(1, memory // max(largest, 1) - lanes))


class LanePiece(NamedTuple):
    """The part of a block that belongs to one lane."""

    lane: int
    block: int
    begin: int  # rows of the block, in file order
    end: int
    step: int  # the step of the lane at which the piece begins


class Strand(NamedTuple):
    """A rank's part of a lane: its steps ``first``, ``first + stride``, ... Step number j is the
    rank's row ``place + period * j``.
    """

    lane: int
    first: int
    stride: int
    place: int
    period: int


class Order:
    """The order of one epoch: a function of the blocks' lengths, the lanes, the seed and the epoch.

    ``blocks``: the number of rows in each block. Without ``shuffle`` the order is the files' order,
    in one lane.
    """

    def __init__(
        self, blocks: Sequence[int], lanes: int, seed: int, epoch: int, shuffle: bool = True
    ) -> None:
        self.rows = sum(blocks)
        self.lanes = lanes if shuffle else 1
        self._key = [part & 0xFFFFFFFF for part in (seed, seed >> 32, epoch)]
        self.shuffled = shuffle
        self.longest = max(blocks)  # in rows
        self._blocks = self._permutation(len(blocks)) if shuffle else np.arange(len(blocks))
        self._lengths = [blocks[int(number)] for number in self._blocks]
        self._ends = list(accumulate(self._lengths))

    def _permutation(self, length: int, *words: int) -> Array:
        """Return a permutation of ``range(length)``.

        numpy guarantees the values of RandomState and of PCG64 across versions. PCG64 starts in a
        tenth of the time of RandomState's own generator.
        """
        numbers: Array = np.random.RandomState(np.random.PCG64([*self._key, *words])).permutation(
            length
        )
        return numbers

    def lane_length(self, lane: int) -> int:
        return len(range(lane, self.rows, self.lanes))

    def pieces(self, lane: int, step: int = 0) -> list[LanePiece]:
        """Return a lane's pieces, starting with the one that contains ``step``."""
        length, longer = divmod(self.rows, self.lanes)
        begin = lane * length + min(lane, longer)  # within the lane, in the sequence of blocks
        position, end, pieces = begin + step, begin + self.lane_length(lane), []
        while position < end:
            number = bisect_right(self._ends, position)
            start = self._ends[number] - self._lengths[number]
            first, last = max(start, begin), min(self._ends[number], end)
            pieces.append(
                LanePiece(
                    lane=lane,
                    block=int(self._blocks[number]),
                    begin=first - start,
                    end=last - start,
                    step=first - begin,
                )
            )
            position = last
        return pieces

    def rows_of(self, piece: LanePiece) -> Array:
        """Return the piece's rows of its block, in their order (int64)."""
        if not self.shuffled:
            return np.arange(piece.begin, piece.end)
        order = self._permutation(piece.end - piece.begin, piece.lane, piece.block)
        order += piece.begin
        return order

    def strands(self, begin: int, rank: int, size: int) -> list[Strand]:
        """Return the strands of rank ``rank`` of ``size``, starting at position ``begin``."""
        period = self.lanes // math.gcd(size, self.lanes)
        stride = size * period // self.lanes
        places = (divmod(begin + rank + size * place, self.lanes) for place in range(period))
        return [
            Strand(lane, step, stride, place, period) for place, (step, lane) in enumerate(places)
        ]

    def find(self, position: int) -> tuple[int, int]:
        """Return the block, and its row, at a position."""
        step, lane = divmod(position, self.lanes)
        piece = self.pieces(lane, step)[0]
        return piece.block, int(self.rows_of(piece)[step - piece.step])
