"""The public collectives of all frameworks. Each form (blocking, asynchronous, in place, grouped)
is a few lines on top of ``core/api/ops``.
"""

# mypy: disable-error-code="no-any-return"
# The methods of ``Verbs`` take and return Any; the annotations here relate the two.

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar, overload

import numpy as np

from farandole.base.types import Buffer, DType, Kind, Request
from farandole.core.api.compression import Compressing, NoneCompressor
from farandole.core.api.documented import collective, documented
from farandole.core.api.ops import WORLD, Verbs, engine_of, reduce_op, reduction_of
from farandole.core.engine import Entry
from farandole.errors import HorovodInternalError
from farandole.job import context
from farandole.job.context import ProcessSet

Given = TypeVar("Given")  # the tensors that a framework's functions take
Made = TypeVar("Made")  # the tensors that they return
_NOTHING = np.empty(0, dtype=np.uint8)
_JOIN = Entry(
    Request("join", Kind.JOIN, DType.UINT8, (0,)), Buffer(_NOTHING, _NOTHING, DType.UINT8)
)


class Collectives(Verbs, Generic[Given, Made]):
    """The functions that a framework's module offers to its users."""

    # Allreduce.

    @collective("op", example="loss = hvd.allreduce(loss, name='loss')  # the mean over all ranks")
    def allreduce(
        self,
        tensor: Given,
        average: bool | None = None,
        name: str | None = None,
        compression: Compressing = NoneCompressor,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = WORLD,
    ) -> Made:
        """Return the reduction of every rank's ``tensor``, as a new tensor of the same shape and
        type.

        The tensor may have any shape; shape and type must be the same on all ranks. All ranks get
        the same bits. float16 and bfloat16 are summed in float32, and rounded once.
        """
        engine = engine_of(process_set, "Allreduce")
        tensor, token = compression.compress(tensor)
        reduction = reduction_of(reduce_op(average, op), prescale_factor, postscale_factor)
        entry = self._allreduce(engine, tensor, reduction, name, fresh=True)
        return compression.decompress(self._run(engine, self._new, tensor, entry), token)

    @collective(
        "op", example="handle = hvd.allreduce_async(tensor)\ntotal = hvd.synchronize(handle)"
    )
    def allreduce_async(
        self,
        tensor: Given,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = WORLD,
    ) -> int:
        """Start ``allreduce``, and return a handle (an int) immediately. ``synchronize(handle)``
        returns the new tensor.
        """
        engine = engine_of(process_set, "Allreduce")
        reduction = reduction_of(reduce_op(average, op), prescale_factor, postscale_factor)
        entry = self._allreduce(engine, tensor, reduction, name, fresh=True)
        return self._start(engine, self._new, (tensor,), (entry,), False)

    @collective("op")
    def allreduce_(
        self,
        tensor: Made,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = WORLD,
    ) -> Made:
        """Run ``allreduce`` in place: overwrite ``tensor`` and return it."""
        engine = engine_of(process_set, "Allreduce")
        reduction = reduction_of(reduce_op(average, op), prescale_factor, postscale_factor)
        entry = self._allreduce(engine, tensor, reduction, name)
        return self._run(engine, self._same, tensor, entry)

    @collective("op")
    def allreduce_async_(
        self,
        tensor: Made,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = WORLD,
    ) -> int:
        """Start ``allreduce_``, and return a handle. The tensor must not be used until
        ``synchronize(handle)``.
        """
        engine = engine_of(process_set, "Allreduce")
        reduction = reduction_of(reduce_op(average, op), prescale_factor, postscale_factor)
        entry = self._allreduce(engine, tensor, reduction, name)
        return self._start(engine, self._same, (tensor,), (entry,), False)

    @collective("op")
    def grouped_allreduce(
        self,
        tensors: Iterable[Given],
        average: bool | None = None,
        name: str | None = None,
        compression: Compressing = NoneCompressor,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = WORLD,
    ) -> list[Made]:
        """Reduce several tensors as one unit, and return a list of new tensors. The exchange starts
        when all tensors are ready.
        """
        pairs = [compression.compress(tensor) for tensor in tensors]
        handle = self.grouped_allreduce_async(
            [tensor for tensor, _ in pairs],
            average,
            name,
            op,
            prescale_factor,
            postscale_factor,
            process_set,
        )
        done = self.synchronize(handle)
        return [
            compression.decompress(result, token)
            for result, (_, token) in zip(done, pairs, strict=True)
        ]

    @collective("op")
    def grouped_allreduce_async(
        self,
        tensors: Iterable[Given],
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = WORLD,
    ) -> int:
        """Start ``grouped_allreduce``, and return one handle for all tensors."""
        engine = engine_of(process_set, "Allreduce")
        tensors = list(tensors)
        reduction = reduction_of(reduce_op(average, op), prescale_factor, postscale_factor)
        entries = self._grouped(engine, Kind.ALLREDUCE, tensors, name, reduction, fresh=True)
        return self._start(engine, self._new, tensors, entries, True)

    @collective("op")
    def grouped_allreduce_(
        self,
        tensors: Iterable[Made],
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = WORLD,
    ) -> list[Made]:
        """Run ``grouped_allreduce`` in place: overwrite ``tensors`` and return them as a list."""
        return self.synchronize(
            self.grouped_allreduce_async_(
                tensors, average, name, op, prescale_factor, postscale_factor, process_set
            )
        )

    @collective("op")
    def grouped_allreduce_async_(
        self,
        tensors: Iterable[Made],
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = WORLD,
    ) -> int:
        """Start ``grouped_allreduce_``, and return one handle for all tensors, which must not be
        used until ``synchronize(handle)``.
        """
        engine = engine_of(process_set, "Allreduce")
        tensors = list(tensors)
        reduction = reduction_of(reduce_op(average, op), prescale_factor, postscale_factor)
        entries = self._grouped(engine, Kind.ALLREDUCE, tensors, name, reduction)
        return self._start(engine, self._same, tensors, entries, True)

    # Allgather.

    @collective(
        "rows", example="rows = hvd.allgather(predictions)  # shape (sum of all ranks' rows, ...)"
    )
    def allgather(
        self, tensor: Given, name: str | None = None, process_set: ProcessSet = WORLD
    ) -> Made:
        """Return every rank's ``tensor``, concatenated along the first dimension in rank order, as
        a new tensor.

        The tensor needs at least one dimension. The first one may differ between ranks; the other
        dimensions and the type must be the same.
        """
        engine = engine_of(process_set, "Allgather")
        return self._run(
            engine, self._gathered, tensor, self._plain(engine, Kind.ALLGATHER, tensor, name)
        )

    @collective("rows")
    def allgather_async(
        self, tensor: Given, name: str | None = None, process_set: ProcessSet = WORLD
    ) -> int:
        """Start ``allgather``, and return a handle (an int) immediately."""
        engine = engine_of(process_set, "Allgather")
        entry = self._plain(engine, Kind.ALLGATHER, tensor, name)
        return self._start(engine, self._gathered, (tensor,), (entry,), False)

    @collective("rows")
    def grouped_allgather(
        self, tensors: Iterable[Given], name: str | None = None, process_set: ProcessSet = WORLD
    ) -> list[Made]:
        """Gather several tensors as one unit, and return a list of new tensors."""
        return self.synchronize(self.grouped_allgather_async(tensors, name, process_set))

    @collective("rows")
    def grouped_allgather_async(
        self, tensors: Iterable[Given], name: str | None = None, process_set: ProcessSet = WORLD
    ) -> int:
        """Start ``grouped_allgather``, and return one handle for all tensors."""
        engine = engine_of(process_set, "Allgather")
        tensors = list(tensors)
        entries = self._grouped(engine, Kind.ALLGATHER, tensors, name)
        return self._start(engine, self._gathered, tensors, entries, True)

    def gather_rows(
        self,
        tensors: Sequence[Given],
        dense_shape: Sequence[int],
        name: str | None = None,
        process_set: ProcessSet = WORLD,
    ) -> list[Made]:
        """Run ``grouped_allgather`` for the parts of a sparse tensor, for frameworks. The ranks
        also compare ``dense_shape``, if known.
        """
        return self.synchronize(self.gather_rows_async(tensors, dense_shape, name, process_set))

    def gather_rows_async(
        self,
        tensors: Sequence[Given],
        dense_shape: Sequence[int],
        name: str | None = None,
        process_set: ProcessSet = WORLD,
    ) -> int:
        """Start ``gather_rows``, and return one handle for all parts."""
        engine = engine_of(process_set, "Allgather")
        shape = tuple(int(length) for length in dense_shape)
        entries = self._grouped(engine, Kind.ALLGATHER, tensors, name, dense_shape=shape)
        return self._start(engine, self._gathered, tensors, entries, True)

    # Broadcast.

    @collective("root", example="weights = hvd.broadcast(weights, root_rank=0)")
    def broadcast(
        self,
        tensor: Given,
        root_rank: int,
        name: str | None = None,
        process_set: ProcessSet = WORLD,
    ) -> Made:
        """Return ``root_rank``'s ``tensor``, as a new tensor on every rank. Shape and type must be
        the same on all ranks.
        """
        engine, entry = self._broadcast(tensor, root_rank, name, process_set, fresh=True)
        return self._run(engine, self._new, tensor, entry)

    @collective("root")
    def broadcast_async(
        self,
        tensor: Given,
        root_rank: int,
        name: str | None = None,
        process_set: ProcessSet = WORLD,
    ) -> int:
        """Start ``broadcast``, and return a handle (an int) immediately."""
        engine, entry = self._broadcast(tensor, root_rank, name, process_set, fresh=True)
        return self._start(engine, self._new, (tensor,), (entry,), False)

    @collective("root")
    def broadcast_(
        self, tensor: Made, root_rank: int, name: str | None = None, process_set: ProcessSet = WORLD
    ) -> Made:
        """Run ``broadcast`` in place: overwrite ``tensor`` and return it."""
        engine, entry = self._broadcast(tensor, root_rank, name, process_set)
        return self._run(engine, self._same, tensor, entry)

    @collective("root")
    def broadcast_async_(
        self, tensor: Made, root_rank: int, name: str | None = None, process_set: ProcessSet = WORLD
    ) -> int:
        """Start ``broadcast_``, and return a handle. The tensor must not be used until
        ``synchronize(handle)``.
        """
        engine, entry = self._broadcast(tensor, root_rank, name, process_set)
        return self._start(engine, self._same, (tensor,), (entry,), False)

    # Alltoall.

    @overload
    def alltoall(
        self,
        tensor: Given,
        splits: None = None,
        name: str | None = None,
        process_set: ProcessSet = WORLD,
    ) -> Made: ...
    @overload
    def alltoall(
        self,
        tensor: Given,
        splits: Sequence[int] | Given,
        name: str | None = None,
        process_set: ProcessSet = WORLD,
    ) -> tuple[Made, Made]: ...
    @collective(
        "rows",
        "splits",
        example=(
            "received, rows = hvd.alltoall(tensor, splits=[1, 2])  # a row for rank 0, two for"
            " rank 1"
        ),
    )
    def alltoall(
        self,
        tensor: Given,
        splits: Sequence[int] | Given | None = None,
        name: str | None = None,
        process_set: ProcessSet = WORLD,
    ) -> Any:
        """Distribute the rows of ``tensor``: the first ``splits[0]`` to rank 0 and so on (evenly
        without ``splits``).

        Return the rows that this rank received, in rank order. With ``splits``, return a pair:
        these rows, and the number of rows from each rank (int32, or int64 if one exceeds it). All
        dimensions except the first, and the type, must be the same on all ranks.
        """
        engine = engine_of(process_set, "Alltoall")
        entry = self._deal(engine, tensor, splits, name)
        return self._run(
            engine, self._received if splits is None else self._rows_and_splits, tensor, entry
        )

    @collective("rows", "splits")
    def alltoall_async(
        self,
        tensor: Given,
        splits: Sequence[int] | Given | None = None,
        name: str | None = None,
        process_set: ProcessSet = WORLD,
    ) -> int:
        """Start ``alltoall``, and return a handle (an int) immediately."""
        engine = engine_of(process_set, "Alltoall")
        entry = self._deal(engine, tensor, splits, name)
        finish = self._received if splits is None else self._rows_and_splits
        return self._start(engine, finish, (tensor,), (entry,), False)

    # Reducescatter.

    @collective(
        "op",
        "rows",
        op="Average (the default) or Sum.",
        example="mine = hvd.reducescatter(tensor, op=hvd.Sum)  # 5 rows on 2 ranks: 3 and 2",
    )
    def reducescatter(
        self,
        tensor: Given,
        name: str | None = None,
        compression: Compressing = NoneCompressor,
        op: int | None = None,
        process_set: ProcessSet = WORLD,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> Made:
        """Return this rank's rows of the reduction, as a new tensor.

        The tensor needs at least one dimension; shape and type must be the same on all ranks. If
        the rows do not divide evenly, the first ranks get one more each.
        """
        engine = engine_of(process_set, "Reducescatter")
        tensor, token = compression.compress(tensor)
        reduction = reduction_of(reduce_op(None, op), prescale_factor, postscale_factor)
        entry = self._plain(engine, Kind.REDUCESCATTER, tensor, name, reduction)
        return compression.decompress(
            self._run(engine, self._scattered(engine), tensor, entry), token
        )

    @collective("op", "rows", op="Average (the default) or Sum.")
    def reducescatter_async(
        self,
        tensor: Given,
        name: str | None = None,
        op: int | None = None,
        process_set: ProcessSet = WORLD,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> int:
        """Start ``reducescatter``, and return a handle (an int) immediately."""
        engine = engine_of(process_set, "Reducescatter")
        reduction = reduction_of(reduce_op(None, op), prescale_factor, postscale_factor)
        entry = self._plain(engine, Kind.REDUCESCATTER, tensor, name, reduction)
        return self._start(engine, self._scattered(engine), (tensor,), (entry,), False)

    @collective("op", "rows", op="Average (the default) or Sum.")
    def grouped_reducescatter(
        self,
        tensors: Iterable[Given],
        name: str | None = None,
        compression: Compressing = NoneCompressor,
        op: int | None = None,
        process_set: ProcessSet = WORLD,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> list[Made]:
        """Reduce and scatter several tensors as one unit, and return a list of new tensors."""
        pairs = [compression.compress(tensor) for tensor in tensors]
        handle = self.grouped_reducescatter_async(
            [tensor for tensor, _ in pairs],
            name,
            op,
            process_set,
            prescale_factor,
            postscale_factor,
        )
        done = self.synchronize(handle)
        return [
            compression.decompress(result, token)
            for result, (_, token) in zip(done, pairs, strict=True)
        ]

    @collective("op", "rows", op="Average (the default) or Sum.")
    def grouped_reducescatter_async(
        self,
        tensors: Iterable[Given],
        name: str | None = None,
        op: int | None = None,
        process_set: ProcessSet = WORLD,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> int:
        """Start ``grouped_reducescatter``, and return one handle for all tensors."""
        engine = engine_of(process_set, "Reducescatter")
        tensors = list(tensors)
        reduction = reduction_of(reduce_op(None, op), prescale_factor, postscale_factor)
        entries = self._grouped(engine, Kind.REDUCESCATTER, tensors, name, reduction)
        return self._start(engine, self._scattered(engine), tensors, entries, True)

    # Other functions.

    @documented("init", "set", "disagree")
    def barrier(self, process_set: ProcessSet = WORLD) -> None:
        """Wait until all ranks (of the set) have called this."""
        engine = engine_of(process_set, "Barrier")
        entry = Entry(
            Request("barrier.noname", Kind.BARRIER, DType.UINT8, (0,)),
            Buffer(_NOTHING, _NOTHING, DType.UINT8),
            engine.numbers.next(),
        )
        engine.run((entry,))

    @documented(
        "init",
        "failed",
        example=(
            "for batch in loader:  # more batches on some ranks\n    train(batch)\nlast ="
            " hvd.join()"
        ),
    )
    def join(self, device: int = -1) -> int:
        """Take part in the other ranks' allreduces without data until all ranks have joined. Return
        the rank that joined last.

        A rank calls this when it has no more data. It contributes zeros to sums and averages, and
        neutral elements to other operations.
        """
        engine = context.engine()
        context.leave_servers()
        last = int(engine.run((_JOIN,))[0])
        context.return_to_servers()
        engine.numbers.restart()  # the number of calls depended on the ranks' data
        return last

    @documented()
    def poll(self, handle: int) -> bool | None:
        """Return whether the collective of ``handle`` is done; None if the handle is unknown or was
        synchronized.
        """
        pending = self._pending.get(handle)
        return None if pending is None else pending.handle.done()

    @documented("failed")
    def synchronize(self, handle: int) -> Any:
        """Wait for the collective, and return its output; None if the handle is unknown or was
        synchronized.
        """
        pending = self._pending.pop(handle, None)
        if pending is None:
            return None
        in_progress, finish, tensors, entries, grouped = pending
        results = in_progress.wait()
        if not grouped:
            return finish(tensors[0], entries[0].buffer, results[0])
        return [
            finish(tensor, entry.buffer, result)
            for tensor, entry, result in zip(tensors, entries, results, strict=True)
        ]

    def when_done(self, handle: int, call: Callable[[], None]) -> None:
        """Call ``call`` once when ``poll(handle)`` becomes true (see ``Handle.when_done``). It may
        call ``synchronize(handle)``, which then does not wait.
        """
        self._pending[handle].handle.when_done(call)

    def drive(self, handle: int) -> None:
        """Wait until ``poll(handle)`` is true; return immediately for an unknown handle. This
        thread runs the collective if no other thread does. Errors of the collective are not raised.
        """
        pending = self._pending.get(handle)
        if pending is not None:
            with contextlib.suppress(HorovodInternalError):
                pending.handle.wait()
