"""Synchronous averages with neighbours on a graph: no rank sends to all others."""

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
    """Decentralised SGD: after every ``every``-th step, a rank averages its weights with its
    neighbours' weights on ``graph`` ("ring", "torus", "exponential" or "complete").

    Sources: Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms?", 2017;
    for the exponential graph with one neighbour per turn, Assran et al., "Stochastic Gradient
    Push", 2019. A rank sends to as many ranks as it receives from, which preserves the mean over
    all ranks. Weights differ between ranks, but less with more frequent exchanges.

    ``gamma``: the fraction of the distance to that mean that a rank moves, above 0 and up to 1;
    None: 1. With a codec, this is CHOCO-SGD (Koloskova et al., "Decentralized Stochastic
    Optimization and Gossip Algorithms with Compressed Communication", 2019): ``gamma`` is its
    consensus step size (None: the codec's default), and on the exponential graph a rank sends to
    all its neighbours in each turn. Raises ValueError for invalid options.
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
        """Parse the argument of a spec such as ``gossip:ring,every=4``."""
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
