"""The gradients of a step, all at once: for frameworks that hand them over as a list of arrays.

All arrays of one type travel as one flat buffer, in memory that the transport reduces where it stands. Where results
must be new arrays, large ones are read where they stand instead, and reduced into their results: copying them costs as
much as exchanging them. With all of them goes a digest of what the list holds, so that ranks with different models are
told so, rather than given sums of what does not belong together.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from farandole import context
from farandole.collectives.kernels import narrow_into, widen
from farandole.context import ProcessSet
from farandole.engine import Engine, Entry, Handle
from farandole.errors import HorovodInternalError, RequestError
from farandole.frontend.objects import allgather_object
from farandole.frontend.ops import WORLD
from farandole.types import Buffer, DType, Kind, ReduceOp, Request

if TYPE_CHECKING:
    from farandole.types import Array

ALIGNMENT = 64  # what frameworks want of arrays that they take over
_LARGE = 64 << 10  # bytes
_LACK = 2  # the word of a digest that tells of memory


class _Flat(NamedTuple):
    """A flat buffer: of many arrays, or of one that is not copied into it."""

    dtype: DType
    elements: int
    alone: bool

    def room(self) -> int:
        return -(-self.elements * self.dtype.itemsize // ALIGNMENT) * ALIGNMENT


class _Plan(NamedTuple):
    """Where the arrays of one list stand in the flat buffers, and how these travel."""

    digest: int
    table: list[tuple[str, tuple[int, ...], str]]
    flats: list[_Flat]
    places: list[tuple[int, int, int]]  # per array: its buffer, where it begins, its elements

    def nbytes(self) -> int:
        return sum(flat.room() for flat in self.flats)

    def cut(self, memory: Array) -> list[Array]:
        """The flat buffers."""
        ends = list(accumulate(flat.room() for flat in self.flats))
        return [
            memory[end - flat.room() :][: flat.elements * flat.dtype.itemsize].view(flat.dtype.storage)
            for flat, end in zip(self.flats, ends, strict=True)
        ]


class Exchange:
    """Reduces a list of arrays over all ranks, over and over: ``results = exchange(arrays, names)``."""

    def __init__(
        self, name: str, op: ReduceOp = ReduceOp.AVERAGE, prescale: float = 1.0, postscale: float = 1.0,
        process_set: ProcessSet = WORLD, wire: DType | None = None,
    ) -> None:  # fmt: skip
        """``name``: what the ranks agree by, so it must be the same on all of them and not in use elsewhere.
        ``wire``: the 16-bit float type to send wider floats as.
        """
        self.name, self.op, self.process_set = name, op, process_set
        self.scales, self._wire = (prescale, postscale), wire
        self._busy = threading.Lock()
        self._engine: Engine | None = None
        self._plans: dict[Any, _Plan] = {}
        self._memory: Any = np.empty(0, dtype=np.uint8)
        self._own = self._memory  # of this process alone: while the transport's is not there
        self._allocations = 0

    def __call__(self, arrays: Sequence[Array], names: Sequence[str] | None = None) -> list[Array]:
        """Arrays of the same shapes and types: views of memory that the next call overwrites (copies, when they were
        sent as another type). See ``start`` for what is raised."""
        return self.start(arrays, names)()

    def start(
        self, arrays: Sequence[Array], names: Sequence[str] | None = None, *, new: bool = False
    ) -> Callable[[], list[Array]]:
        """Send ``arrays``; calling the result waits, and gives what ``__call__`` gives; or, if ``new`` (the same on all
        ranks), new arrays, and the large ones begin at a multiple of ``ALIGNMENT`` bytes. Until then ``arrays`` must
        stay as they are.

        ``arrays``: the same number, shapes and types on all ranks, in the same order; any layout. A bfloat16 array is
        one whose dtype has that name. ``names`` are for messages.
        Raises ValueError on all ranks, naming rank and array, when the lists differ or a type cannot be reduced.
        A second start waits for the end of the first.
        """
        plan = self._planned(arrays, names, new)
        self._busy.acquire()
        try:
            engine = self._open()
            memory = _aligned(plan.nbytes()) if new else self._room(plan.nbytes())
            flats = plan.cut(memory)
            given = list(flats)
            for array, (number, begin, count) in zip(arrays, plan.places, strict=True):
                dtype, _, alone = plan.flats[number]
                if alone:
                    given[number] = _storage(np.ascontiguousarray(array), dtype).reshape(-1)
                else:
                    _put(flats[number][begin : begin + count], array, dtype)
            lack = not new and memory is not self._memory
            words = np.array([plan.digest, -plan.digest, -1 if lack else 0], dtype=np.int64)
            handle = engine.submit(self._entries(plan, given, flats, words), soon=True)
        except BaseException:
            self._busy.release()
            raise

        def finish() -> list[Array]:
            try:
                return self._finish(engine, handle, plan, flats, words, arrays)
            finally:
                self._busy.release()

        return finish

    def _finish(
        self, engine: Engine, handle: Handle, plan: _Plan, flats: list[Array], words: Array, arrays: Sequence[Array]
    ) -> list[Array]:
        try:
            handle.wait()
        except HorovodInternalError as error:
            if "Mismatched" in str(error):
                self._explain(plan, error)
            raise
        if words[0] != -words[1]:
            self._explain(plan, None)
        results = [
            _get(flats[number][begin : begin + count], array, plan.flats[number].dtype)
            for array, (number, begin, count) in zip(arrays, plan.places, strict=True)
        ]
        if words[_LACK] < 0:
            self._allocate(engine, plan.nbytes())
        return results

    # What travels, and in what memory.

    def _planned(self, arrays: Sequence[Array], names: Sequence[str] | None, new: bool) -> _Plan:
        shapes = tuple([(array.shape, array.dtype) for array in arrays])
        key = (shapes, tuple(names) if names is not None else None, new)
        plan = self._plans.get(key)
        if plan is None:
            labels = [f"number {number}" for number in range(len(arrays))] if names is None else names
            table = [
                (label, array.shape, _dtype(array, label).value) for label, array in zip(labels, arrays, strict=True)
            ]
            plan = self._plans[key] = self._plan(arrays, table, new and self.op is not ReduceOp.ADASUM)
        return plan

    def _plan(self, arrays: Sequence[Array], table: list[tuple[str, tuple[int, ...], str]], apart: bool) -> _Plan:
        """``apart``: large arrays are not copied into the flat buffers. (Adasum makes one direction of a buffer.)"""
        shared: dict[DType, int] = {}
        flats: list[_Flat] = []
        places = []
        for array, (_, _, value) in zip(arrays, table, strict=True):
            dtype = DType(value)
            narrower = self._wire is not None and dtype.is_float and dtype.itemsize > self._wire.itemsize
            if self._wire is not None and narrower:
                dtype = self._wire
            alone = apart and not narrower and array.nbytes >= _LARGE
            number = len(flats) if alone else shared.setdefault(dtype, len(flats))
            if number == len(flats):
                flats.append(_Flat(dtype, 0, alone))
            begin = flats[number].elements
            places.append((number, begin, array.size))
            flats[number] = _Flat(dtype, begin + array.size, alone)
        digest = hashlib.sha256(repr(table).encode()).digest()
        return _Plan(int.from_bytes(digest[:7], "big"), table, flats, places)

    def _entries(self, plan: _Plan, given: list[Array], flats: list[Array], words: Array) -> list[Entry]:
        """The digest and the flat buffers, as one group."""
        members = len(flats) + 1
        digest = Request(
            f"{self.name}.digest", Kind.ALLREDUCE, DType.INT64, words.shape, ReduceOp.MIN,
            group=self.name, group_size=members,
        )  # fmt: skip
        entries = [Entry(digest, Buffer(words, words, DType.INT64))]
        for number, (dtype, _, _) in enumerate(plan.flats):
            request = Request(
                f"{self.name}.{number}", Kind.ALLREDUCE, dtype, flats[number].shape, self.op, 0, *self.scales,
                group=self.name, group_size=members,
            )  # fmt: skip
            entries.append(Entry(request, Buffer(given[number], flats[number], dtype)))
        return entries

    def _open(self) -> Engine:
        """The engine of today. What was allocated through an earlier one is gone with it."""
        engine = context.engine(self.process_set)
        if engine is not self._engine:
            self._engine, self._allocations = engine, 0
            self._memory = np.empty(0, dtype=np.uint8)
        return engine

    def _room(self, nbytes: int) -> Any:
        if len(self._memory) >= nbytes:
            return self._memory
        if len(self._own) < nbytes:
            self._own = np.empty(nbytes, dtype=np.uint8)
        return self._own

    def _allocate(self, engine: Engine, nbytes: int) -> None:
        """Memory of the transport for the calls to come. All ranks are here: somebody had told that it lacks some."""
        self._allocations += 1
        try:
            self._memory = engine.allocate(nbytes, f"{self.name}.{nbytes}")
            self._own = np.empty(0, dtype=np.uint8)
        except HorovodInternalError as error:
            if "with Join" not in str(error):
                raise

    # When the ranks do not agree.

    def _explain(self, plan: _Plan, error: Exception | None) -> None:
        """Raise ValueError with the first difference between the ranks' lists. Collective."""
        tables = allgather_object(plan.table, f"{self.name}.tables", self.process_set)
        odd = next((rank for rank, table in enumerate(tables) if table != tables[0]), None)
        if odd is None:
            return
        mine, theirs = tables[0], tables[odd]
        if len(mine) != len(theirs):
            what = f"rank 0 has {len(mine)} of them, rank {odd} has {len(theirs)}"
        else:
            one, two = next((one, two) for one, two in zip(mine, theirs, strict=True) if one != two)
            what = f"rank 0 has {one}, rank {odd} has {two} (name, shape, type)"
        raise ValueError(
            f"{self.name}: all ranks must exchange the same arrays in the same order, but {what}. Build the same model "
            "on all ranks, and compute the same gradients in each step"
        ) from error


