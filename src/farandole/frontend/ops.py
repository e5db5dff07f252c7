"""The public collectives, once for every framework.

A form (blocking, asynchronous, in place, grouped) is a few lines over three verbs: prepare the entries of a call,
submit them, finish what came back. Frameworks differ in their ``Binding`` alone.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from farandole import context
from farandole.collectives.kernels import shares
from farandole.context import ProcessSet
from farandole.contracts import Binding
from farandole.engine import Engine, Entry, Handle
from farandole.engine.check import check
from farandole.errors import HorovodInternalError, RequestError
from farandole.frontend import serials
from farandole.frontend.compression import NoneCompressor
from farandole.types import Buffer, DeviceBuffer, DType, Kind, ReduceOp, Request

if TYPE_CHECKING:
    from farandole.types import Array

    Finish = Callable[[Any, Buffer, Any], Any]  # (the caller's tensor, its buffer, the engine's result) -> output
    Pending = tuple[Handle, Finish, Sequence[Any], Sequence[Entry], bool]

WORLD = context.global_process_set
_SUM, _AVERAGE, _ADASUM = ReduceOp.SUM, ReduceOp.AVERAGE, ReduceOp.ADASUM
_NOTHING = np.empty(0, dtype=np.uint8)
_JOIN = Entry(Request("join", Kind.JOIN, DType.UINT8, (0,)), Buffer(_NOTHING, _NOTHING, DType.UINT8))


class Collectives:
    """The functions that a framework's module offers to its users."""

    def __init__(self, binding: Binding) -> None:
        self._binding = binding
        self._handles = itertools.count()
        self._pending: dict[int, Pending] = {}

    # Allreduce.

    def allreduce(
        self, tensor: Any, average: bool | None = None, name: str | None = None, compression: Any = NoneCompressor,
        op: int | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
        process_set: ProcessSet = WORLD,
    ) -> Any:  # fmt: skip
        """The reduction of every rank's ``tensor``, as a new tensor. ``op``: Average (the default), Sum, Min, ..."""
        engine = _engine(process_set, "Allreduce")
        tensor, token = compression.compress(tensor)
        entry = self._reduction(
            engine, tensor, reduce_op(average, op), name, prescale_factor, postscale_factor, fresh=True
        )
        return compression.decompress(self._run(engine, self._new, tensor, entry), token)

    def allreduce_async(
        self, tensor: Any, average: bool | None = None, name: str | None = None, op: int | None = None,
        prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = WORLD,
    ) -> int:  # fmt: skip
        """Start ``allreduce``; ``synchronize(handle)`` gives the new tensor."""
        engine = _engine(process_set, "Allreduce")
        entry = self._reduction(
            engine, tensor, reduce_op(average, op), name, prescale_factor, postscale_factor, fresh=True
        )
        return self._start(engine, self._new, (tensor,), (entry,), False)

    def allreduce_(
        self, tensor: Any, average: bool | None = None, name: str | None = None, op: int | None = None,
        prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = WORLD,
    ) -> Any:  # fmt: skip
        """``allreduce`` in place."""
        engine = _engine(process_set, "Allreduce")
        entry = self._reduction(engine, tensor, reduce_op(average, op), name, prescale_factor, postscale_factor)
        return self._run(engine, self._same, tensor, entry)

    def allreduce_async_(
        self, tensor: Any, average: bool | None = None, name: str | None = None, op: int | None = None,
        prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = WORLD,
    ) -> int:  # fmt: skip
        """Start ``allreduce_``. The tensor must not be touched until ``synchronize(handle)``."""
        engine = _engine(process_set, "Allreduce")
        entry = self._reduction(engine, tensor, reduce_op(average, op), name, prescale_factor, postscale_factor)
        return self._start(engine, self._same, (tensor,), (entry,), False)

    def grouped_allreduce(
        self, tensors: Sequence[Any], average: bool | None = None, name: str | None = None,
        compression: Any = NoneCompressor, op: int | None = None, prescale_factor: float = 1.0,
        postscale_factor: float = 1.0, process_set: ProcessSet = WORLD,
    ) -> list[Any]:  # fmt: skip
        """``allreduce`` of several tensors as one unit."""
        pairs = [compression.compress(tensor) for tensor in tensors]
        handle = self.grouped_allreduce_async(
            [tensor for tensor, _ in pairs], average, name, op, prescale_factor, postscale_factor, process_set
        )
        done = self.synchronize(handle)
        return [compression.decompress(each, token) for each, (_, token) in zip(done, pairs, strict=True)]

    def grouped_allreduce_async(
        self, tensors: Sequence[Any], average: bool | None = None, name: str | None = None, op: int | None = None,
        prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = WORLD,
    ) -> int:  # fmt: skip
        """Start ``grouped_allreduce``: one handle for all tensors."""
        engine = _engine(process_set, "Allreduce")
        entries = self._grouped(
            engine, Kind.ALLREDUCE, tensors, name, reduce_op(average, op), prescale_factor, postscale_factor, fresh=True
        )
        return self._start(engine, self._new, tensors, entries, True)

    def grouped_allreduce_(
        self, tensors: Sequence[Any], average: bool | None = None, name: str | None = None, op: int | None = None,
        prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = WORLD,
    ) -> Any:  # fmt: skip
        """``grouped_allreduce`` in place."""
        return self.synchronize(
            self.grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set)
        )

    def grouped_allreduce_async_(
        self, tensors: Sequence[Any], average: bool | None = None, name: str | None = None, op: int | None = None,
        prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = WORLD,
    ) -> int:  # fmt: skip
        """Start ``grouped_allreduce_``: one handle for all tensors."""
        engine = _engine(process_set, "Allreduce")
        entries = self._grouped(
            engine, Kind.ALLREDUCE, tensors, name, reduce_op(average, op), prescale_factor, postscale_factor
        )
        return self._start(engine, self._same, tensors, entries, True)

    # Allgather.

    def allgather(self, tensor: Any, name: str | None = None, process_set: ProcessSet = WORLD) -> Any:
        """Every rank's ``tensor``, one below the other. The first dimension may differ from rank to rank."""
        engine = _engine(process_set, "Allgather")
        return self._run(engine, self._gathered, tensor, self._plain(engine, Kind.ALLGATHER, tensor, name))

    def allgather_async(self, tensor: Any, name: str | None = None, process_set: ProcessSet = WORLD) -> int:
        """Start ``allgather``."""
        engine = _engine(process_set, "Allgather")
        entry = self._plain(engine, Kind.ALLGATHER, tensor, name)
        return self._start(engine, self._gathered, (tensor,), (entry,), False)

    def grouped_allgather(
        self, tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = WORLD
    ) -> Any:
        """``allgather`` of several tensors as one unit."""
        return self.synchronize(self.grouped_allgather_async(tensors, name, process_set))

    def grouped_allgather_async(
        self, tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = WORLD
    ) -> int:
        """Start ``grouped_allgather``: one handle for all tensors."""
        engine = _engine(process_set, "Allgather")
        entries = self._grouped(engine, Kind.ALLGATHER, tensors, name)
        return self._start(engine, self._gathered, tensors, entries, True)

    # Broadcast.

    def broadcast(self, tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = WORLD) -> Any:
        """``root_rank``'s ``tensor``, as a new tensor on every rank."""
        engine, entry = self._broadcast(tensor, root_rank, name, process_set, fresh=True)
        return self._run(engine, self._new, tensor, entry)

    def broadcast_async(
        self, tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = WORLD
    ) -> int:
        """Start ``broadcast``."""
        engine, entry = self._broadcast(tensor, root_rank, name, process_set, fresh=True)
        return self._start(engine, self._new, (tensor,), (entry,), False)

    def broadcast_(self, tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = WORLD) -> Any:
        """``broadcast`` in place."""
        engine, entry = self._broadcast(tensor, root_rank, name, process_set)
        return self._run(engine, self._same, tensor, entry)

    def broadcast_async_(
        self, tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = WORLD
    ) -> int:
        """Start ``broadcast_``. The tensor must not be touched until ``synchronize(handle)``."""
        engine, entry = self._broadcast(tensor, root_rank, name, process_set)
        return self._start(engine, self._same, (tensor,), (entry,), False)

    # Alltoall.

    def alltoall(
        self, tensor: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = WORLD
    ) -> Any:
        """Deal the rows of ``tensor``: the first ``splits[0]`` to rank 0 and so on (evenly without ``splits``).

        Gives what this rank received, and with ``splits`` also how many rows came from each rank.
        """
        engine = _engine(process_set, "Alltoall")
        entry = self._deal(engine, tensor, splits, name)
        return self._run(engine, self._dealt if splits is None else self._dealt_and_splits, tensor, entry)

    def alltoall_async(
        self, tensor: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = WORLD
    ) -> int:
        """Start ``alltoall``."""
        engine = _engine(process_set, "Alltoall")
        entry = self._deal(engine, tensor, splits, name)
        finish = self._dealt if splits is None else self._dealt_and_splits
        return self._start(engine, finish, (tensor,), (entry,), False)

    # Reducescatter.

    def reducescatter(
        self, tensor: Any, name: str | None = None, compression: Any = NoneCompressor, op: int | None = None,
        process_set: ProcessSet = WORLD, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    ) -> Any:  # fmt: skip
        """This rank's rows of the reduction. What ranks do not divide goes one row each to the first ranks."""
        engine = _engine(process_set, "Reducescatter")
        tensor, token = compression.compress(tensor)
        entry = self._plain(
            engine, Kind.REDUCESCATTER, tensor, name, reduce_op(None, op), prescale_factor, postscale_factor
        )
        return compression.decompress(self._run(engine, self._scattered(engine), tensor, entry), token)

    def reducescatter_async(
        self, tensor: Any, name: str | None = None, op: int | None = None,
        process_set: ProcessSet = WORLD, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    ) -> int:  # fmt: skip
        """Start ``reducescatter``."""
        engine = _engine(process_set, "Reducescatter")
        entry = self._plain(
            engine, Kind.REDUCESCATTER, tensor, name, reduce_op(None, op), prescale_factor, postscale_factor
        )
        return self._start(engine, self._scattered(engine), (tensor,), (entry,), False)

    def grouped_reducescatter(
        self, tensors: Sequence[Any], name: str | None = None, compression: Any = NoneCompressor,
        op: int | None = None, process_set: ProcessSet = WORLD, prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> list[Any]:  # fmt: skip
        """``reducescatter`` of several tensors as one unit."""
        pairs = [compression.compress(tensor) for tensor in tensors]
        handle = self.grouped_reducescatter_async(
            [tensor for tensor, _ in pairs], name, op, process_set, prescale_factor, postscale_factor
        )
        done = self.synchronize(handle)
        return [compression.decompress(each, token) for each, (_, token) in zip(done, pairs, strict=True)]

    def grouped_reducescatter_async(
        self, tensors: Sequence[Any], name: str | None = None, op: int | None = None,
        process_set: ProcessSet = WORLD, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    ) -> int:  # fmt: skip
        """Start ``grouped_reducescatter``: one handle for all tensors."""
        engine = _engine(process_set, "Reducescatter")
        entries = self._grouped(
            engine, Kind.REDUCESCATTER, tensors, name, reduce_op(None, op), prescale_factor, postscale_factor
        )
        return self._start(engine, self._scattered(engine), tensors, entries, True)

    # The rest.

    def barrier(self, process_set: ProcessSet = WORLD) -> None:
        """Return when all ranks (of the set) have come here."""
        engine = _engine(process_set, "Barrier")
        entry = Entry(
            Request("barrier.noname", Kind.BARRIER, DType.UINT8, (0,)),
            Buffer(_NOTHING, _NOTHING, DType.UINT8),
            serials.next_for(engine),
        )
        engine.run((entry,))

    def join(self, device: int = -1) -> int:
        """This rank has no more data: it takes part in the others' allreduces, with zeros for sums and averages and
        what changes nothing for the other operations, until all ranks have joined. The rank that joined last.

        ``device`` is there for programs that were written for Horovod.
        """
        engine = context.engine()
        last = int(engine.run((_JOIN,))[0])
        serials.restart(engine)  # ranks came here by as many calls as each had data for
        return last

    def poll(self, handle: int) -> bool | None:
        """Is the collective behind ``handle`` done? None if there is no such handle (any more)."""
        pending = self._pending.get(handle)
        return None if pending is None else pending[0].done()

    def synchronize(self, handle: int) -> Any:
        """Wait, and give the collective's output. None if there is no such handle (any more).

        Raises HorovodInternalError if the collective failed.
        """
        pending = self._pending.pop(handle, None)
        if pending is None:
            return None
        waiting, finish, tensors, entries, grouped = pending
        results = waiting.wait()
        if not grouped:
            return finish(tensors[0], entries[0].buffer, results[0])
        return [
            finish(tensor, entry.buffer, result)
            for tensor, entry, result in zip(tensors, entries, results, strict=True)
        ]

    def when_done(self, handle: int, call: Callable[[], None]) -> None:
        """Have ``call`` called once when ``poll(handle)`` becomes true (see ``Handle.when_done``): it may
        ``synchronize(handle)``, which does not wait then."""
        self._pending[handle][0].when_done(call)

    def drive(self, handle: int) -> None:
        """Wait until ``poll(handle)`` is true (or there is no such handle); this thread does the work, if no other
        does. Raises nothing that the collective failed with."""
        pending = self._pending.get(handle)
        if pending is not None:
            with contextlib.suppress(HorovodInternalError):
                pending[0].wait()

    # Submit.

    def _run(self, engine: Engine, finish: Finish, tensor: Any, entry: Entry) -> Any:
        return finish(tensor, entry.buffer, engine.run((entry,))[0])

    def _start(
        self, engine: Engine, finish: Finish, tensors: Sequence[Any], entries: Sequence[Entry], grouped: bool
    ) -> int:
        pending = (engine.submit(entries), finish, tensors, entries, grouped)
        handle = next(self._handles)
        self._pending[handle] = pending
        return handle

    # Prepare.

    def _reduction(
        self, engine: Engine, tensor: Any, op: ReduceOp, name: str | None, prescale: float, postscale: float,
        *, fresh: bool = False,
    ) -> Entry:  # fmt: skip
        buffer = self._binding.buffer(tensor)
        if fresh:
            buffer = _beside(buffer)
        label = "allreduce.noname" if name is None else f"allreduce.{name}"
        request = Request(
            label, Kind.ALLREDUCE, buffer[2], tuple(tensor.shape), op, 0, prescale, postscale, (), "", 1, buffer.device
        )
        if op is _ADASUM:
            check(request, engine.size)
        return Entry(request, buffer, serials.next_for(engine) if name is None else 0)

    def _broadcast(
        self, tensor: Any, root: int, name: str | None, process_set: ProcessSet, *, fresh: bool = False
    ) -> tuple[Engine, Entry]:
        engine = _engine(process_set, "Broadcast")
        entry = self._plain(engine, Kind.BROADCAST, tensor, name, root=place_of(root, process_set))
        return engine, entry._replace(buffer=_beside(entry.buffer)) if fresh else entry

    def _plain(
        self, engine: Engine, kind: Kind, tensor: Any, name: str | None, op: ReduceOp = _SUM, prescale: float = 1.0,
        postscale: float = 1.0, *, root: int = 0, splits: tuple[int, ...] = (),
    ) -> Entry:  # fmt: skip
        buffer = self._binding.buffer(tensor)
        full, serial = _name(engine, kind, name)
        shape = tuple(tensor.shape)
        request = Request(full, kind, buffer.dtype, shape, op, root, prescale, postscale, splits, "", 1, buffer.device)
        return Entry(request, buffer, serial)

    def _grouped(
        self, engine: Engine, kind: Kind, tensors: Sequence[Any], name: str | None, op: ReduceOp = _SUM,
        prescale: float = 1.0, postscale: float = 1.0, *, fresh: bool = False,
    ) -> list[Entry]:  # fmt: skip
        group, serial = _name(engine, kind, name, "grouped_")
        group_size = len(tensors)
        entries = []
        for number, tensor in enumerate(tensors, 1):
            buffer = self._binding.buffer(tensor)
            if fresh:
                buffer = _beside(buffer)
            request = Request(
                f"{group}_{number}of{group_size}", kind, buffer.dtype, tuple(tensor.shape), op, 0,
                prescale, postscale, (), group, group_size, buffer.device,
            )  # fmt: skip
            if op is _ADASUM:
                check(request, engine.size)
            entries.append(Entry(request, buffer, serial))
        return entries

    def _deal(self, engine: Engine, tensor: Any, splits: Any, name: str | None) -> Entry:
        return self._plain(engine, Kind.ALLTOALL, tensor, name, splits=() if splits is None else _splits(splits))

    # Finish.

    def _new(self, tensor: Any, buffer: Buffer, result: Any) -> Any:
        return self._binding.tensor(buffer.out, tuple(tensor.shape), tensor)

    def _same(self, tensor: Any, buffer: Buffer, result: Any) -> Any:
        self._binding.settle(tensor, buffer)
        return tensor

    def _gathered(self, tensor: Any, buffer: Buffer, result: Any) -> Any:
        flat, rows = result
        return self._rows(tensor, flat, sum(rows))

    def _dealt(self, tensor: Any, buffer: Buffer, result: Any) -> Any:
        flat, rows = result
        return self._rows(tensor, flat, sum(rows))

    def _dealt_and_splits(self, tensor: Any, buffer: Buffer, result: Any) -> Any:
        received = np.asarray(result[1], dtype=np.int32)
        return self._dealt(tensor, buffer, result), self._binding.tensor(received, received.shape)

    def _scattered(self, engine: Engine) -> Finish:
        def finish(tensor: Any, buffer: Buffer, result: Any) -> Any:
            return self._rows(tensor, result, shares(tensor.shape[0], engine.size)[engine.rank])

        return finish

    def _rows(self, tensor: Any, flat: Array, rows: int) -> Any:
        return self._binding.tensor(flat, (rows, *tuple(tensor.shape)[1:]), tensor)


def _beside(buffer: Buffer) -> Buffer:
    """The buffer with an ``out`` of its own."""
    if isinstance(buffer, DeviceBuffer):
        return buffer.beside()
    data, _, dtype = buffer
    return Buffer(data, np.empty_like(data), dtype)


def _engine(process_set: ProcessSet, operation: str) -> Engine:
    """The engine of a set; the error says which operation could not have it."""
    if process_set is WORLD:
        return context.engine()
    try:
        return context.engine(process_set)
    except RequestError as error:
        raise RequestError(f"{operation}: {error}") from None


def place_of(root: int, process_set: ProcessSet) -> int:
    """Where ``root``, a rank among all, stands in the set. Raises RequestError if it is not in it."""
    if process_set is WORLD:
        return root
    ranks = process_set.ranks or []
    if root not in ranks:
        raise RequestError(f"broadcast received invalid root rank {root} for provided process set of ranks {ranks}")
    return ranks.index(root)


def _name(engine: Engine, kind: Kind, name: str | None, prefix: str = "") -> tuple[str, int]:
    """The full name and, for unnamed calls, their number."""
    label = f"{prefix}{kind.name.lower()}"
    return (f"{label}.noname", serials.next_for(engine)) if name is None else (f"{label}.{name}", 0)


def reduce_op(average: bool | None, op: int | None) -> ReduceOp:
    """What ``average`` (old) and ``op`` say together."""
    if op is None:
        if average is None:
            return _AVERAGE
        warnings.warn("Parameter `average` has been replaced with `op`.", DeprecationWarning, stacklevel=3)
        return _AVERAGE if average else _SUM
    if average is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    if type(op) is not ReduceOp:
        try:
            op = ReduceOp(op)
        except ValueError:
            raise ValueError(f"op={op!r} is not a reduction; use Average, Sum, Adasum, Min, Max or Product") from None
    return op


def _splits(splits: Any) -> tuple[int, ...]:
    values = np.asarray(splits)
    if values.ndim != 1:
        raise RequestError(f"alltoall expects a 1D splits tensor (got {values.ndim} dimensions)")
    if values.dtype.kind not in "iu" and values.size:
        raise RequestError(f"alltoall expects splits to contain 32-bit integer elements. (got {values.dtype.name})")
    return tuple(values.tolist())
