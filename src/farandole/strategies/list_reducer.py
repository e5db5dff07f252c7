"""Reduction of all gradients of a step at once, for frameworks that pass them as a list.

All arrays of one dtype are sent as one flat buffer, in memory that the transport reduces in place.
The results are views of that memory, which is not reused while any of them is referenced. Large
arrays are not copied if results may be written to them. A digest of the list is sent with the
arrays, so that ranks with different models get an error instead of sums of unrelated arrays.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from farandole.base.contracts import Codec, Retractable
from farandole.base.differences import first_difference
from farandole.base.digests import combined, gradient_digest
from farandole.base.types import Buffer, DType, Kind, ReduceOp, Request
from farandole.checks.agreement import Replica, ReplicaComparison
from farandole.checks.catalogue import MODEL_MISMATCH
from farandole.checks.finding import error_of
from farandole.core.api.objects import allgather_object
from farandole.core.engine import Engine, Entry, Handle
from farandole.errors import JoinedError, MismatchError
from farandole.job import context
from farandole.job.report import training_progress
from farandole.strategies.buffer_pool import BufferPool
from farandole.strategies.codec_context import CodecContext
from farandole.strategies.codecs import claim, codec
from farandole.strategies.flat_layout import (
    FlatLayout,
    flat_layout,
    memory_of,
    separate,
    write_back,
)
from farandole.strategies.options import AVERAGE, GradientOptions

if TYPE_CHECKING:
    from farandole.base.types import Array

_ANY, _NONE = -1, 0  # a flag whose minimum is -1 if any rank sets it


class ListDigest(NamedTuple):
    """Properties of a list that are sent with it and reduced to their minimum.

    - ``digest``: A hash of the shapes and dtypes.
    - ``same``: Whether the digest is the same on all ranks.
    - ``lacks_memory``: Whether any rank has no memory of the transport.
    - ``turn``: The number of uses of the shared memory.
    - ``compare``: Whether any rank requests a comparison of the replicas.
    """

    digest: int
    lacks_memory: bool
    turn: int
    compare: bool
    same: bool = True

    def pack(self) -> Array:
        """Return the words to reduce."""
        lacks = _ANY if self.lacks_memory else _NONE
        compare = _ANY if self.compare else _NONE
        return np.array([self.digest, -self.digest, lacks, -self.turn, compare], dtype=np.int64)

    @classmethod
    def unpack(cls, words: Array) -> ListDigest:
        """Decode the reduced words."""
        digest, negated, lacks, turn, compare = words.tolist()
        return cls(digest, lacks == _ANY, -turn, compare == _ANY, digest == -negated)


class GradientListReducer:
    """Reduces lists of arrays over all ranks: ``results = reducer(arrays, names)``."""

    def __init__(
        self,
        name: str,
        options: GradientOptions = AVERAGE,
        replica: Replica | None = None,
        scope: str = "",
    ) -> None:
        """Create the reducer.

        - ``name``: A unique name for the negotiation, the same on all ranks.
        - ``options``: Floats wider than ``options.wire`` are cast to it; the caller applies
          ``options.compressor``.
        - ``replica``: The model of the gradients, to compare between ranks.
        - ``scope``: A prefix of names in a codec's state.
        """
        self.name = name
        self.options = options
        self._scope = scope
        self.codec = codec(options.codec)
        self.codec_context = CodecContext(self.codec, name)
        self._busy = threading.Lock()
        self._engine: Engine | None = None
        self._layouts: dict[Any, FlatLayout] = {}
        self._pool = BufferPool()
        self._turn = 0
        self._counter = training_progress.counter()
        self._replica = replica
        self._agreements: dict[
            Any, ReplicaComparison
        ] = {}  # by names: several models may alternate

    def __call__(
        self,
        arrays: Sequence[Array],
        names: Sequence[str] | None = None,
        *,
        in_place: bool = False,
        replica: Replica | None = None,
    ) -> list[Array]:
        """Reduce ``arrays`` and return new arrays of the same shapes and dtypes.

        Results begin at multiples of ``ALIGNMENT`` bytes. A reference to any of them keeps the
        memory of all. See ``start`` for the arguments and exceptions.
        """
        return self.start(arrays, names, in_place=in_place, replica=replica)()

    def start(
        self,
        arrays: Sequence[Array],
        names: Sequence[str] | None = None,
        *,
        in_place: bool = False,
        replica: Replica | None = None,
        lacking: Collection[int] = (),
    ) -> Callable[[], list[Array]]:
        """Copy ``arrays`` and send them; return a function that waits and returns the results.

        - ``arrays``: With the same number, order, shapes and dtypes on all ranks, in any memory
          layout. An array is bfloat16 if its dtype has that name.
        - ``names``: The arrays' names, for messages.
        - ``in_place``: The same on all ranks. Results are written to ``arrays``, which are returned
          and must not be read before. Large arrays are then not copied if they are contiguous and
          occur once.
        - ``replica``: The model of these gradients, if it varies; the ranks' replicas are compared
          at intervals (see ``agreement``).
        - ``lacking``: Indexes of arrays that this rank has not computed, which count as zeros; see
          ``retract``.

        Raises ValueError on all ranks, naming rank and array, if the lists differ or a dtype cannot
        be reduced, and RanksDifferError with ``--check raise`` if replicas differ. A second start
        waits until the first has finished.
        """
        layout = self._layout(arrays, names, in_place)
        claim(self.codec, self.options.owner, layout.keys if self.codec is not None else ())
        self._counter.steps += 1
        given = arrays
        arrays = separate(arrays) if in_place else arrays
        self._busy.acquire()
        try:
            engine = self._open()
            memory, lack = self._pool.lend(layout.nbytes(), self._turn)
            flats = layout.cut(memory)
            layout.fill(flats, arrays)
            agreement = self._agreement(engine, replica or self._replica, names)
            own, due = _asked(agreement, arrays)
            words = ListDigest(layout.digest, bool(lack and flats), self._turn, due).pack()
            handle = engine.submit(self._entries(layout, flats, words, arrays, lacking), soon=True)
        except BaseException:
            self._busy.release()
            raise

        def finish() -> list[Array]:
            try:
                self._wait(handle, layout)
                agreed = ListDigest.unpack(words)
                if not agreed.same:
                    self._explain(layout, None)
                results = layout.unpack(flats, arrays)
                self._turn = 1 + agreed.turn
                if agreed.lacks_memory:
                    self._allocate(engine, layout.nbytes())
                if agreed.compare and agreement is not None:
                    agreement.compare(own)
                return write_back(results, given) if in_place else results
            finally:
                self._busy.release()

        return finish

    def _wait(self, handle: Handle, layout: FlatLayout) -> None:
        try:
            handle.wait()
        except MismatchError as error:
            self._explain(layout, error)
            raise

    def retract(self, names: Sequence[str]) -> None:
        """Treat arrays that were ``lacking`` on all ranks as not sent, because their results are
        unused. ``names``: their names in the call, which must be unique.
        """
        if isinstance(self.codec, Retractable) and names:
            self.codec.retract([self._scope + name for name in names])

    def compare(self, replica: Replica) -> None:
        """Compare the ranks' replicas now. Collective."""
        engine = self._open()
        agreement = next(iter(self._agreements.values()), None) or self._agreement(
            engine, replica, None
        )
        if agreement is not None:
            agreement.replica = replica
            agreement.compare()

    def _agreement(
        self, engine: Engine, replica: Replica | None, names: Sequence[str] | None
    ) -> ReplicaComparison | None:
        if replica is None or engine.size == 1:
            return None
        key = tuple(names or ())
        found = self._agreements.get(key)
        if found is None:
            found = self._agreements[key] = ReplicaComparison(replica, engine, self.name)
        found.replica = replica
        return found

    # Entries, and their memory.

    def _layout(
        self, arrays: Sequence[Array], names: Sequence[str] | None, in_place: bool
    ) -> FlatLayout:
        shapes = tuple([(array.shape, array.dtype) for array in arrays])
        key = (shapes, tuple(names) if names is not None else None, in_place)
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._layouts[key] = flat_layout(arrays, names, self.options.wire, in_place)
        return layout

    def _entries(
        self,
        layout: FlatLayout,
        flats: list[Array],
        words: Array,
        arrays: Sequence[Array],
        lacking: Collection[int],
    ) -> list[Entry]:
        """Return the digest, the flat buffers and the separate arrays, as one group."""
        alone = layout.alone()
        of: dict[str, Any] = {"group": self.name, "group_size": 1 + len(flats) + len(alone)}
        reduction = self.options.op, 0, self.options.prescale, self.options.postscale
        if self.codec is not None:
            return self._coded(self.codec, layout, flats, words, arrays, lacking)
        digest = Request(
            f"{self.name}.digest", Kind.ALLREDUCE, DType.INT64, words.shape, ReduceOp.MIN, **of
        )

        def entry(label: str, dtype: DType, flat: Array) -> Entry:
            name = f"{self.name}.{label}"
            request = Request(name, Kind.ALLREDUCE, dtype, flat.shape, *reduction, **of)
            return Entry(request, Buffer(flat, flat, dtype))

        return [
            Entry(digest, Buffer(words, words, DType.INT64)),
            *(
                entry(dtype.value, dtype, flat)
                for (dtype, _), flat in zip(layout.sizes, flats, strict=True)
            ),
            *(
                entry(str(number), DType(layout.table[number][2]), memory_of(arrays[number]))
                for number in alone
            ),
        ]

    def _coded(
        self,
        codec: Codec,
        layout: FlatLayout,
        flats: list[Array],
        words: Array,
        arrays: Sequence[Array],
        lacking: Collection[int],
    ) -> list[Entry]:
        """Return an entry for the digest and one for each array: a codec's state belongs to one
        array, whose shape the codec may use.
        """
        keys = [self._scope + key for key in layout.keys]
        self.codec_context.update(keys, lambda: keys)
        of: dict[str, Any] = {"group": self.name, "group_size": 1 + len(arrays)}
        reduction = self.options.op, 0, self.options.prescale, self.options.postscale
        digest = Request(
            f"{self.name}.digest", Kind.ALLREDUCE, DType.INT64, words.shape, ReduceOp.MIN, **of
        )
        entries = [Entry(digest, Buffer(words, words, DType.INT64))]
        for number, (_, shape, _) in enumerate(layout.table):
            dtype, flat = layout.place(number, flats, arrays)
            spec = codec.spec if dtype.is_float else ""
            name = f"{self.name}.{number}"
            # the key omits the reducer's name: a resumed run may number its optimizers differently
            key = keys[number]
            request = Request(name, Kind.ALLREDUCE, dtype, shape, *reduction, codec=spec, **of)
            of_codec = codec if spec else None
            entries.append(
                Entry(request, Buffer(flat, flat, dtype), 0, of_codec, key, number not in lacking)
            )
        return entries

    def _open(self) -> Engine:
        """Return the current engine, and drop the memory of an earlier one."""
        engine = context.engine(self.options.process_set)
        if engine is not self._engine:
            self._engine = engine
            self._pool = BufferPool()
            self._turn = 0
            self._agreements.clear()
        return engine

    def _allocate(self, engine: Engine, nbytes: int) -> None:
        """Allocate memory of the transport on all ranks for the next calls, because some rank lacks
        memory.
        """
        with suppress(JoinedError):
            self._pool.add(engine.allocate(nbytes, f"{self.name}.{nbytes}"))

    # Disagreement of the ranks.

    def _explain(self, layout: FlatLayout, error: Exception | None) -> None:
        """Raise ValueError with the first difference between the ranks' lists. Collective."""
        tables = allgather_object(layout.table, f"{self.name}.tables", self.options.process_set)
        what = first_difference(tables, ("shape", "type"), self.options.process_set.ranks or ())
        if not what:
            return
        found = MODEL_MISMATCH.finding(
            f"{self.name}: all ranks must exchange the same arrays in the same order, but {what}."
            " Build the same model on all ranks, and compute the same gradients in each step",
            where=what,
        )
        raise error_of(ValueError, [found]) from error


def _asked(agreement: ReplicaComparison | None, arrays: Sequence[Array]) -> tuple[int | None, bool]:
    """Return a digest of this rank's gradients if it may be needed, and whether this rank requests
    a comparison of the replicas.
    """
    if agreement is None:
        return None, False
    known = len(agreement.replica.names())  # further arrays follow the gradients
    own = [gradient_digest(array) for array in arrays[:known]] if agreement.soon() else []
    return combined(own) if any(own) else None, agreement.due()
