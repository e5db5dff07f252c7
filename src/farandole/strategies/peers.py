"""The ranks of one optimizer, as seen by a strategy: collectively, at parameter servers, in
pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from farandole.base.contracts import ExchangeContext, PushCodec
from farandole.base.types import ReduceOp
from farandole.core.engine import Engine
from farandole.job import context
from farandole.strategies.centre import CentreConnection
from farandole.strategies.gossip.neighbours import NeighbourExchange, move_to_mean
from farandole.strategies.gossip.pairs import PairAverages
from farandole.strategies.mean import MeanReducer
from farandole.strategies.options import GradientOptions

if TYPE_CHECKING:
    from farandole.base.types import Array
    from farandole.core.ps.client import Pushed
    from farandole.core.ps.clocks import Rule


class PeerSession:
    """The ranks of one optimizer, for the lifetime of their engine.

    - ``name``: The optimizer's name, the same on all ranks.
    - ``spec``: Its strategy's spec, for messages.
    - ``push_codec``: The codec for this rank's pushes to parameter servers.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        options: GradientOptions,
        spec: str,
        push_codec: PushCodec | None = None,
    ) -> None:
        process_set = options.process_set
        self.engine = engine
        self.name = name
        self.ranks = process_set.ranks or range(engine.size)
        self.sum_options = GradientOptions(ReduceOp.SUM, process_set=process_set)
        self.mean = MeanReducer(name, self.sum_options)
        self.neighbours = NeighbourExchange(engine, name, self.ranks, spec)
        self.centre = CentreConnection(
            name, process_set, self.ranks, spec, self.transferred, push_codec
        )
        self._set = process_set
        self._pairs: PairAverages | None = None

    @property
    def unique_name(self) -> str:
        """The name among all sessions of this job: a process set that is removed and added again
        has the same ranks.
        """
        return f"{self.name}.{context.unique_id(self._set)}"

    def pairs(self, gamma: float | None) -> PairAverages:
        """Return the pairwise averages. ``gamma``: as in ``contracts.Peers.average_async``."""
        if self._pairs is None:
            self._pairs = PairAverages(
                self.engine,
                self.unique_name,
                self.ranks,
                self.transferred,
                1.0 if gamma is None else gamma,
            )
        return self._pairs

    def other_weights(self) -> None:
        """See ``WeightExchange.other_weights``."""
        self.centre.other_weights()
        if self._pairs is not None:
            self._pairs.other_weights()

    def close(self) -> None:
        """Stop pairwise averages."""
        if self._pairs is not None:
            self._pairs.close()

    def transferred(self, activity: str, begin: float, end: float) -> None:
        """Report a transfer outside of collectives, with its begin and end, to the timeline."""
        for observer in self.engine.observers.transferred:
            observer.transferred(self.name, activity, begin, end)


class EnginePeers:
    """The ranks of one optimizer during one exchange. See ``contracts.Peers``. An encoding
    overrides the methods whose arrays it compresses.
    """

    def __init__(self, session: PeerSession, context: ExchangeContext) -> None:
        self.rank = session.engine.rank
        self.size = session.engine.size
        self.session = session
        self.context = context
        self.statistics_travelled = False  # whether they were sent with the weights

    def average(self, arrays: Sequence[Array]) -> None:
        """See ``contracts.Peers``."""
        self.session.mean(arrays, self.context.names)

    def barrier(self) -> None:
        """See ``contracts.Peers``."""
        self.session.mean.barrier()

    def swap(self, arrays: Sequence[Array], to: Sequence[int]) -> dict[int, list[Array]]:
        """See ``contracts.Peers``."""
        return self.session.neighbours.swap(arrays, to, self.context.names_of(arrays))

    def average_with(
        self,
        arrays: Sequence[Array],
        to: Sequence[int],
        ever: Sequence[int] = (),
        gamma: float | None = None,
    ) -> None:
        """See ``contracts.Peers``."""
        move_to_mean(arrays, self.swap(arrays, to), 1.0 if gamma is None else gamma)

    def push(
        self, rule: Rule, anchors: Sequence[Array], changes: Sequence[Array], *, count: bool = True
    ) -> Pushed:
        """See ``contracts.Peers``."""
        statistics = self._statistics()
        names = self.context.names_of(anchors)
        return self.session.centre.push(rule, anchors, changes, statistics, names, count=count)

    def pull(self, into: Sequence[Array]) -> None:
        """See ``contracts.Peers``."""
        self.session.centre.pull(into, self._statistics())

    def average_async(
        self,
        anchors: Sequence[Array],
        changes: Sequence[Array],
        others: Sequence[int],
        *,
        damp: bool = False,
        gamma: float | None = None,
    ) -> int:
        """See ``contracts.Peers``."""
        statistics = self._statistics()
        group = self.session.pairs(gamma).group(anchors, statistics, self.context.names_of(anchors))
        stale = group.take([*changes, *statistics], damp)
        group.ask(others)
        return stale

    def average_shown(
        self, anchors: Sequence[Array], changes: Sequence[Array], *, gamma: float | None = None
    ) -> None:
        """See ``contracts.Peers``."""
        self.session.pairs(gamma).average_all(
            anchors, changes, self._statistics(), self.context.names_of(anchors), self.session.mean
        )

    def _statistics(self) -> Sequence[Array]:
        self.statistics_travelled = True
        return self.context.statistics
