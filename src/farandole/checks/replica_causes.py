"""The causes of replicas that differ: damage by hardware, or a mistake in the program. Pure.

A defect of a processor or a memory changes single numbers of one rank. A program whose ranks begin
with different weights, or change them differently, makes most numbers differ, or differs in the
same numbers again after each repair. Gradients are reduced over all ranks, so a wrong number does
not spread to other numbers of its rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from farandole.checks.replica_votes import Votes
from farandole.errors import ranks_named

if TYPE_CHECKING:
    from farandole.base.types import Array

BLOCK = 8  # bytes
# A mistake changes at least this fraction (1 / n) of the values: with Adam, weights are one of four
# values per parameter.
_MOST_VALUES = 8


class ValueDifference(NamedTuple):
    """The difference of one value of a rank from the other ranks' value.

    - ``place``: The index of the value among all values.
    - ``blocks``: The number of differing blocks of ``BLOCK`` bytes.
    - ``total``: The number of blocks of the value.
    - ``first``: The first differing block.
    - ``bits``: The number of differing bits.
    """

    place: int
    blocks: int
    total: int
    first: int
    bits: int


Differences = Sequence[ValueDifference]


class EarlierDifference(NamedTuple):
    """The latest difference of a process. ``comparison``: its number."""

    comparison: int
    differences: Differences


def difference_of(place: int, mine: Array, other: Array) -> ValueDifference | None:
    """Return the difference between the bytes of one value on two ranks, given as arrays of
    uint8; None if they are equal.
    """
    changed = np.bitwise_xor(mine, other)
    where = np.flatnonzero(changed)
    if not len(where):
        return None
    blocks = np.unique(where // BLOCK)
    bits = int(np.unpackbits(changed[where]).sum())
    return ValueDifference(place, len(blocks), -(-len(mine) // BLOCK), int(blocks[0]), bits)


def mistake_of(
    votes: Votes,
    differences: Mapping[int, Differences],
    values: int,
    earlier: Mapping[int, EarlierDifference],
    comparison: int,
    *,
    were_equal: bool,
) -> str:
    """Return the evidence that the program is the cause, to follow "because" in a sentence; empty
    if the replicas were damaged.

    Arguments:
        votes: The votes of all ranks.
        differences: The differences of each rank that is unlike the majority or rank 0.
        values: The number of values of a replica.
        earlier: The latest difference before this comparison by rank, if any.
        comparison: The number of this comparison.
        were_equal: Whether all replicas were equal in any earlier comparison.
    """
    sizes = [len(group) for group in votes.groups]
    if len(sizes) > 2 and sizes[0] == 1:
        return f"the values of all {len(sizes)} ranks differ from each other"
    if len(sizes) > 1 and sizes[1] > 1:
        return f"{ranks_named(votes.groups[1])} have the same values, unlike the other ranks"
    for rank, found in differences.items():
        reason = _reason(found, values, earlier.get(rank), comparison, were_equal=were_equal)
        if reason:
            return reason.replace("RANK", f"rank {rank}")
    return ""


def _reason(
    found: Differences,
    values: int,
    earlier: EarlierDifference | None,
    comparison: int,
    *,
    were_equal: bool,
) -> str:
    single = all(each.blocks == 1 for each in found)
    blocks, total = (sum(each[index] for each in found) for index in (1, 2))
    if not single and 2 * blocks > total and _MOST_VALUES * len(found) >= values:
        return f"most numbers in {len(found)} of the {values} values of RANK differ"
    if not single and not were_equal:
        return "the replicas were not equal in any earlier comparison"
    if earlier is not None and _differs_again(found, earlier, comparison):
        return "RANK differed in the same numbers before, and was repaired"
    return ""


def _differs_again(found: Differences, earlier: EarlierDifference, comparison: int) -> bool:
    """Return whether a process differs in the same numbers as before. A single bit that differs
    again is a stuck memory cell.
    """
    before = {each.place: each for each in earlier.differences}
    in_a_row = comparison == earlier.comparison + 1
    for each in found:
        other = before.get(each.place)
        if other is None or each.bits == other.bits == 1:
            continue
        if each.first == other.first or (in_a_row and min(each.blocks, other.blocks) > 1):
            return True
    return False
