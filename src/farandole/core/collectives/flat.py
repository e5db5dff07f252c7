"""Helpers of the algorithms: several arrays treated as one long array, and reusable memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from farandole.base.types import Array


class Scratch:
    """Named pieces of memory, kept between calls: new memory costs a page fault every 4 KiB."""

    def __init__(self) -> None:
        self._pieces: dict[object, Array] = {}

    def take(self, name: object, length: int, dtype: np.dtype[Any]) -> Array:
        """Return ``length`` elements. Earlier contents under the same name are overwritten."""
        nbytes = length * dtype.itemsize
        piece = self._pieces.get(name)
        if piece is None or len(piece) < nbytes:
            piece = self._pieces[name] = np.empty(nbytes, np.uint8)
        view: Array = piece[:nbytes].view(dtype)
        return view


class Flat:
    """Concatenated arrays of one dtype (at least one array). A range within one array is not
    copied.
    """

    def __init__(self, arrays: Sequence[Array]) -> None:
        self.arrays = [array for array in arrays if len(array)] or list(arrays[:1])
        self.starts = [0]
        for array in self.arrays[:-1]:
            self.starts.append(self.starts[-1] + len(array))
        self.size = self.starts[-1] + len(self.arrays[-1])
        self.dtype = self.arrays[0].dtype

    def view(self, lo: int, hi: int) -> Array | None:
        """Return a view of the range, or None if it crosses from one array to the next."""
        index = bisect_right(self.starts, lo) - 1
        start, array = self.starts[index], self.arrays[index]
        return array[lo - start : hi - start] if hi - start <= len(array) else None

    def read(self, lo: int, hi: int) -> Array:
        """Return a view of the range if possible, else a copy."""
        view = self.view(lo, hi)
        return np.concatenate(list(self._pieces(lo, hi))) if view is None else view

    def write(self, lo: int, values: Array) -> None:
        """Copy ``values`` to the range that starts at ``lo``."""
        done = 0
        for piece in self._pieces(lo, lo + len(values)):
            piece[:] = values[done : done + len(piece)]
            done += len(piece)

    def _pieces(self, lo: int, hi: int) -> list[Array]:
        pieces = []
        index = bisect_right(self.starts, lo) - 1
        while lo < hi:
            start, array = self.starts[index], self.arrays[index]
            end = min(hi, start + len(array))
            pieces.append(array[lo - start : end - start])
            lo, index = end, index + 1
        return pieces
