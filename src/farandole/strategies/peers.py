"""The ranks of one optimizer, as a strategy calls them: over their engine, at parameter servers, in
pairs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from farandole.base.contracts import Codec, PushCodec
from farandole.base.digests import digest_of_text
from farandole.base.types import Buffer, DType, Kind, ReduceOp, Request
from farandole.checks.consistency import check_same_weights, describe_weights, label_of
from farandole.core.engine import Engine, Entry
from farandole.errors import JoinedError
from farandole.job import context
from farandole.strategies.deltas import deltas
from farandole.strategies.gossip.copies import Copies, cut, joined
from farandole.strategies.gossip.pairs import PairAverages
from farandole.strategies.list_reducer import GradientListReducer
from farandole.strategies.options import GradientOptions

if TYPE_CHECKING:
    from farandole.base.types import Array
    from farandole.core.gossip.peer_group import PeerGroup
    from farandole.core.ps.client import Group, Pushed
    from farandole.core.ps.clocks import Rule


class EnginePeers:
    """See ``contracts.Peers``: over the engine of a process set."""

    names: Sequence[str] | None = None  # of the arrays, for messages
    # what ranks have in common: a codec sends how far away from it they are
    near: Sequence[Array] = ()
    sent: Sequence[Array] = ()  # this rank's weights as its neighbours know them, by a codec
    statistics: Sequence[Array] = ()  # they go with the weights that are pushed

    def __init__(
        self,
        engine: Engine,
        name: str,
        options: GradientOptions,
        codec: Codec | None,
        spec: str,
        scope: str,
    ) -> None:
        """``scope``: in front of names, for what a codec keeps of averages."""
        self.rank, self.size = engine.rank, engine.size
        self.engine, self.name, self._spec = engine, name, spec
        self._set = options.process_set
        self._ranks = options.process_set.ranks or range(self.size)
        self._pairs: PairAverages | None = None
        self._compared = False  # the weights that are swapped
        self._digested: tuple[Any, Array] | None = None  # those of the last swap, and their digest
        self._centre: Group | None = None
        self._centres = 0  # so far
        self._held: list[tuple[Any, ...]] | None = None  # shape and type of what the centre holds
        self._pushed: Sequence[Array] = ()  # statistics
        summed = GradientOptions(ReduceOp.SUM, process_set=options.process_set)
        self._reducer = GradientListReducer(name, summed)
        self._coded: GradientListReducer | None = None
        if codec is not None:
            self._coded = GradientListReducer(
                f"{name}.coded", summed._replace(codec=codec), scope=scope
            )
        self._of_pushes = codec if isinstance(codec, PushCodec) else None
        self._scope, self._copies = (
            scope,
            None if self._of_pushes is None else Copies(self._of_pushes, self.rank),
        )

    def average(self, arrays: Sequence[Array]) -> None:
        if self._coded is None or [array.shape for array in arrays] != [
            array.shape for array in self.near
        ]:
            self._average(self._reducer, arrays)
            return
        for array, near in zip(arrays, self.near, strict=True):
            np.subtract(array, near, out=array)
        self._average(self._coded, arrays)
        for array, near in zip(arrays, self.near, strict=True):
            np.add(array, near, out=array)

    def _average(self, reducer: GradientListReducer, arrays: Sequence[Array]) -> None:
        present = np.ones(1, dtype=np.int64)  # ranks that have joined bring zeros, and do not count
        names = None if self.names is None else [*self.names, "ranks"]
        reducer([*arrays, present], names, in_place=True)
        for array in arrays:
            np.divide(array, present[0], out=array)

    def any_of(self, true: bool) -> bool:
        """Is it true on some rank? Collective; ranks that have joined do not count."""
        (found,) = self._reducer([np.array([true], dtype=np.int64)])
        return bool(found[0])

    def barrier(self) -> None:
        names, self.names = self.names, None
        self.average([np.zeros(1)])
        self.names = names

    def swap(self, arrays: Sequence[Array], to: Sequence[int]) -> dict[int, list[Array]]:
        self._compare(arrays)
        heard = self._messages(joined(arrays), to, arrays)
        return {rank: cut(message, arrays) for rank, message in heard.items()}

    def average_with(
        self,
        arrays: Sequence[Array],
        to: Sequence[int],
        ever: Sequence[int] = (),
        gamma: float | None = None,
    ) -> None:
        own, way = arrays, 1.0
        if self._copies is not None and len(self.sent) == len(arrays):
            own, way = self.sent, self._copies.gamma(arrays)
            heard = self._swap_coded(self._copies, arrays, ever or to)
        else:
            heard = self.swap(arrays, to)
        if gamma is not None:
            way = gamma
        for number, array in enumerate(arrays):
            others = [heard[rank][number] for rank in sorted(heard)]
            if own is arrays and way == 1.0:
                for other in others:
                    array += other
                np.divide(array, len(others) + 1, out=array)
            else:
                away = sum((other - own[number] for other in others), np.zeros_like(array))
                array += array.dtype.type(way / (len(others) + 1)) * away

    def _swap_coded(
        self, copies: Copies, arrays: Sequence[Array], to: Sequence[int]
    ) -> dict[int, list[Array]]:
        """By rank, what is known here of the weights of those that send to this one."""
        self._compare(arrays)
        keys = [f"{self._scope}{name}" for name in self.names_of(arrays)]
        message = copies.message(arrays, self.sent, keys, len(to))
        try:
            heard = self._messages(message, to, arrays)
        except (JoinedError, ValueError):
            copies.lost()
            raise
        try:
            return {rank: copies.read(rank, message, arrays) for rank, message in heard.items()}
        except (ValueError, IndexError) as error:
            raise ValueError(
                f"{self.name}: rank {self._ranks[self.rank]} cannot read what a neighbour sent"
                f" ({error}): add weights on all ranks in the same step"
            ) from error

    def _compare(self, arrays: Sequence[Array]) -> None:
        if not self._compared:  # the sizes of messages tell little
            self._compared = True
            check_same_weights(self.engine, self.name, self._ranks, arrays, self.names_of(arrays))

    def _messages(
        self, mine: Array, to: Sequence[int], arrays: Sequence[Array]
    ) -> dict[int, Array]:
        """Send ``mine`` (uint8), of the weights ``arrays``, to the ranks ``to``; by rank, what was
        sent to this one. Raises ValueError for what is of other weights.
        """
        head = self._digest(arrays)
        flat = np.tile(np.concatenate([head, mine]), len(to))
        splits = tuple(head.size + mine.size if rank in to else 0 for rank in range(self.size))
        request = Request(
            f"{self.name}.swap", Kind.ALLTOALL, DType.UINT8, flat.shape, splits=splits
        )
        try:
            ((received, counts),) = self.engine.run(
                [Entry(request, Buffer(flat, flat, DType.UINT8))]
            )
        except JoinedError:
            raise JoinedError(
                f"strategy={self._spec!r}: a rank has called join(), and its neighbours need its"
                " weights. Give all ranks as many steps, or take local_sgd, easgd, ps or"
                " gossip_async, which go on without it"
            ) from None
        found = {}
        for rank, (count, end) in enumerate(zip(counts, np.cumsum(counts), strict=True)):
            if not count:
                continue
            begin = end - count + head.size
            if not np.array_equal(received[end - count : begin], head):
                raise ValueError(
                    f"{label_of(self.name)}: all ranks must train the same weights, but rank"
                    f" {self._ranks[rank]} sent others than rank {self._ranks[self.rank]} has:"
                    f" {_listed(self.names_of(arrays))}. Add, freeze and unfreeze parameters on all"
                    " ranks in the same step"
                )
            found[rank] = received[begin:end]
        return found

    def _digest(self, arrays: Sequence[Array]) -> Array:
        """Of what they are: 8 bytes."""
        names = self.names_of(arrays)
        key = tuple(names), tuple((array.shape, array.dtype) for array in arrays)
        if self._digested is None or self._digested[0] != key:
            self._digested = (
                key,
                np.array([digest_of_text(describe_weights(arrays, names))]).view(np.uint8),
            )
        return self._digested[1]

    def push(
        self, rule: Rule, anchors: Sequence[Array], changes: Sequence[Array], *, count: bool = True
    ) -> Pushed:
        statistics, self.statistics = self.statistics, ()
        self._pushed = statistics
        centre = self._group(rule, anchors, statistics)
        first, given = [*anchors, *statistics], [*changes, *statistics]
        with self._seen("SERVERS_PUSH"):
            return centre.push(first, given) if count else centre.flush(first, given)

    @contextlib.contextmanager
    def _seen(self, what: str) -> Iterator[None]:
        begin = time.monotonic()
        yield
        self._tell(what, begin, time.monotonic())

    def _tell(self, what: str, begin: float, end: float) -> None:
        for observer in self.engine.observers.transferred:
            observer.transferred(self.name, what, begin, end)

    def pull(self, into: Sequence[Array]) -> None:
        assert self._centre is not None
        with self._seen("SERVERS_PULL"):
            self._centre.pull([*into, *self._pushed])

    def average_async(
        self,
        anchors: Sequence[Array],
        changes: Sequence[Array],
        others: Sequence[int],
        *,
        damp: bool = False,
        gamma: float | None = None,
    ) -> int:
        statistics, self.statistics = self.statistics, ()
        group = self._shown(anchors, statistics, gamma)
        stale = group.take([*changes, *statistics], damp)
        group.ask(others)
        return stale

    def average_shown(
        self, anchors: Sequence[Array], changes: Sequence[Array], *, gamma: float | None = None
    ) -> None:
        statistics, self.statistics = self.statistics, ()
        group = self._shown(anchors, statistics, gamma)
        group.take([*changes, *statistics])
        group.rest()
        self.barrier()  # nobody asks any more
        own = [*(np.zeros_like(change) for change in changes), *statistics]
        group.take(own)
        means = [array.copy() for array in own]
        names, self.names = self.names, None
        self.average(means)
        self.names = names
        count = len(changes)
        # A rank that has gone on may have averaged with this one meanwhile: its next exchange
        # counts that.
        group.correct(deltas(means[:count], own[:count]), means[count:])
        for array, mean in zip((*changes, *statistics), means, strict=True):
            np.copyto(array, mean)  # as all have it: what is shown was rounded

    def close(self) -> None:
        if self._pairs is not None:
            self._pairs.close()

    def other_weights(self) -> None:
        """See ``WeightExchange.other_weights``."""
        self._held = None
        if self._pairs is not None:
            self._pairs.other_weights()

    def _shown(
        self, anchors: Sequence[Array], statistics: Sequence[Array], gamma: float | None
    ) -> PeerGroup:
        if self._pairs is None:
            # a process set that is made anew has the same numbers
            changes = context.unique_id(self._set)
            name = f"{self.name}.{changes}"
            self._pairs = PairAverages(
                self.engine, name, self._ranks, self._tell, 1.0 if gamma is None else gamma
            )
        return self._pairs.group(anchors, statistics, self.names_of(anchors))

    def names_of(self, weights: Sequence[Array]) -> Sequence[str]:
        """Of the weights that are exchanged."""
        return self.names or [f"weight {number}" for number in range(len(weights))]

    def _group(self, rule: Rule, anchors: Sequence[Array], statistics: Sequence[Array]) -> Group:
        held = [(array.shape, array.dtype) for array in (*anchors, *statistics)]
        # weights were added: another centre, of all of them
        if self._centre is None or held != self._held:
            self._held, self._centres = held, self._centres + 1
            # servers outlive a process set, and its engine's numbers
            name = f"{self.name}.{context.unique_id(self._set)}.{self._centres}"
            self._centre = context.servers().group(
                name,
                self._ranks,
                rule,
                self._spec,
                anchors,
                self.names_of(anchors),
                statistics,
                self._of_pushes,
                after=self._centre,
            )
        return self._centre


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + " ..." * (len(names) > 4)
