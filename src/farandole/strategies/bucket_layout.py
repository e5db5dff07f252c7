"""Which gradient travels in which bucket, the same on all ranks, and the memory of the buckets.

The first layout is in reverse order of the parameters, in the gradients' own memory. The next is in
the order in which rank 0's gradients came, in memory of the transport. Rank 0's engine may ask for
buckets of another size later.
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

_UNUSED, _DENSE, _SPARSE = 0, 1, 2  # how a gradient travels


class Home(NamedTuple):
    """The place of a gradient: the number of its bucket, and its slot there."""

    bucket: int
    slot: int


class _Terms(NamedTuple):
    """Facts that a layout depends on besides the order; the minimum over the ranks counts.

    ``bucket_bytes``: rank 0's. ``unrecorded``: 0 on a rank that has recorded an order. ``memory``:
    the bytes that a rank has for buckets.
    """

    bucket_bytes: int
    unrecorded: int
    memory: int


class BucketLayout:
    """``flat``: the buckets of gradients in the host's memory are pieces of the transport's memory,
    once final.
    """

    def __init__(self, options: GradientOptions, codec: Codec | None, *, flat: bool) -> None:
        self._options = options
        self._codec = codec
        self._flat = flat
        self.buckets: list[Bucket] = []
        self.home: list[Home | None] = []  # by gradient
        self.members: list[list[int]] = []  # by bucket
        self.outside: list[int] = []  # in no bucket: not trained when it was laid out, or new
        self.sparse: list[int] = []  # in no bucket: they travel as rows
        self.order: list[int] = []  # of the gradients in buckets
        self.common = False  # laid out, on all ranks
        self.wished = NO_WORD  # bytes per bucket, as rank 0 wants it
        self._limit = NO_WORD  # bytes per bucket, as laid out
        self._memory: Any = None
        self._shared = 0  # bytes that every rank has for buckets

    def outdated(self) -> bool:
        """Does rank 0 want buckets of another size?"""
        return self.wished not in (self._limit, NO_WORD)

    def sizes(self) -> list[int]:
        """The number of gradients in each bucket."""
        return [len(indexes) for indexes in self.members]

    def all_ready(self) -> int:
        """``Ballot.ready_buckets`` of a rank whose gradients are all in: the number of buckets, and
        one more for sparse gradients.
        """
        return len(self.buckets) + 1 if self.sparse else len(self.buckets)

    def take_apart(self, count: int) -> None:
        """No bucket is left; there are ``count`` gradients."""
        self.buckets = []
        self.members = []
        self.home = [None] * count
        self.common = False

    def leave_engine(self) -> None:
        """Forget the memory and the order of an engine that has ended."""
        self._memory = None
        self.order = []

    def clear(self) -> None:
        """There are no gradients now."""
        self.outside = []
        self.sparse = []
        self.take_apart(0)

    def extend(self, first: int, count: int) -> None:
        """``count`` gradients more from index ``first`` on, in no bucket."""
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
        """Lay out the buckets. Collective: rank 0's ``order`` counts, and what any rank trains is
        in. True if they stay for good: if some rank says ``final``, for it has recorded an order,
        be it before others had data.
        """
        count = len(gradients)
        places = np.full(count, NO_WORD)
        ways = np.array(
            [self._way(index, one, current(index)) for index, one in enumerate(gradients)],
            dtype=np.int64,
        )
        if engine.rank == 0:
            # a resumed run loses in the same buckets
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
        # the unknown from last to first
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
        """The buckets; if ``flat``, those of the host's memory in one piece of the transport's."""
        groups = [[gradients[index] for index in indexes] for indexes in self.members]
        sizes = [
            ContiguousBucket.nbytes(group) if flat and group[0].device == "CPU" else 0
            for group in groups
        ]
        most = sum(
            size + ALIGNMENT * len(group) for group, size in zip(groups, sizes, strict=True) if size
        )
        # enough for each way to cut buckets
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
        """At least so much memory of the transport. It is used again when buckets are laid out
        anew.
        """
        if self._shared < nbytes:  # on some rank
            try:
                self._memory = engine.allocate(nbytes, name)
            except JoinedError:
                return np.zeros(nbytes, dtype=np.uint8)  # memory of our own will do
        else:
            for gradient in gradients:
                gradient.leave()
        return self._memory
