"""The steps of the public collectives (``core/api/collectives``): prepare a call's entries, submit
them, and finish the results. Frameworks differ only in their ``Binding``.
"""

from __future__ import annotations

import itertools
import operator
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from farandole.base.contracts import Binding
from farandole.base.types import Buffer, DeviceBuffer, Kind, ReduceOp, Request
from farandole.core.engine import Engine, Entry, Handle
from farandole.core.engine.check import check
from farandole.core.kernels import shares
from farandole.errors import HorovodInternalError, RequestError
from farandole.job import context
from farandole.job.context import ProcessSet

if TYPE_CHECKING:
    from farandole.base.types import Array

    # (the caller's tensor, its buffer, the engine's result) -> output
    Finish = Callable[[Any, Buffer, Any], Any]

WORLD = context.global_process_set
INT32_MAX = (1 << 31) - 1
ELSEWHERE = -(1 << 31)  # in the splits of a gather: a different rank receives the rows
_SUM, _AVERAGE, _ADASUM = ReduceOp.SUM, ReduceOp.AVERAGE, ReduceOp.ADASUM


class Pending(NamedTuple):
    """An asynchronous call that has not been synchronized."""

    handle: Handle
    finish: Finish
    tensors: Sequence[Any]
    entries: Sequence[Entry]
    grouped: bool


class Reduction(NamedTuple):
    """A reduction: the operation, and the factors before and after it."""

    op: ReduceOp = _SUM
    prescale: float = 1.0
    postscale: float = 1.0


_MOVE = Reduction()  # for collectives without a reduction


def reduction_of(op: ReduceOp, prescale: Any, postscale: Any) -> Reduction:
    """Return a reduction with its factors as floats. Raises TypeError for other values."""
    if type(prescale) is not float or type(postscale) is not float:
        prescale = factor(prescale, "prescale_factor")
        postscale = factor(postscale, "postscale_factor")
    return Reduction(op, prescale, postscale)


