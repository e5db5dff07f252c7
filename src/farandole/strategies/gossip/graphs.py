"""Graphs of ranks: the neighbours to which a rank sends in a turn (0, 1, 2 ...)."""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt


def ring(rank: int, size: int, turn: int) -> list[int]:
    """Return both neighbours on a ring."""
    return [(rank + 1) % size, (rank - 1) % size]


def torus(rank: int, size: int, turn: int) -> list[int]:
    """Return the four neighbours on a torus that is as square as ``size`` allows (a ring if
    ``size`` is prime).
    """
    columns = next(count for count in range(isqrt(size), 0, -1) if size % count == 0)
    row, column = divmod(rank, columns)
    rows = size // columns
    down, right = ((row + 1) % rows) * columns + column, row * columns + (column + 1) % columns
    up, left = ((row - 1) % rows) * columns + column, row * columns + (column - 1) % columns
    return [down, up, right, left]


def exponential(rank: int, size: int, turn: int) -> list[int]:
    """Return one rank per turn, 1, 2, 4 ... places ahead. If the number of ranks is a power of two,
    all ranks have the mean after one pass through the turns.
    """
    return [(rank + (1 << turn % max((size - 1).bit_length(), 1))) % size]


def complete(rank: int, size: int, turn: int) -> list[int]:
    """Return all other ranks."""
    return [other for other in range(size) if other != rank]


GRAPHS: dict[str, Callable[[int, int, int], list[int]]] = {
    "ring": ring,
    "torus": torus,
    "exponential": exponential,
    "complete": complete,
}


def higher_neighbours(graph: str, rank: int, size: int, turn: int) -> list[int]:
    """Return the neighbours above ``rank``, beginning with the one in this turn. Two ranks are
    neighbours if one sends to the other in some turn.
    """
    turns = range(max((size - 1).bit_length(), 1))
    neighbours_of = GRAPHS[graph]
    higher = [
        other
        for other in range(rank + 1, size)
        if any(
            other in neighbours_of(rank, size, one) or rank in neighbours_of(other, size, one)
            for one in turns
        )
    ]
    first = turn % max(len(higher), 1)
    return higher[first:] + higher[:first]
