"""Averages with neighbours on a graph, in step: no rank sends to all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from farandole.base.contracts import Peers
from farandole.strategies.gossip.graphs import GRAPHS
from farandole.strategies.gossip.references import NeighbourReference
from farandole.strategies.specs import fraction, gamma_suffix, number, parsed, refuse

if TYPE_CHECKING:
    from farandole.base.types import Array


class Gossip:
    """After every ``every``-th step, a rank's weights become the mean of its own and of those that
    its neighbours on ``graph`` sent: "ring", "torus", "exponential" or "complete".

    Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms?", 2017; the
    exponential graph with one neighbour a turn: Assran et al., "Stochastic Gradient Push", 2019.

    A rank sends to as many as it hears, so the mean over all ranks stays. Weights differ between
    ranks, the less the more often they gossip. ``gamma``: how much of the way to that mean a rank
    goes, more than 0 and at most 1; None: all of it. With a codec this is CHOCO-SGD (Koloskova et
    al., "Decentralized Stochastic Optimization and Gossip Algorithms with Compressed
    Communication", 2019), ``gamma`` its consensus step size, and None what suits the codec; on the
    exponential graph a rank then sends to all its neighbours in each turn. Raises ValueError for
    options that make no sense.
    """

    name = "gossip"
    epochs = False
    reference = NeighbourReference()
    slots: tuple[str, ...] = ()

    def __init__(
        self, graph: str = "exponential", *, every: int | str = 1, gamma: float | str | None = None
    ) -> None:
        if graph not in GRAPHS:
            refuse(self.name, "graph", graph, ", ".join(GRAPHS))
        self.graph = graph
        self.every = number(self.name, "every", every, at_least=1)
        self.gamma = fraction(self.name, "gamma", gamma)

    @classmethod
    def parse(cls, argument: str) -> Gossip:
        """Of ``gossip:ring,every=4``, what stands after the colon."""
        return parsed(cls, argument, "ring,every=4")

    @property
    def spec(self) -> str:
        return f"{self.name}:{self.graph},every={self.every}" + gamma_suffix(self.gamma)

    def due(self, step: Any) -> Any:
        return step % self.every == 0

    def exchange(
        self, weights: Sequence[Array], slots: Sequence[Sequence[Array]], peers: Peers, step: int
    ) -> None:
        rank, size = peers.rank, peers.size
        turns = [{*GRAPHS[self.graph](rank, size, turn)} - {rank} for turn in range(size)]
        to = {*GRAPHS[self.graph](rank, size, step // self.every)} - {rank}
        peers.average_with(weights, sorted(to), sorted(set[int]().union(*turns)), self.gamma)
