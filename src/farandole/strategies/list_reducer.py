"""The gradients of a step, all at once: for frameworks that hand them over as a list of arrays.

All arrays of one type travel as one flat buffer, in memory that the transport reduces where it
stands; the results are views of it, and while somebody holds one of them, other memory is used. If
the arrays themselves may be written to, the large ones are spared the copies. With them goes a
digest of the list, so that ranks with different models get an error, rather than sums of unrelated
arrays.
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
from farandole.checks.agreement import Agreement, Replica
from farandole.checks.catalogue import MODEL_MISMATCH
from farandole.checks.finding import error_of
from farandole.core.api.objects import allgather_object
from farandole.core.engine import Engine, Entry, Handle
from farandole.errors import JoinedError, MismatchError
from farandole.job import context
from farandole.job.report import training_progress
from farandole.strategies.buffer_pool import BufferPool
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

_ANY, _NONE = -1, 0  # a word whose minimum says whether any rank said so


class ListDigest(NamedTuple):
    """The facts about a list that travel with it, reduced to their minimum.

    ``digest``: of its shapes and types; ``same``: on all ranks. ``lacks_memory``: some rank has
    none of the transport's. ``turn``: of the ranks' memory. ``compare``: some rank wants to compare
    replicas.
    """

    digest: int
    lacks_memory: bool
    turn: int
    compare: bool
    same: bool = True

    def pack(self) -> Array:
        """Return the words that travel."""
        lacks = _ANY if self.lacks_memory else _NONE
        compare = _ANY if self.compare else _NONE
        return np.array([self.digest, -self.digest, lacks, -self.turn, compare], dtype=np.int64)

    @classmethod
    def unpack(cls, words: Array) -> ListDigest:
        """Read the reduced words."""
        digest, negated, lacks, turn, compare = words.tolist()
        return cls(digest, lacks == _ANY, -turn, compare == _ANY, digest == -negated)


class GradientListReducer:
    """Reduces a list of arrays over all ranks, over and over: ``results = reducer(arrays,
    names)``.
    """

    def __init__(
        self,
        name: str,
        options: GradientOptions = AVERAGE,
        replica: Replica | None = None,
        scope: str = "",
    ) -> None:
        """``name``: what the ranks agree by, so it must be the same on all of them and not in use
        elsewhere. ``options``: floats wider than its ``wire`` are sent so; its ``compressor`` is
        the caller's to use. ``replica``: what the gradients are of, to compare. ``scope``: in front
        of names, for what a codec keeps.
        """
        self.name = name
        self.options = options
        self._scope = scope
        self.codec = codec(options.codec)
        self._busy = threading.Lock()
        self._engine: Engine | None = None
        self._layouts: dict[Any, FlatLayout] = {}
        self._pool = BufferPool()
        self._turn = 0
        self._counter = training_progress.counter()
        self._replica = replica
        self._agreements: dict[Any, Agreement] = {}  # by names: several models may take turns

    def __call__(
        self,
        arrays: Sequence[Array],
        names: Sequence[str] | None = None,
        *,
        in_place: bool = False,
        replica: Replica | None = None,
    ) -> list[Array]:
        """New arrays of the same shapes and types, that begin at multiples of ``ALIGNMENT`` bytes.
        Whoever keeps one of them keeps the memory of all. See ``start`` for ``in_place`` and for
        what is raised.
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
        """Copy ``arrays`` and send them; calling the result waits, and gives what ``__call__``
        gives.

        ``arrays``: the same number, shapes and types on all ranks, in the same order; any layout. A
        bfloat16 array is one whose dtype has that name. ``names`` are for messages. ``in_place``,
        alike on all ranks: results are put where ``arrays`` stand (nobody else may look at them
        meanwhile), and these are given back. The large ones are not copied, if they are contiguous
        and there only once. Raises ValueError on all ranks, naming rank and array, when the lists
        differ or a type cannot be reduced. ``replica``: what these gradients are of, if it is not
        always the same. What the ranks hold is compared now and then (see ``agreement``), which
        raises RanksDifferError with ``--check raise``. ``lacking``: the numbers of those that this
        rank has not computed, and zeros count; see ``retract``. A second start waits for the end
        of the first.
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
        """What was sent of these arrays, which were ``lacking`` on all ranks, counts as not sent,
        for nobody will use it. ``names``: those of the call, in which each was there once.
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
    ) -> Agreement | None:
        if replica is None or engine.size == 1:
            return None
        key = tuple(names or ())
        found = self._agreements.get(key)
        if found is None:
            found = self._agreements[key] = Agreement(replica, engine, self.name)
        found.replica = replica
        return found

    # What travels, and in what memory.

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
        """The digest, the flat buffers, and the arrays that travel for themselves, as one group."""
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
        """The digest, and each array where it stands: what a codec keeps is of one array, whose
        shape it may use.
        """
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
            # not the name: a resumed run may number its optimizers anew
            key = self._scope + layout.keys[number]
            request = Request(name, Kind.ALLREDUCE, dtype, shape, *reduction, codec=spec, **of)
            of_codec = codec if spec else None
            entries.append(
                Entry(request, Buffer(flat, flat, dtype), 0, of_codec, key, number not in lacking)
            )
        return entries

    def _open(self) -> Engine:
        """The engine of today. What was allocated through an earlier one is gone with it."""
        engine = context.engine(self.options.process_set)
        if engine is not self._engine:
            self._engine = engine
            self._pool = BufferPool()
            self._turn = 0
            self._agreements.clear()
        return engine

    def _allocate(self, engine: Engine, nbytes: int) -> None:
        """Allocate memory of the transport for the next calls. All ranks do: one of them lacks
        some.
        """
        with suppress(JoinedError):
            self._pool.add(engine.allocate(nbytes, f"{self.name}.{nbytes}"))

    # When the ranks do not agree.

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


def _asked(agreement: Agreement | None, arrays: Sequence[Array]) -> tuple[int | None, bool]:
    """Return a digest of this rank's own gradients, if it may be asked for, and whether this rank
    wants to compare replicas.
    """
    if agreement is None:
        return None, False
    known = len(agreement.replica.names())  # what else travels with gradients stands behind them
    own = [gradient_digest(array) for array in arrays[:known]] if agreement.soon() else []
    return combined(own) if any(own) else None, agreement.due()
