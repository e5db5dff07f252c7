"""The layout of a list of arrays in a few flat buffers, one per dtype.

Large writable arrays are sent separately, without a copy.
"""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from farandole.base.types import DType
from farandole.core.kernels import narrow_into, widen
from farandole.errors import RequestError
from farandole.strategies.buffer_pool import ALIGNMENT

if TYPE_CHECKING:
    from farandole.base.types import Array

LARGE = 1 << 16  # bytes


class FlatLayout(NamedTuple):
    """The places of the arrays of one list. ``digest``: a hash of the list's names, shapes and
    dtypes.
    """

    digest: int
    table: list[tuple[str, tuple[int, ...], str]]  # per array: name, shape, dtype
    sizes: list[tuple[DType, int]]  # elements per flat buffer
    # per array: its buffer, offset and number of elements; None if it is sent separately
    places: list[tuple[int, int, int] | None]
    gaps: list[tuple[int, int, int]]  # between arrays: the buffer, begin, end
    keys: list[str]  # per array: its name, made unique within the list

    def nbytes(self) -> int:
        return sum(count * dtype.itemsize for dtype, count in self.sizes)

    def alone(self) -> list[int]:
        """Return the indexes of the arrays that are sent separately."""
        return [number for number, place in enumerate(self.places) if place is None]

    def cut(self, memory: Array) -> list[Array]:
        """Return the flat buffers as slices of ``memory``, which has at least ``nbytes()``."""
        flats, begin = [], 0
        for dtype, count in self.sizes:
            end = begin + count * dtype.itemsize
            flats.append(memory[begin:end].view(dtype.storage))
            begin = end
        return flats

    def place(
        self, number: int, flats: Sequence[Array], arrays: Sequence[Array]
    ) -> tuple[DType, Array]:
        """Return the dtype and the flat memory with which an array is sent."""
        found = self.places[number]
        if found is None:
            return DType(self.table[number][2]), memory_of(arrays[number])
        buffer, begin, count = found
        return self.sizes[buffer][0], flats[buffer][begin : begin + count]

    def fill(self, flats: Sequence[Array], arrays: Sequence[Array]) -> None:
        """Copy ``arrays`` into the buffers."""
        for array, place in zip(arrays, self.places, strict=True):
            if place is not None:
                number, begin, count = place
                _put(flats[number][begin : begin + count], array, self.sizes[number][0])
        for number, begin, end in self.gaps:
            flats[number][begin:end] = 0

    def unpack(self, flats: Sequence[Array], arrays: Sequence[Array]) -> list[Array]:
        """Return the buffers' contents as views with the shapes and dtypes of ``arrays``. Arrays
        that were sent separately are returned unchanged.
        """
        results = []
        for array, place in zip(arrays, self.places, strict=True):
            if place is None:
                results.append(array)
            else:
                number, begin, count = place
                results.append(
                    _get(flats[number][begin : begin + count], array, self.sizes[number][0])
                )
        return results


def flat_layout(
    arrays: Sequence[Array], names: Sequence[str] | None, wire: DType | None, in_place: bool
) -> FlatLayout:
    """Lay out ``arrays``. ``wire``: the 16-bit dtype to which wider floats are cast. ``in_place``:
    large arrays are sent separately. Raises RequestError for a dtype that cannot be reduced.
    """
    labels = [f"number {number}" for number in range(len(arrays))] if names is None else names
    table = [
        (label, array.shape, _dtype(array, label).value)
        for label, array in zip(labels, arrays, strict=True)
    ]
    numbers: dict[DType, int] = {}
    counts: list[int] = []
    places: list[tuple[int, int, int] | None] = []
    gaps = []
    for array, (_, _, value) in zip(arrays, table, strict=True):
        dtype = DType(value)
        if wire is not None and dtype.is_float and dtype.itemsize > wire.itemsize:
            dtype = wire
        elif in_place and array.nbytes >= LARGE:
            places.append(None)
            continue
        number = numbers.setdefault(dtype, len(numbers))
        if number == len(counts):
            counts.append(0)
        end = counts[number] + array.size
        places.append((number, counts[number], array.size))
        counts[number] = -(-end * dtype.itemsize // ALIGNMENT) * ALIGNMENT // dtype.itemsize
        if end < counts[number]:
            gaps.append((number, end, counts[number]))
    digest = hashlib.sha256(repr(table).encode()).digest()
    sizes = list(zip(numbers, counts, strict=True))
    return FlatLayout(
        int.from_bytes(digest[:7], "big"),
        table,
        sizes,
        places,
        gaps,
        numbered(name for name, _, _ in table),
    )


def numbered(names: Iterable[str]) -> list[str]:
    """Return ``names`` with a number appended to each repetition."""
    seen: Counter[str] = Counter()
    keys = []
    for name in names:
        seen[name] += 1
        keys.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return keys


def memory_of(array: Array) -> Array:
    """Return the memory of a contiguous array in the dtype with which it is sent."""
    flat = array.reshape(-1)
    return flat.view(np.uint16) if _name(array.dtype) == DType.BFLOAT16.value else flat


def separate(arrays: Sequence[Array]) -> list[Array]:
    """Return ``arrays``, with copies of those that cannot be reduced in place: arrays that are not
    contiguous or share their memory with an earlier one (autograd may return a gradient twice).
    """
    seen: set[int] = set()
    results = []
    for array in arrays:
        place = array.ctypes.data
        results.append(array if array.flags.c_contiguous and place not in seen else array.copy())
        seen.add(place)
    return results


def write_back(results: Sequence[Array], arrays: Sequence[Array]) -> list[Array]:
    """Copy ``results`` into ``arrays`` and return ``arrays``."""
    for result, array in zip(results, arrays, strict=True):
        if result is not array:
            array[...] = result
    return list(arrays)


@functools.cache
def _name(dtype: np.dtype[Any]) -> str:
    """Return ``dtype.name``, which numpy composes on each access."""
    return str(dtype.name)


def _dtype(array: Array, label: str) -> DType:
    try:
        return DType(_name(array.dtype))
    except ValueError:
        known = ", ".join(dtype.value for dtype in DType)
        complex_too = array.dtype.kind == "c"
        cure = (
            "Pass its real and imaginary parts as two arrays"
            if complex_too
            else "Cast it first, for example to float32"
        )
        raise RequestError(
            f"array {label!r} has the unsupported type {array.dtype}; the supported types are"
            f" {known}. {cure}"
        ) from None


def _put(place: Array, array: Array, dtype: DType) -> None:
    if _name(array.dtype) == dtype.value:
        source = array.view(np.uint16) if dtype is DType.BFLOAT16 else array
        place.reshape(array.shape)[...] = source
    elif dtype is DType.FLOAT16:
        with np.errstate(over="ignore"):  # values out of range become infinite
            place.reshape(array.shape)[...] = array
    else:
        narrow_into(place, np.ascontiguousarray(array, dtype=np.float32).reshape(-1), dtype)


def _get(place: Array, array: Array, dtype: DType) -> Array:
    same = _name(array.dtype) == dtype.value
    flat = place.view(array.dtype) if same else widen(place, dtype).astype(array.dtype, copy=False)
    shaped: Array = flat.reshape(array.shape)
    return shaped
