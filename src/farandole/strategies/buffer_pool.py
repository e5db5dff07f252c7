"""Memory for results that belong to whoever gets them, and is used again when it is held by nobody
any more.

Frameworks let go of an array when they please: TensorFlow mostly a step later. Then a second piece
of memory takes turns with the first.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from farandole.base.types import Array

_MOST = 2  # pieces that take turns
# bytes: TensorFlow takes over arrays that begin at a multiple of it, and copies others
ALIGNMENT = 64


class _Piece:
    def __init__(self, memory: Array) -> None:
        self.memory = memory
        # the array whose views are out, while there are any
        self.borrowed: Callable[[], Any] = lambda: None

    def lend(self) -> Array:
        """The memory as an array of its own: it lives as long as its views."""
        view = memoryview(self.memory)  # type: ignore[arg-type]
        lent: Array = np.frombuffer(view, dtype=np.uint8)
        self.borrowed = weakref.ref(lent)
        return lent


class BufferPool:
    """Pieces of memory that some ranks have allocated together. ``turn``: the number of the use,
    alike on all ranks, so that all of them take the same piece.
    """

    def __init__(self) -> None:
        self._pieces: list[_Piece] = []

    def lend(self, nbytes: int, turn: int) -> tuple[Array, bool]:
        """At least ``nbytes`` that nobody holds (fresh memory of this process, when it must be),
        beginning at a multiple of ``ALIGNMENT``; and whether the ranks should allocate another
        piece, all together.
        """
        pieces = [piece for piece in self._pieces if len(piece.memory) >= nbytes]
        piece = pieces[turn % len(pieces)] if pieces else None
        if piece is not None and piece.borrowed() is None:
            return piece.lend(), False
        return _fresh(nbytes), len(pieces) < _MOST

    def add(self, memory: Array) -> None:
        """One more piece; if they are too many, the smallest goes."""
        self._pieces = sorted([*self._pieces, _Piece(memory)], key=lambda piece: len(piece.memory))[
            -_MOST:
        ]


def _fresh(nbytes: int) -> Array:
    memory = np.empty(nbytes + ALIGNMENT, dtype=np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    return memory[first : first + nbytes]