class Verbs:
    """The steps shared by all forms of all collectives: prepare, submit, finish."""

    def __init__(self, binding: Binding) -> None:
        self._binding = binding
        self._handles = itertools.count()
        self._pending: dict[int, Pending] = {}
        self._last_read = -1  # the last handle reported by ``_unread_failures``
        # called with each tensor that is reduced into a new tensor
        self.on_reduced_copy: Callable[[Any], None] | None = None
        context.unread_failures.append(self._unread_failures)

    # Submit.

    def _run(self, engine: Engine, finish: Finish, tensor: Any, entry: Entry) -> Any:
        return finish(tensor, entry.buffer, engine.run((entry,))[0])

    def _start(
        self,
        engine: Engine,
        finish: Finish,
        tensors: Sequence[Any],
        entries: Sequence[Entry],
        grouped: bool,
    ) -> int:
        pending = Pending(engine.submit(entries), finish, tensors, entries, grouped)
        handle = next(self._handles)
        self._pending[handle] = pending
        return handle

    def _unread_failures(self) -> list[HorovodInternalError]:
        """Return the new errors of unsynchronized handles."""
        failed = {
            handle: error
            for handle, pending in list(self._pending.items())
            if handle > self._last_read and (error := pending.handle.error) is not None
        }
        self._last_read = max(failed, default=self._last_read)
        return list(failed.values())

    # Prepare.

    def _allreduce(
        self,
        engine: Engine,
        tensor: Any,
        reduction: Reduction,
        name: str | None,
        *,
        fresh: bool = False,
    ) -> Entry:
        buffer = self._binding.buffer(tensor)
        if fresh:
            buffer = self._apart(tensor, buffer)
        op, prescale, postscale = reduction
        request = Request(
            name="allreduce.noname" if name is None else f"allreduce.{name}",
            kind=Kind.ALLREDUCE,
            dtype=buffer.dtype,
            shape=tuple(tensor.shape),
            op=op,
            prescale=prescale,
            postscale=postscale,
            device=buffer.device,
        )
        if op is _ADASUM:
            check(request, engine.size)
        return Entry(request, buffer, engine.numbers.next_call() if name is None else 0)

    def _apart(self, tensor: Any, buffer: Buffer) -> Buffer:
        if self.on_reduced_copy is not None:
            self.on_reduced_copy(tensor)
        return _out_of_place(buffer)

    def _broadcast(
        self,
        tensor: Any,
        root: int,
        name: str | None,
        process_set: ProcessSet,
        *,
        fresh: bool = False,
    ) -> tuple[Engine, Entry]:
        engine = engine_of(process_set, "Broadcast")
        entry = self._plain(engine, Kind.BROADCAST, tensor, name, root=place_of(root, process_set))
        return engine, entry._replace(buffer=_out_of_place(entry.buffer)) if fresh else entry

    def _plain(
        self,
        engine: Engine,
        kind: Kind,
        tensor: Any,
        name: str | None,
        reduction: Reduction = _MOVE,
        *,
        root: int = 0,
        splits: tuple[int, ...] = (),
    ) -> Entry:
        buffer = self._binding.buffer(tensor)
        label, serial = _name(engine, kind, name)
        request = Request(
            name=label,
            kind=kind,
            dtype=buffer.dtype,
            shape=tuple(tensor.shape),
            op=reduction.op,
            root=root,
            prescale=reduction.prescale,
            postscale=reduction.postscale,
            splits=splits,
            device=buffer.device,
        )
        return Entry(request, buffer, serial)

    def _grouped(
        self,
        engine: Engine,
        kind: Kind,
        tensors: Sequence[Any],
        name: str | None,
        reduction: Reduction = _MOVE,
        *,
        fresh: bool = False,
        dense_shape: tuple[int, ...] = (),
    ) -> list[Entry]:
        group, serial = _name(engine, kind, name, "grouped_")
        group_size = len(tensors)
        entries = []
        for number, tensor in enumerate(tensors, 1):
            buffer = self._binding.buffer(tensor)
            if fresh:
                buffer = self._apart(tensor, buffer)
            request = Request(
                name=f"{group}_{number}of{group_size}",
                kind=kind,
                dtype=buffer.dtype,
                shape=tuple(tensor.shape),
                op=reduction.op,
                prescale=reduction.prescale,
                postscale=reduction.postscale,
                group=group,
                group_size=group_size,
                device=buffer.device,
                dense_shape=dense_shape,
            )
            if reduction.op is _ADASUM:
                check(request, engine.size)
            entries.append(Entry(request, buffer, serial))
        return entries

    def _deal(self, engine: Engine, tensor: Any, splits: Any, name: str | None) -> Entry:
        rows, root = ((), -1) if splits is None else _splits(splits)
        return self._plain(engine, Kind.ALLTOALL, tensor, name, splits=rows, root=root)

    # Finish.

    def _new(self, tensor: Any, buffer: Buffer, result: Any) -> Any:
        return self._binding.tensor(buffer.out, tuple(tensor.shape), tensor)

    def _same(self, tensor: Any, buffer: Buffer, result: Any) -> Any:
        self._binding.write_back(tensor, buffer)
        return tensor

    def _gathered(self, tensor: Any, buffer: Buffer, result: Any) -> Any:
        return self._received(tensor, buffer, result)

    def _received(self, tensor: Any, buffer: Buffer, result: Any) -> Any:
        flat, rows = result
        return self._rows(tensor, flat, sum(rows))

    def _rows_and_splits(self, tensor: Any, buffer: Buffer, result: Any) -> Any:
        received = row_counts(result[1])
        splits = self._binding.tensor(received, received.shape)
        return self._received(tensor, buffer, result), splits

    def _scattered(self, engine: Engine) -> Finish:
        def finish(tensor: Any, buffer: Buffer, result: Any) -> Any:
            return self._rows(tensor, result, shares(tensor.shape[0], engine.size)[engine.rank])

        return finish

    def _rows(self, tensor: Any, flat: Array, rows: int) -> Any:
        return self._binding.tensor(flat, (rows, *tuple(tensor.shape)[1:]), tensor)


def _out_of_place(buffer: Buffer) -> Buffer:
    """Return the buffer with a separate ``out``."""
    if isinstance(buffer, DeviceBuffer):
        return buffer.with_new_out()
    data, _, dtype = buffer
    return Buffer(data, np.empty_like(data), dtype)


def engine_of(process_set: ProcessSet, operation: str) -> Engine:
    """Return the engine of a set. ``operation`` is for errors."""
    if process_set is WORLD:
        return context.engine()
    check_process_set(process_set)
    try:
        return context.engine(process_set)
    except RequestError as error:
        raise RequestError(f"{operation}: {error}") from None


