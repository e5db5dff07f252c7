"""The division of shares among ranks. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Shares(NamedTuple):
    """The shares that one rank computes in each step: ``begin`` to ``end - 1`` of ``total``."""

    total: int
    begin: int
    end: int

    @property
    def held(self) -> int:
        """The number of this rank's shares."""
        return self.end - self.begin


def block(rank: int, size: int, total: int) -> Shares:
    """Return the shares of ``rank`` in a job of ``size`` ranks: contiguous blocks in the order of
    the ranks; the first ``total % size`` blocks have one more share.

    Raises ValueError if there are more ranks than shares, or no such rank.
    """
    if not 0 <= rank < size <= total:
        raise ValueError(
            f"rank {rank} of {size} has no share of a global batch of {total}. Start at most"
            f" {total} ranks (--max-np)"
        )
    base, extra = divmod(total, size)
    begin = rank * base + min(rank, extra)
    return Shares(total, begin, begin + base + (rank < extra))
