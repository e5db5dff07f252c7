"""Averaging with one neighbour at a time, in the background: nobody waits for anybody."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from farandole.base.contracts import Peers
from farandole.core.ps.staleness import Staleness
from farandole.strategies.deltas import deltas, restart_from
from farandole.strategies.gossip.references import PairReference
from farandole.strategies.gossip.synchronous import GRAPHS
from farandole.strategies.specs import number, of_way, parsed, refuse, share, switch

if TYPE_CHECKING:
    from farandole.base.types import Array


def asked(graph: str, rank: int, size: int, turn: int) -> list[int]:
    """The neighbours of ``rank`` that it asks, the one whose turn it is in front. Of two neighbours
    the lower one asks; they are neighbours if one sends to the other in some turn of ``Gossip``.
    """
    turns = range(max((size - 1).bit_length(), 1))
    joined = GRAPHS[graph]
    higher = [
        other
        for other in range(rank + 1, size)
        if any(
            other in joined(rank, size, one) or rank in joined(other, size, one) for one in turns
        )
    ]
    first = turn % max(len(higher), 1)
    return higher[first:] + higher[:first]


class AsyncGossip:
    """Asynchronous decentralised SGD (Lian et al., "Asynchronous Decentralized Parallel Stochastic
    Gradient Descent", 2018): pairs of neighbours on ``graph`` average their weights in the
    background while all train.

    After every ``every``-th step a rank adds what it has learned to the weights that it shows to
    others, goes on from those, and begins an average with one neighbour, unless its last one is
    late. Each average keeps the sum of both. ``damp``: what a rank has learned is divided by the
    number of averages since its last exchange (Zhang et al., "Staleness-aware Async-SGD", 2016).
    ``staleness``: what this rank has seen of those. ``gamma``: how much of the way to their mean
    the two of a pair go, more than 0 and at most 1; None: all of it. There is no codec: ``Gossip``
    goes with one. Raises ValueError for options that make no sense.
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
        self.damp = switch(self.name, "damp", damp)
        self.gamma = share(self.name, "gamma", gamma)
        self.staleness = Staleness()

    @classmethod
    def parse(cls, argument: str) -> AsyncGossip:
        """Of ``gossip_async:ring,every=4``, what stands after the colon."""
        return parsed(cls, argument, "ring,every=4,damp=1")

    @property
    def spec(self) -> str:
        """In full: two ranks with other options have another one."""
        damp = ",damp=1" if self.damp else ""
        return f"{self.name}:{self.graph},every={self.every}{damp}{of_way(self.gamma)}"

    def due(self, step: Any) -> Any:
        return step % self.every == 0

    def exchange(
        self, weights: Sequence[Array], slots: Sequence[Sequence[Array]], peers: Peers, step: int
    ) -> None:
        (anchors,) = slots
        shown = deltas(weights, anchors)
        others = asked(self.graph, peers.rank, peers.size, step // self.every)
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
