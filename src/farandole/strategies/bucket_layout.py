"""The assignment of gradients to buckets, the same on all ranks, and the memory of the buckets.

The first layout follows the reverse order of the parameters and uses the gradients' own memory. The
second follows the order in which gradients arrived on rank 0 and uses the transport's memory. Rank
0's engine may request a different bucket size later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from farandole.base.contracts import Codec
from farandole.checks.consistency import extremes
from farandole.core.engine import Engine
from farandole.errors import JoinedError
from farandole.job import context
from farandole.strategies.ballot import NO_WORD
from farandole.strategies.buckets import (
    Bucket,
    ContiguousBucket,
    Gradient,
    GroupedBucket,
    partition,
)
from farandole.strategies.buffer_pool import ALIGNMENT
from farandole.strategies.options import GradientOptions

_UNUSED, _DENSE, _SPARSE = 0, 1, 2  # how a gradient is sent


class Home(NamedTuple):
    """The place of a gradient: the index of its bucket, and its slot in the bucket."""

    bucket: int
    slot: int


class _Terms(NamedTuple):
    """Inputs of a layout other than the order, reduced to their minimum over the ranks.

    - ``bucket_bytes``: The size that rank 0 requests.
    - ``unrecorded``: 0 on a rank that has recorded an order.
    - ``memory``: The bytes available for buckets on a rank.
    """

    bucket_bytes: int
    unrecorded: int
    memory: int


class BucketLayout:
    """The buckets, and the bucket of each gradient.

    ``flat``: buckets of gradients in host memory become slices of the transport's memory in the
    final layout.
    """

    def __init__(self, options: GradientOptions, codec: Codec | None, *, flat: bool) -> None:
        self._options = options
        self._codec = codec
        self._flat = flat
        self.buckets: list[Bucket] = []
        self.home: list[Home | None] = []  # by gradient
        self.members: list[list[int]] = []  # by bucket
        self.outside: list[int] = []  # in no bucket: new, or frozen when the buckets were laid out
        self.sparse: list[int] = []  # in no bucket: sent as rows
        self.order: list[int] = []  # of the gradients in buckets
        self.common = False  # whether all ranks have laid out these buckets
        self.wished = NO_WORD  # bytes per bucket that rank 0 requests
        self._limit = NO_WORD  # bytes per bucket of this layout
        self._memory: Any = None
        self._shared = 0  # bytes available for buckets on every rank

    def outdated(self) -> bool:
        """Return whether rank 0 requests a different bucket size."""
        return self.wished not in (self._limit, NO_WORD)

    def sizes(self) -> list[int]:
        """Return the number of gradients in each bucket."""
        return [len(indexes) for indexes in self.members]

    def all_ready(self) -> int:
        """Return ``Ballot.ready_buckets`` for a rank whose gradients are all ready: the number of
        buckets, plus one if there are sparse gradients.
        """
        return len(self.buckets) + 1 if self.sparse else len(self.buckets)

    def take_apart(self, count: int) -> None:
        """Drop the buckets; ``count`` gradients remain."""
        self.buckets = []
        self.members = []
        self.home = [None] * count
        self.common = False

    def leave_engine(self) -> None:
        """Drop the memory and the order of an engine that has ended."""
        self._memory = None
        self.order = []

    def clear(self) -> None:
        """Drop all gradients."""
        self.outside = []
        self.sparse = []
        self.take_apart(0)

    def extend(self, first: int, count: int) -> None:
        """Add ``count`` gradients from index ``first`` on, without a bucket."""
        self.outside += range(first, first + count)
        self.home += [None] * count

    def plan(
        self,
        engine: Engine,
        name: str,
        gradients: Sequence[Gradient],
        current: Callable[[int], Any],
        order: Iterable[int],
        *,
        final: bool,
    ) -> bool:
        """Lay out the buckets. Collective.

        The order is rank 0's ``order``. A gradient that is trained on any rank gets a slot. Return
        whether the layout is final, which requires one rank that has recorded an order and passes
        ``final``; other ranks may have had no data yet.
        """
        count = len(gradients)
        places = np.full(count, NO_WORD)
        ways = np.array(
            [self._way(index, one, current(index)) for index, one in enumerate(gradients)],
            dtype=np.int64,
        )
        if engine.rank == 0:
            # With a codec, the order is fixed, so that a resumed run compresses the same buckets.
            known = list(order) if self._codec is None else []
            places[known] = np.arange(len(known))
        terms = _Terms(
            bucket_bytes=engine.sizes.bucket_bytes if engine.rank == 0 else NO_WORD,
            unrecorded=0 if final else NO_WORD,
            memory=0 if self._memory is None else len(self._memory),
        )
        lows, ways = extremes(engine, f"{name}.plan", np.append(places, terms), ways)
        places = lows[:count]
        terms = _Terms(*lows[count:].tolist())
        self._shared = terms.memory
        final = terms.unrecorded == 0
        limit = terms.bucket_bytes
        self._limit = context.settings().bucket_bytes if limit == NO_WORD else limit
        self.wished = self._limit
        # Gradients without a recorded place follow in reverse order.
        known = sorted(range(count), key=lambda index: (places[index], -index))
        self.order = [index for index in known if ways[index] == _DENSE]
        self.sparse = [index for index in range(count) if ways[index] == _SPARSE]
        self.members = partition(self.order, gradients, self._limit, self._options.groups)
        self.buckets = self._made(engine, name, gradients, flat=self._flat and final)
        self.home = [None] * count
        for number, indexes in enumerate(self.members):
            for slot, index in enumerate(indexes):
                self.home[index] = Home(number, slot)
        self.outside = [index for index in range(count) if ways[index] == _UNUSED]
        engine.bucketed = self._limit
        return final

    def _way(self, index: int, gradient: Gradient, current: Any) -> int:
        if index in self.sparse or (current is not None and gradient.is_sparse(current)):
            return _SPARSE
        return _DENSE if current is not None or gradient.trainable() else _UNUSED

    def _made(
        self, engine: Engine, name: str, gradients: Sequence[Gradient], *, flat: bool
    ) -> list[Bucket]:
        """Return the buckets. With ``flat``, buckets in host memory share one block of the
        transport's memory.
        """
        groups = [[gradients[index] for index in indexes] for indexes in self.members]
        sizes = [
            ContiguousBucket.nbytes(group) if flat and group[0].device == "CPU" else 0
            for group in groups
        ]
        most = sum(
            size + ALIGNMENT * len(group) for group, size in zip(groups, sizes, strict=True) if size
        )
        # enough for any division into buckets
        memory = self._room(engine, name, gradients, most) if most else None
        buckets: list[Bucket] = []
        begin = 0
        for number, (group, size) in enumerate(zip(groups, sizes, strict=True)):
            title = f"{name}.bucket.{number}"
            if memory is None or not size:
                buckets.append(GroupedBucket(title, group, self._options, self._codec))
            else:
                buckets.append(
                    ContiguousBucket(title, group, self._options, memory[begin : begin + size])
                )
                begin += -(-size // ALIGNMENT) * ALIGNMENT
        return buckets

    def _room(self, engine: Engine, name: str, gradients: Sequence[Gradient], nbytes: int) -> Any:
        """Return at least ``nbytes`` of the transport's memory, and keep it for later layouts."""
        if self._shared < nbytes:  # on some rank
            try:
                self._memory = engine.allocate(nbytes, name)
            except JoinedError:
                return np.zeros(nbytes, dtype=np.uint8)  # private memory is good enough
        else:
            for gradient in gradients:
                gradient.leave()
        return self._memory
