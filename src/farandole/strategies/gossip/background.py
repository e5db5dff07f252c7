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
    """Asynchronous decentralised SGD (Lian et al., "Asynchronous Decentralized Parallel Stochastic
    Gradient Descent", 2018): pairs of neighbours on ``graph`` average their weights in the
    background while all train.

    After every ``every``-th step a rank adds the change of its weights to its shared weights,
    continues from these, and begins an average with one neighbour, unless its last average is late.
    Each average keeps the sum of both ranks' weights. ``damp``: a change is divided by the number
    of averages since the rank's last exchange (Zhang et al., "Staleness-aware Async-SGD", 2016).
    ``staleness``: statistics of these numbers on this rank. ``gamma``: the share of the way to
    their mean that the two ranks move, more than 0 and at most 1; None: all of it. There is no
    codec: ``Gossip`` goes with one. Raises ValueError for options that make no sense.
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
        """Of ``gossip_async:ring,every=4``, what stands after the colon."""
        return parsed(cls, argument, "ring,every=4,damp=1")

    @property
    def spec(self) -> str:
        """In full: two ranks with other options have another one."""
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
        """The mean of what all ranks have learned."""
        (anchors,) = slots
        shown = deltas(weights, anchors)
        peers.average_shown(anchors, shown, gamma=self.gamma)
        restart_from(weights, anchors, shown)