def _dtype(array: Array, label: str) -> DType:
    try:
        return DType(array.dtype.name)
    except ValueError:
        known = ", ".join(dtype.value for dtype in DType)
        raise RequestError(f"array {label!r} has type {array.dtype}, which is none of {known}") from None


def _aligned(nbytes: int) -> Array:
    memory = np.empty(nbytes + ALIGNMENT, dtype=np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    return memory[first : first + nbytes]


def _storage(array: Array, dtype: DType) -> Array:
    return array.view(np.uint16) if dtype is DType.BFLOAT16 else array


def _put(place: Array, array: Array, dtype: DType) -> None:
    if array.dtype.name == dtype.value:
        place.reshape(array.shape)[...] = _storage(array, dtype)
    elif dtype is DType.FLOAT16:
        with np.errstate(over="ignore"):  # what is too large for it becomes infinite
            place.reshape(array.shape)[...] = array
    else:
        narrow_into(place, np.ascontiguousarray(array, dtype=np.float32).reshape(-1), dtype)


def _get(place: Array, array: Array, dtype: DType) -> Array:
    same = array.dtype.name == dtype.value
    flat = place.view(array.dtype) if same else widen(place, dtype).astype(array.dtype, copy=False)
    shaped: Array = flat.reshape(array.shape)
    return shaped