def check_process_set(process_set: ProcessSet) -> None:
    """Raise TypeError unless this is a set of ranks."""
    if not isinstance(process_set, ProcessSet):
        raise TypeError(
            f"process_set={process_set!r} is not a ProcessSet: use one that all ranks created"
            " with hvd.init(process_sets=[...]) or hvd.add_process_set([0, 1])"
        )


def place_of(root: int, process_set: ProcessSet, operation: str = "broadcast") -> int:
    """Return the number within the set of ``root``, a rank in the job. Raises RequestError if it is
    not a member, and TypeError if it is not an int.
    """
    try:
        root = operator.index(root)
    except TypeError:  # such as size() / 2; inside a collective it would end the job
        raise TypeError(f"root_rank={root!r} must be a rank, an int") from None
    if process_set is WORLD:
        return root
    ranks = process_set.ranks or []
    if root not in ranks:
        raise RequestError(
            f"{operation} received invalid root rank {root} for provided process set of ranks"
            f" {ranks}: pass one of these ranks, by its number among all ranks"
        )
    return ranks.index(root)


def _name(engine: Engine, kind: Kind, name: str | None, prefix: str = "") -> tuple[str, int]:
    """Return the full name and, for unnamed calls, their number."""
    label = f"{prefix}{kind.name.lower()}"
    if name is not None:
        return f"{label}.{name}", 0
    # the root of a broadcast and the other ranks may call it from different lines
    return (
        f"{label}.noname",
        engine.numbers.next() if kind is Kind.BROADCAST else engine.numbers.next_call(),
    )


def reduce_op(average: bool | None, op: int | None) -> ReduceOp:
    """Return the operation selected by ``average`` (deprecated) and ``op``. Raises ValueError if
    both are given.
    """
    if op is None:
        if average is None:
            return _AVERAGE
        # as a truth value, Average (0) would select a sum, and all other operations an average
        if isinstance(average, ReduceOp):
            raise ValueError(
                f"average={average!r}: pass an operation by name,"
                f" op=hvd.{average.name.capitalize()}. This position is the deprecated argument"
                " average, which is True or False"
            )
        warnings.warn(
            "Parameter `average` has been replaced with `op`.", DeprecationWarning, stacklevel=3
        )
        return _AVERAGE if average else _SUM
    if average is not None:
        raise ValueError(
            "The op parameter supersedes average. Please provide only one of them. "
            f"(got op={op!r} and average={average!r}; leave average out)"
        )
    return op if type(op) is ReduceOp else ReduceOp.given(op)


def factor(value: Any, what: str) -> float:
    """Return ``value`` as a float; it may be a number of numpy or the framework. Raises TypeError
    if it has no known value.
    """
    if type(value) is float:
        return value
    try:
        if isinstance(value, str):
            raise TypeError
        return float(value)
    # JAX and TensorFlow raise their own errors for traced values
    except Exception as error:
        raise TypeError(
            f"{what}={value!r} must be a number known at the call, such as 0.5; to scale by other"
            " values, multiply the tensor itself"
        ) from error


def row_counts(rows: Sequence[int]) -> Array:
    """Return numbers of rows as int32, as in Horovod, or as int64 if one does not fit."""
    return np.array(rows, dtype=np.int64 if max(rows) > INT32_MAX else np.int32)


def _splits(splits: Any) -> tuple[tuple[int, ...], int]:
    """Return the number of rows for each rank, and the root of a gather or -1. Raises RequestError
    for invalid splits.
    """
    values = np.asarray(splits)
    if values.ndim != 1:
        raise RequestError(
            f"alltoall expects a 1D splits tensor (got {values.ndim} dimensions): one number of"
            " rows per rank"
        )
    if values.dtype.kind not in "iu" and values.size:
        raise RequestError(
            f"alltoall expects splits to contain 32-bit integer elements. (got {values.dtype.name})"
        )
    rows = tuple(values.tolist())
    if ELSEWHERE not in rows:
        return rows, -1
    return tuple(0 if count == ELSEWHERE else count for count in rows), next(
        (place for place, count in enumerate(rows) if count != ELSEWHERE), -1
    )
