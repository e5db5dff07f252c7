"""The message of one rank when backward ends, and the result over all ranks.

A ballot travels as eight 64-bit words, reduced by their minimum. A fact that holds when any rank
says so is the word -1 or 0; a maximum travels as the minimum of the negated value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from farandole.base.types import Array

WORDS = 8
# Larger than every other value, so it changes no minimum. Ranks that have joined send this, too.
NO_WORD = int(np.iinfo(np.int64).max)
UNOPENED = -2  # ready_buckets: there are no buckets yet that all ranks have
UNPLANNED = -1  # ready_buckets: a gradient is in no bucket, or in one where it cannot travel

_ANY, _NONE = -1, 0


class Ballot(NamedTuple):
    """The message of one rank.

    ``ready_buckets``: the number of complete buckets, all of them if everything is ready, or
    UNOPENED or UNPLANNED. ``bucket_bytes``: rank 0's wish; NO_WORD on other ranks.
    ``compare_replicas``: this rank wants a comparison of the replicas. ``steps``: taken by this
    rank's optimizer. ``spread``: the last known difference between the ranks' steps.
    """

    ready_buckets: int
    bucket_bytes: int
    compare_replicas: bool
    steps: int
    spread: int
    new_gradients: bool

    def pack(self, words: Array) -> None:
        """Write the ballot to the words that travel."""
        words[:] = (
            self.ready_buckets,
            self.bucket_bytes,
            _ANY if self.compare_replicas else _NONE,
            self.steps,
            -self.steps,
            self.spread,
            -self.spread,
            _ANY if self.new_gradients else _NONE,
        )


class Tally(NamedTuple):
    """The ballots of all ranks, reduced.

    ``ready_buckets``: the fewest of any rank. ``bucket_bytes``: rank 0's wish. ``spread``: by how
    much the ranks' numbers of steps differ now. ``spread_was_known``: every rank had sent this
    very spread; ranks that had joined know an older one.
    """

    ready_buckets: int
    bucket_bytes: int
    compare_replicas: bool
    spread: int
    spread_was_known: bool
    new_gradients: bool

    @classmethod
    def unpack(cls, words: Array) -> Tally:
        """Read the reduced words."""
        ready, limit, compare, fewest, negated_most, least, negated_largest, new = words.tolist()
        spread = -negated_most - fewest
        return cls(
            ready_buckets=ready,
            bucket_bytes=limit,
            compare_replicas=compare == _ANY,
            spread=spread,
            spread_was_known=least == spread and negated_largest == -spread,
            new_gradients=new == _ANY,
        )
