"""Exchanges of weights that do not wait for all ranks: see ``core.gossip.convener``."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from farandole.base.contracts import ExchangeContext
from farandole.base.log import logger
from farandole.checks.consistency import check_same_weights
from farandole.checks.exchange import gathered
from farandole.core.gossip.quorum import Quorum
from farandole.errors import PeerLostError
from farandole.job import context
from farandole.strategies.deltas import deltas
from farandole.strategies.encodings import WholeEncoding
from farandole.strategies.peers import PeerSession

if TYPE_CHECKING:
    from farandole.base.types import Array
    from farandole.core.gossip.convener import Convener, ConvenerLink


class QuorumEncoding(WholeEncoding):
    """Sends the changes since the last exchange, and receives the slots, which include the weights.

    The strategy's first slot holds the weights of the last exchange. The first exchange with an
    engine is collective; afterwards ranks commit their states independently. ``rule``: the
    strategy's.
    """

    def __init__(self, rule: Quorum) -> None:
        self._rule = rule
        self._meeting: Convener | ConvenerLink | None = None
        self._meetings = 0  # with this engine so far
        self._joins = 0  # the engine's joins when the meeting began
        self._turn = 0  # exchanges of this meeting so far
        self._last = 0  # the step of the last exchange; 0 if unknown

    def bind(self, session: PeerSession) -> None:
        """See ``contracts.Encoding``."""
        super().bind(session)
        self.reset()
        self._meetings = 0  # a rank that has just started counts like the others

    def exchange(
        self,
        strategy: Any,
        weights: Sequence[Array],
        slots: Sequence[Sequence[Array]],
        step: int,
        context: ExchangeContext,
    ) -> bool:
        """See ``contracts.Encoding``. ``strategy``: a LocalSGD."""
        begin = time.monotonic()
        anchors, statistics = slots[0], context.statistics
        changes = [_flat(each) for each in (*deltas(weights, anchors), *statistics)]
        if self._meeting is None or self._joins != self.session.engine.joins:
            self._meet(strategy, weights, slots, changes, context)
        steps = step - self._last if 0 < self._last < step else strategy.every
        values = self._attend(steps, changes)
        self._turn += 1
        if values is None:
            return True
        self._last = step
        count = len(weights)
        held = [array for slot in slots for array in slot]
        for array, value in zip((*held, *statistics), values, strict=True):
            np.copyto(array, value.reshape(array.shape))
        for weight, value in zip(weights, values[:count], strict=True):
            np.copyto(weight, value.reshape(weight.shape))
        self.session.transferred("AVERAGE_BY_QUORUM", begin, time.monotonic())
        return True

    def average(
        self,
        weights: Sequence[Array],
        slots: Sequence[Sequence[Array]],
        statistics: Sequence[Array],
    ) -> None:
        """See ``contracts.Encoding``. The result is the convener's values plus the mean of the
        changes since the last exchange: a late rank's weights are old, but its changes are not.
        """
        has_met = self._meeting is not None and bool(slots)
        # From here on, no rank sends changes. A rank without data may never have met.
        if not self.session.mean.any_of(has_met):
            super().average(weights, slots, statistics)
            return
        base, holders = [np.zeros_like(weight) for weight in weights], np.zeros(1)
        changes = deltas(weights, slots[0]) if slots else [each.copy() for each in base]
        if self._meeting is not None and slots:
            held = self._meeting.settle()
            holders += float(len(held) > 0)
            for array, value in zip(base, held, strict=False):
                np.copyto(array, value.reshape(array.shape))
        self.session.mean([*base, *changes, holders, *statistics])
        if not holders[0]:  # the convener has joined: the last average
            holders += float(has_met)
            if has_met:
                base = [anchor.copy() for anchor in slots[0]]
            self.session.mean([*base, holders])
        for weight, array, change in zip(weights, base, changes, strict=True):
            np.add(array / array.dtype.type(holders[0]), change, out=weight)
        self.averaged(weights, slots)

    def averaged(self, weights: Sequence[Array], slots: Sequence[Sequence[Array]]) -> None:
        """See ``contracts.Encoding``. The convener's values are outdated."""
        for anchor, weight in zip(slots[0] if slots else (), weights, strict=bool(slots)):
            np.copyto(anchor, weight)
        self.reset()

    def reset(self) -> None:
        """See ``contracts.Encoding``."""
        meeting, self._meeting = self._meeting, None
        self._last = self._turn = 0
        if meeting is not None:
            self._server.attended.remove(meeting)
            meeting.close()

    def other_weights(self) -> None:
        """See ``contracts.Encoding``."""
        self.reset()

    def _attend(self, steps: int, changes: Sequence[Array]) -> Sequence[Array] | None:
        """Return the values after the next average, or None if the convener is lost."""
        assert self._meeting is not None
        try:
            return self._meeting.attend(self._turn, steps, changes)
        except PeerLostError as error:
            if not context.is_elastic():
                raise
            logger.info("training continues alone until the next commit: %s", error)
            return None

    def _meet(
        self,
        strategy: Any,
        weights: Sequence[Array],
        slots: Sequence[Sequence[Array]],
        changes: Sequence[Array],
        given: ExchangeContext,
    ) -> None:
        """Agree on the convener: the first rank that has not joined. Collective."""
        from farandole.core.gossip.convener import Convener, ConvenerLink

        session, engine = self.session, self.session.engine
        self.reset()
        self._meetings += 1
        self._joins = engine.joins
        check_same_weights(engine, session.name, session.ranks, weights, given.names_of(weights))
        server = context.peer_server()
        addresses = gathered(engine, f"{session.name}.quorum", server.address.encode())
        places = [place for place, address in enumerate(addresses) if address]
        name = f"{session.unique_name}.quorum.{self._meetings}"
        count = len(weights)
        values = [_flat(each).copy() for slot in slots for each in slot]
        values += [change.copy() for change in changes[count:]]

        def combine(before: Sequence[Array], means: Sequence[Array]) -> Sequence[Array]:
            own = [array.copy() for array in before[: count * len(slots)]]
            columns = [own[begin : begin + count] for begin in range(0, len(own), count)]
            mean = [anchor + change for anchor, change in zip(own, means[:count], strict=False)]
            strategy.advance(mean, columns)
            return [*own, *means[count:]]

        if engine.rank == places[0]:
            ranks = [session.ranks[place] for place in places]
            convener = Convener(server, name, ranks, self._rule, values, changes, combine)
            self._meeting = convener
            session.mean.barrier()
            convener.await_all()
        else:
            session.mean.barrier()
            first, address = session.ranks[places[0]], json.loads(addresses[places[0]])
            self._meeting = link = ConvenerLink(name, first, address, server, values)
            link.greet()
        self._server = server
        server.attended.append(self._meeting)
        context.commit_alone()


def _flat(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1)
