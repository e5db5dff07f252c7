"""The public collectives, once for every framework.

A form (blocking, asynchronous, in place, grouped) is a few lines over three verbs: prepare the entries of a call,
submit them, finish what came back. Frameworks differ in their ``Binding`` alone.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from farandole import context
from farandole.collectives.kernels import shares
from farandole.contracts import Binding
from farandole.engine import Entry, Handle
from farandole.errors import RequestError
from farandole.frontend import serials
from farandole.frontend.compression import NoneCompressor
from farandole.types import Buffer, DType, Kind, ReduceOp, Request

if TYPE_CHECKING:
    from farandole.types import Array

    Finish = Callable[[Any, Buffer, Any], Any]  # (the caller's tensor, its buffer, the engine's result) -> output
    Pending = tuple[Handle, Finish, Sequence[Any], Sequence[Entry], bool]

_SUM, _AVERAGE = ReduceOp.SUM, ReduceOp.AVERAGE
_NOTHING = np.empty(0, dtype=np.uint8)


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
    ) -> Any:  # fmt: skip
        """The reduction of every rank's ``tensor``, as a new tensor. ``op``: Average (the default), Sum, Min, ..."""
        tensor, token = compression.compress(tensor)
        entry = self._reduction(tensor, _op(average, op), name, prescale_factor, postscale_factor, fresh=True)
        return compression.decompress(self._run(self._new, tensor, entry), token)

    def allreduce_async(
        self, tensor: Any, average: bool | None = None, name: str | None = None, op: int | None = None,
        prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    ) -> int:  # fmt: skip
        """Start ``allreduce``; ``synchronize(handle)`` gives the new tensor."""
        entry = self._reduction(tensor, _op(average, op), name, prescale_factor, postscale_factor, fresh=True)
        return self._start(self._new, (tensor,), (entry,), False)

    def allreduce_(
        self, tensor: Any, average: bool | None = None, name: str | None = None, op: int | None = None,
        prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    ) -> Any:  # fmt: skip
        """``allreduce`` in place."""
        entry = self._reduction(tensor, _op(average, op), name, prescale_factor, postscale_factor)
        return self._run(self._same, tensor, entry)

    def allreduce_async_(
        self, tensor: Any, average: bool | None = None, name: str | None = None, op: int | None = None,
        prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    ) -> int:  # fmt: skip
        """Start ``allreduce_``. The tensor must not be touched until ``synchronize(handle)``."""
        entry = self._reduction(tensor, _op(average, op), name, prescale_factor, postscale_factor)
        return self._start(self._same, (tensor,), (entry,), False)

    def grouped_allreduce(
        self, tensors: Sequence[Any], average: bool | None = None, name: str | None = None,
        compression: Any = NoneCompressor, op: int | None = None, prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> list[Any]:  # fmt: skip
        """``allreduce`` of several tensors as one unit."""
        pairs = [compression.compress(tensor) for tensor in tensors]
        small = [tensor for tensor, _ in pairs]
        entries = self._reductions(small, _op(average, op), name, prescale_factor, postscale_factor, fresh=True)
        done = self.synchronize(self._start(self._new, small, entries, True))
        return [compression.decompress(each, token) for each, (_, token) in zip(done, pairs, strict=True)]

    def grouped_allreduce_async(
        self, tensors: Sequence[Any], average: bool | None = None, name: str | None = None, op: int | None = None,
        prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    ) -> int:  # fmt: skip
        """Start ``grouped_allreduce``: one handle for all tensors."""
        entries = self._reductions(tensors, _op(average, op), name, prescale_factor, postscale_factor, fresh=True)
        return self._start(self._new, tensors, entries, True)

    def grouped_allreduce_(
        self, tensors: Sequence[Any], average: bool | None = None, name: str | None = None, op: int | None = None,
        prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    ) -> Any:  # fmt: skip
        """``grouped_allreduce`` in place."""
        return self.synchronize(
            self.grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor)
        )

    def grouped_allreduce_async_(
        self, tensors: Sequence[Any], average: bool | None = None, name: str | None = None, op: int | None = None,
        prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    ) -> int:  # fmt: skip
        """Start ``grouped_allreduce_``: one handle for all tensors."""
        entries = self._reductions(tensors, _op(average, op), name, prescale_factor, postscale_factor)
        return self._start(self._same, tensors, entries, True)

    # Allgather.

    def allgather(self, tensor: Any, name: str | None = None) -> Any:
        """Every rank's ``tensor``, one below the other. The first dimension may differ from rank to rank."""
        return self._run(self._gathered, tensor, self._plain(Kind.ALLGATHER, tensor, name))

    def allgather_async(self, tensor: Any, name: str | None = None) -> int:
        """Start ``allgather``."""
        return self._start(self._gathered, (tensor,), (self._plain(Kind.ALLGATHER, tensor, name),), False)

    def grouped_allgather(self, tensors: Sequence[Any], name: str | None = None) -> Any:
        """``allgather`` of several tensors as one unit."""
        return self.synchronize(self.grouped_allgather_async(tensors, name))

    def grouped_allgather_async(self, tensors: Sequence[Any], name: str | None = None) -> int:
        """Start ``grouped_allgather``: one handle for all tensors."""
        return self._start(self._gathered, tensors, self._grouped(Kind.ALLGATHER, tensors, name), True)

    # Broadcast.

    def broadcast(self, tensor: Any, root_rank: int, name: str | None = None) -> Any:
        """``root_rank``'s ``tensor``, as a new tensor on every rank."""
        return self._run(self._new, tensor, self._broadcast(tensor, root_rank, name, fresh=True))

    def broadcast_async(self, tensor: Any, root_rank: int, name: str | None = None) -> int:
        """Start ``broadcast``."""
        return self._start(self._new, (tensor,), (self._broadcast(tensor, root_rank, name, fresh=True),), False)

    def broadcast_(self, tensor: Any, root_rank: int, name: str | None = None) -> Any:
        """``broadcast`` in place."""
        return self._run(self._same, tensor, self._broadcast(tensor, root_rank, name))

    def broadcast_async_(self, tensor: Any, root_rank: int, name: str | None = None) -> int:
        """Start ``broadcast_``. The tensor must not be touched until ``synchronize(handle)``."""
        return self._start(self._same, (tensor,), (self._broadcast(tensor, root_rank, name),), False)

    # Alltoall.

    def alltoall(self, tensor: Any, splits: Any = None, name: str | None = None) -> Any:
        """Deal the rows of ``tensor``: the first ``splits[0]`` to rank 0 and so on (evenly without ``splits``).

        Gives what this rank received, and with ``splits`` also how many rows came from each rank.
        """
        entry = self._deal(tensor, splits, name)
        return self._run(self._dealt if splits is None else self._dealt_and_splits, tensor, entry)

    def alltoall_async(self, tensor: Any, splits: Any = None, name: str | None = None) -> int:
        """Start ``alltoall``."""
        entry = self._deal(tensor, splits, name)
        return self._start(self._dealt if splits is None else self._dealt_and_splits, (tensor,), (entry,), False)

    # Reducescatter.

    def reducescatter(
        self, tensor: Any, name: str | None = None, compression: Any = NoneCompressor, op: int | None = None,
        *, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    ) -> Any:  # fmt: skip
        """This rank's rows of the reduction. What ranks do not divide goes one row each to the first ranks."""
        tensor, token = compression.compress(tensor)
        entry = self._plain(
            Kind.REDUCESCATTER, tensor, name, op=_op(None, op), prescale=prescale_factor, postscale=postscale_factor
        )
        return compression.decompress(self._run(self._scattered, tensor, entry), token)

    def reducescatter_async(
        self, tensor: Any, name: str | None = None, op: int | None = None,
        *, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    ) -> int:  # fmt: skip
        """Start ``reducescatter``."""
        entry = self._plain(
            Kind.REDUCESCATTER, tensor, name, op=_op(None, op), prescale=prescale_factor, postscale=postscale_factor
        )
        return self._start(self._scattered, (tensor,), (entry,), False)

    def grouped_reducescatter(
        self, tensors: Sequence[Any], name: str | None = None, compression: Any = NoneCompressor,
        op: int | None = None, *, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    ) -> list[Any]:  # fmt: skip
        """``reducescatter`` of several tensors as one unit."""
        pairs = [compression.compress(tensor) for tensor in tensors]
        handle = self.grouped_reducescatter_async(
            [tensor for tensor, _ in pairs], name, op,
            prescale_factor=prescale_factor, postscale_factor=postscale_factor,
        )  # fmt: skip
        done = self.synchronize(handle)
        return [compression.decompress(each, token) for each, (_, token) in zip(done, pairs, strict=True)]

    def grouped_reducescatter_async(
        self, tensors: Sequence[Any], name: str | None = None, op: int | None = None,
        *, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    ) -> int:  # fmt: skip
        """Start ``grouped_reducescatter``: one handle for all tensors."""
        entries = self._grouped(
            Kind.REDUCESCATTER, tensors, name, op=_op(None, op), prescale=prescale_factor, postscale=postscale_factor
        )
        return self._start(self._scattered, tensors, entries, True)

    # The rest.

    def barrier(self) -> None:
        """Return when all ranks have come here."""
        engine = context.engine()
        entry = Entry(
            Request("barrier.noname", Kind.BARRIER, DType.UINT8, (0,)),
            Buffer(_NOTHING, _NOTHING, DType.UINT8),
            serials.next_for(engine),
        )
        engine.run((entry,))

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

    # Submit.

    def _run(self, finish: Finish, tensor: Any, entry: Entry) -> Any:
        return finish(tensor, entry.buffer, context.engine().run((entry,))[0])

    def _start(self, finish: Finish, tensors: Sequence[Any], entries: Sequence[Entry], grouped: bool) -> int:
        pending = (context.engine().submit(entries), finish, tensors, entries, grouped)
        handle = next(self._handles)
        self._pending[handle] = pending
        return handle

    # Prepare.

    def _reduction(
        self, tensor: Any, op: ReduceOp, name: str | None, prescale: float, postscale: float, *, fresh: bool = False
    ) -> Entry:
        buffer = self._binding.buffer(tensor)
        data, _, dtype = buffer
        if fresh:
            buffer = Buffer(data, np.empty_like(data), dtype)
        shape = tuple(tensor.shape)
        if name is None:
            request = Request("allreduce.noname", Kind.ALLREDUCE, dtype, shape, op, 0, prescale, postscale)
            return Entry(request, buffer, serials.next_for(context.engine()))
        return Entry(Request(f"allreduce.{name}", Kind.ALLREDUCE, dtype, shape, op, 0, prescale, postscale), buffer)

    def _reductions(
        self, tensors: Sequence[Any], op: ReduceOp, name: str | None, prescale: float, postscale: float,
        *, fresh: bool = False,
    ) -> list[Entry]:  # fmt: skip
        return self._grouped(Kind.ALLREDUCE, tensors, name, op=op, prescale=prescale, postscale=postscale, fresh=fresh)

    def _broadcast(self, tensor: Any, root: int, name: str | None, *, fresh: bool = False) -> Entry:
        entry = self._plain(Kind.BROADCAST, tensor, name, root=root)
        data, _, dtype = entry.buffer
        return entry._replace(buffer=Buffer(data, np.empty_like(data), dtype)) if fresh else entry

    def _plain(
        self, kind: Kind, tensor: Any, name: str | None, *, op: ReduceOp = _SUM, root: int = 0,
        prescale: float = 1.0, postscale: float = 1.0, splits: tuple[int, ...] = (),
    ) -> Entry:  # fmt: skip
        buffer = self._binding.buffer(tensor)
        full, serial = self._name(kind, name)
        shape = tuple(tensor.shape)
        return Entry(Request(full, kind, buffer.dtype, shape, op, root, prescale, postscale, splits), buffer, serial)

    def _grouped(
        self, kind: Kind, tensors: Sequence[Any], name: str | None, *, op: ReduceOp = _SUM,
        prescale: float = 1.0, postscale: float = 1.0, fresh: bool = False,
    ) -> list[Entry]:  # fmt: skip
        group, serial = self._name(kind, name, "grouped_")
        group_size = len(tensors)
        entries = []
        for number, tensor in enumerate(tensors, 1):
            buffer = self._binding.buffer(tensor)
            if fresh:
                buffer = Buffer(buffer.data, np.empty_like(buffer.data), buffer.dtype)
            request = Request(
                f"{group}_{number}of{group_size}", kind, buffer.dtype, tuple(tensor.shape), op, 0,
                prescale, postscale, (), group, group_size,
            )  # fmt: skip
            entries.append(Entry(request, buffer, serial))
        return entries

    def _name(self, kind: Kind, name: str | None, prefix: str = "") -> tuple[str, int]:
        """The full name and, for unnamed calls, their number."""
        label = f"{prefix}{kind.name.lower()}"
        return (f"{label}.noname", serials.next_for(context.engine())) if name is None else (f"{label}.{name}", 0)

    def _deal(self, tensor: Any, splits: Any, name: str | None) -> Entry:
        return self._plain(Kind.ALLTOALL, tensor, name, splits=() if splits is None else _splits(splits))

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

    def _scattered(self, tensor: Any, buffer: Buffer, result: Any) -> Any:
        engine = context.engine()
        return self._rows(tensor, result, shares(tensor.shape[0], engine.size)[engine.rank])

    def _rows(self, tensor: Any, flat: Array, rows: int) -> Any:
        return self._binding.tensor(flat, (rows, *tuple(tensor.shape)[1:]), tensor)


def _op(average: bool | None, op: int | None) -> ReduceOp:
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
            raise ValueError(f"op={op!r} is not a reduction; use Average, Sum, Min, Max or Product") from None
    if op is ReduceOp.ADASUM:
        raise NotImplementedError("Adasum is not available; use op=Average or op=Sum")
    return op


def _splits(splits: Any) -> tuple[int, ...]:
    values = np.asarray(splits)
    if values.ndim != 1:
        raise RequestError(f"alltoall expects a 1D splits tensor (got {values.ndim} dimensions)")
    if values.dtype.kind not in "iu" and values.size:
        raise RequestError(f"alltoall expects splits to contain 32-bit integer elements. (got {values.dtype.name})")
    return tuple(values.tolist())
