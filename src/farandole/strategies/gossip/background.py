"""Averages with one neighbour at a time, in the background: no rank waits for another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from farandole.base.contracts import Peers
from farandole.core.ps.staleness import Staleness
from farandole.strategies.deltas import deltas, restart_from
from farandole.strategies.gossip.graphs import GRAPHS, higher_neighbours
from farandole.strategies.gossip.references import PairReference
from farandole.strategies.specs import boolean, fraction, gamma_suffix, number, parsed, refuse

if TYPE_CHECKING:
    from farandole.base.types import Array


class AsyncGossip:
    """Asynchronous decentralised SGD: pairs of neighbours on ``graph`` average their weights in the
    background while all ranks train (Lian et al., "Asynchronous Decentralized Parallel Stochastic
    Gradient Descent", 2018).

    After every ``every``-th step, a rank adds the change of its weights to its shared weights,
    continues from these, and starts an average with one neighbour unless its last average is still
    running. Each average preserves the sum of both ranks' weights.

    - ``damp``: Divide a change by the number of averages since the rank's last exchange (Zhang et
      al., "Staleness-aware Async-SGD", 2016).
    - ``staleness``: Statistics of that number on this rank.
    - ``gamma``: The fraction of the distance to their mean that two ranks move, above 0 and up to
      1; None: 1.

    No codec is supported; use ``Gossip`` with a codec. Raises ValueError for invalid options.
    """

    name = "gossip_async"
    epochs = False
    reference = PairReference()
    slots = ("weights",)

    def __init__(
        self,
        graph: str = "exponential",
        *,
        every: int | str = 1,
        damp: bool | str = False,
        gamma: float | str | None = None,
    ) -> None:
        if graph not in GRAPHS:
            refuse(self.name, "graph", graph, ", ".join(GRAPHS))
        self.graph = graph
        self.every = number(self.name, "every", every, at_least=1)
        self.damp = boolean(self.name, "damp", damp)
        self.gamma = fraction(self.name, "gamma", gamma)
        self.staleness = Staleness()

    @classmethod
    def parse(cls, argument: str) -> AsyncGossip:
        """Parse the argument of a spec such as ``gossip_async:ring,every=4``."""
        return parsed(cls, argument, "ring,every=4,damp=1")

    @property
    def spec(self) -> str:
        """The complete spec; it differs between ranks with different options."""
        damp = ",damp=1" if self.damp else ""
        return f"{self.name}:{self.graph},every={self.every}{damp}{gamma_suffix(self.gamma)}"

    def due(self, step: Any) -> Any:
        return step % self.every == 0

    def exchange(
        self, weights: Sequence[Array], slots: Sequence[Sequence[Array]], peers: Peers, step: int
    ) -> None:
        (anchors,) = slots
        shown = deltas(weights, anchors)
        others = higher_neighbours(self.graph, peers.rank, peers.size, step // self.every)
        self.staleness.see(
            peers.average_async(anchors, shown, others, damp=self.damp, gamma=self.gamma)
        )
        restart_from(weights, anchors, shown)

    def consolidate(
        self, weights: Sequence[Array], slots: Sequence[Sequence[Array]], peers: Peers
    ) -> None:
        """Set the weights to the mean of all ranks' progress."""
        (anchors,) = slots
        shown = deltas(weights, anchors)
        peers.average_shown(anchors, shown, gamma=self.gamma)
        restart_from(weights, anchors, shown)
