"""Memory for results owned by the caller, reused as soon as no reference is left.

Frameworks release an array at any later time, TensorFlow usually after another step. Two blocks of
memory therefore alternate.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from farandole.base.types import Array

_MAX_BLOCKS = 2  # alternating blocks
# Bytes. TensorFlow adopts arrays that begin at a multiple of this, and copies others.
ALIGNMENT = 64


class _Piece:
    def __init__(self, memory: Array) -> None:
        self.memory = memory
        # the lent array while any view of it is alive
        self.borrowed: Callable[[], Any] = lambda: None

    def lend(self) -> Array:
        """Return the memory as a separate array object, which lives until its last view is
        released.
        """
        view = memoryview(self.memory)  # type: ignore[arg-type]
        lent: Array = np.frombuffer(view, dtype=np.uint8)
        self.borrowed = weakref.ref(lent)
        return lent


class BufferPool:
    """Blocks of memory that the ranks have allocated together."""

    def __init__(self) -> None:
        self._pieces: list[_Piece] = []

    def lend(self, nbytes: int, turn: int) -> tuple[Array, bool]:
        """Return at least ``nbytes`` of unreferenced memory, and whether all ranks should allocate
        another block.

        The array begins at a multiple of ``ALIGNMENT``. If no shared block is free, it is private
        memory of this process. ``turn``: the number of the use, the same on all ranks, so that all
        take the same block.
        """
        pieces = [piece for piece in self._pieces if len(piece.memory) >= nbytes]
        piece = pieces[turn % len(pieces)] if pieces else None
        if piece is not None and piece.borrowed() is None:
            return piece.lend(), False
        return _fresh(nbytes), len(pieces) < _MAX_BLOCKS

    def add(self, memory: Array) -> None:
        """Add a block, and drop the smallest if there are too many."""
        self._pieces = sorted([*self._pieces, _Piece(memory)], key=lambda piece: len(piece.memory))[
            -_MAX_BLOCKS:
        ]


def _fresh(nbytes: int) -> Array:
    memory = np.empty(nbytes + ALIGNMENT, dtype=np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    return memory[first : first + nbytes]
