"""Which server holds what: tensors in pieces, spread by size. Pure; the same on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

PIECE = 1 << 20  # numbers in a piece, at most: a large tensor is spread over servers


class Piece(NamedTuple):
    """Numbers ``begin`` to ``end`` of a tensor, flat."""

    tensor: int
    begin: int
    end: int


def shape_of(piece: Piece, shape: Sequence[int]) -> tuple[int, ...]:
    """Of a piece of a tensor of this shape: a matrix, as long as it has whole rows of one; else
    flat.
    """
    count, columns = piece.end - piece.begin, prod(shape[1:])
    if len(shape) < 2 or piece.begin % columns or count % columns:
        return (count,)
    return (count // columns, columns)


def spread(sizes: Sequence[int], servers: int) -> list[list[Piece]]:
    """The pieces of each server, in order of tensors: the largest first to whoever has least so
    far. ``sizes``: numbers in each tensor.
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
