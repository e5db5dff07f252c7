"""Averaging with neighbours alone: nobody is in the centre, and no rank talks to all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isqrt
from typing import TYPE_CHECKING, Any

from farandole.base.contracts import Peers
from farandole.strategies.gossip.references import NeighbourReference
from farandole.strategies.specs import number, of_way, parsed, refuse, share

if TYPE_CHECKING:
    from farandole.base.types import Array


def ring(rank: int, size: int, turn: int) -> list[int]:
    """Both neighbours on a ring."""
    return [(rank + 1) % size, (rank - 1) % size]


def torus(rank: int, size: int, turn: int) -> list[int]:
    """The four neighbours on a grid whose edges meet, as square as ``size`` allows (a ring, if it
    is prime).
    """
    columns = next(count for count in range(isqrt(size), 0, -1) if size % count == 0)
    row, column = divmod(rank, columns)
    rows = size // columns
    down, right = ((row + 1) % rows) * columns + column, row * columns + (column + 1) % columns
    up, left = ((row - 1) % rows) * columns + column, row * columns + (column - 1) % columns
    return [down, up, right, left]


def exponential(rank: int, size: int, turn: int) -> list[int]:
    """One rank a turn, 1, 2, 4 ... places on: with a power of two ranks, all have the mean after
    one pass.
    """
    return [(rank + (1 << turn % max((size - 1).bit_length(), 1))) % size]


def complete(rank: int, size: int, turn: int) -> list[int]:
    """Everybody."""
    return [other for other in range(size) if other != rank]


GRAPHS: dict[str, Callable[[int, int, int], list[int]]] = {
    "ring": ring,
    "torus": torus,
    "exponential": exponential,
    "complete": complete,
}


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
        self.gamma = share(self.name, "gamma", gamma)

    @classmethod
    def parse(cls, argument: str) -> Gossip:
        """Of ``gossip:ring,every=4``, what stands after the colon."""
        return parsed(cls, argument, "ring,every=4")

    @property
    def spec(self) -> str:
        return f"{self.name}:{self.graph},every={self.every}" + of_way(self.gamma)

    def due(self, step: Any) -> Any:
        return step % self.every == 0

    def exchange(
        self, weights: Sequence[Array], slots: Sequence[Sequence[Array]], peers: Peers, step: int
    ) -> None:
        rank, size = peers.rank, peers.size
        turns = [{*GRAPHS[self.graph](rank, size, turn)} - {rank} for turn in range(size)]
        to = {*GRAPHS[self.graph](rank, size, step // self.every)} - {rank}
        peers.average_with(weights, sorted(to), sorted(set[int]().union(*turns)), self.gamma)
