"""The distribution of tensors over servers, in pieces by size. Pure, and the same on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

PIECE = 1 << 20  # largest number of elements in a piece: a large tensor is spread over servers


class Piece(NamedTuple):
    """Elements ``begin`` to ``end`` of a flat tensor."""

    tensor: int
    begin: int
    end: int


def shape_of(piece: Piece, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of a piece of a tensor: a matrix if it consists of whole rows, else flat."""
    count, columns = piece.end - piece.begin, prod(shape[1:])
    if len(shape) < 2 or piece.begin % columns or count % columns:
        return (count,)
    return (count // columns, columns)


def spread(sizes: Sequence[int], servers: int) -> list[list[Piece]]:
    """Return the pieces of each server, in the order of the tensors.

    Pieces are assigned by decreasing size, each to the server with the least load. ``sizes``:
    elements in each tensor.
    """
    pieces = [
        Piece(tensor, begin, min(begin + PIECE, size))
        for tensor, size in enumerate(sizes)
        for begin in range(0, size, PIECE)
    ]
    found: list[list[Piece]] = [[] for _ in range(servers)]
    loads = [0] * servers
    for piece in sorted(pieces, key=lambda piece: piece.begin - piece.end):
        least = loads.index(min(loads))
        found[least].append(piece)
        loads[least] += piece.end - piece.begin
    return [sorted(own) for own in found]
