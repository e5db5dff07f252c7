"""The message that a rank sends when backward ends, and the reduced result.

A ballot is sent as eight 64-bit words, which are reduced by their minimum. A flag that is true if
any rank sets it is encoded as -1 (true) or 0. A maximum is sent as the minimum of the negated
value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from farandole.base.types import Array

WORDS = 8
# Larger than every other value, so it changes no minimum. Joined ranks send this word too.
NO_WORD = int(np.iinfo(np.int64).max)
UNOPENED = -2  # ready_buckets: the ranks share no layout yet
UNPLANNED = -1  # ready_buckets: a gradient has no bucket, or cannot be sent in its bucket

_ANY, _NONE = -1, 0


class Ballot(NamedTuple):
    """The ballot of one rank.

    - ``ready_buckets``: The number of complete buckets (``all_ready`` if every gradient is ready),
      or UNOPENED or UNPLANNED.
    - ``bucket_bytes``: The bucket size that rank 0 requests; NO_WORD on other ranks.
    - ``compare_replicas``: Whether this rank requests a comparison of the replicas.
    - ``steps``: The number of steps of this rank's optimizer.
    - ``spread``: The last known difference between the ranks' step counts.
    - ``new_gradients``: Whether this rank has computed gradients.
    """

    ready_buckets: int
    bucket_bytes: int
    compare_replicas: bool
    steps: int
    spread: int
    new_gradients: bool

    def pack(self, words: Array) -> None:
        """Write the ballot into ``words``, the int64 array to reduce."""
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
    """The reduced ballots of all ranks.

    - ``ready_buckets``: The minimum over the ranks.
    - ``bucket_bytes``: The size that rank 0 requests.
    - ``spread``: The present difference between the ranks' step counts.
    - ``spread_was_known``: Whether every rank sent the same spread; joined ranks know an older one.
    """

    ready_buckets: int
    bucket_bytes: int
    compare_replicas: bool
    spread: int
    spread_was_known: bool
    new_gradients: bool

    @classmethod
    def unpack(cls, words: Array) -> Tally:
        """Decode the reduced words."""
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
