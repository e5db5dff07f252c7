"""Run one agreed unit on the transport."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from farandole.base.contracts import Codec, DeviceTransport, Part, Transport
from farandole.base.types import Buffer, DType, Kind, ReduceOp, Request
from farandole.core.collectives import adasum
from farandole.core.engine.fusion import Unit
from farandole.core.engine.handle import Entry
from farandole.core.kernels import halves, scale_into, scaled_halves, shares
from farandole.job.plugins import registry

if TYPE_CHECKING:
    from farandole.base.types import Array


# Allgather: one tuple, with the first dimension on every rank. Alltoall: for each rank, the numbers
# of rows sent to each rank.
Parts = Sequence[tuple[int, ...]]


def execute(
    unit: Unit, entries: Sequence[Entry], transport: Transport, divisor: int = 0
) -> list[Any]:
    """Run a unit and return the results of its collectives, as described in ``Engine.submit``.

    ``divisor``: the divisor of an average, if it is not the number of ranks.
    """
    buffers = [entry.buffer for entry in entries]
    if unit.kind is Kind.ALLREDUCE:
        first = unit.requests[0]
        if first.op is ReduceOp.ADASUM:
            combine = getattr(transport, "adasum", None) or partial(adasum.allreduce, transport)
            combine(buffers, first.prescale * first.postscale)
            return [None] * len(buffers)
        op, scale = reduction(first, transport.size - len(unit.absent), divisor or transport.size)
        if first.codec and transport.size > 1:
            _allreduce_by_codec(unit, entries, scale, transport)
            return [None] * len(buffers)
        if _prescales_first(first) and transport.rank not in unit.absent:
            buffers = [
                buffer._replace(data=_summand(first, buffer.data, transport, buffer.out))
                for buffer in buffers
            ]
        if _averages_int64(first):
            _average_int64(
                first, buffers, transport, divisor or transport.size, partial(_add_up, transport)
            )
        else:
            transport.allreduce(buffers, op, scale)
        return [None] * len(buffers)
    run = _RUN[unit.kind]
    per_buffer = len(unit.parts) // len(buffers)  # parts per collective
    return [
        run(request, buffer, unit.parts[index * per_buffer : (index + 1) * per_buffer], transport)
        for index, (request, buffer) in enumerate(zip(unit.requests, buffers, strict=True))
    ]


def reduces_as_is(request: Request) -> bool:
    """Return whether this is an allreduce with exactly one reduction, of unmodified elements."""
    return (
        request.kind is Kind.ALLREDUCE
        and request.op is not ReduceOp.ADASUM
        and not (request.codec or _prescales_first(request) or _averages_int64(request))
    )


def _averages_int64(request: Request) -> bool:
    return request.op is ReduceOp.AVERAGE and request.dtype is DType.INT64


def _average_int64(
    request: Request,
    buffers: Sequence[Buffer],
    transport: Transport,
    divisor: int,
    add_up: Callable[[list[Any]], list[Any]],
) -> None:
    """Average int64, adding up the upper and lower 32 bits separately.

    The sum of complete values could overflow 64 bits although the average fits.
    """
    pairs = [halves(buffer.data) for buffer in buffers]
    sums = add_up([high for high, _ in pairs] + [low for _, low in pairs])
    _, scale = reduction(request, transport.size, divisor)
    for buffer, high, low in zip(buffers, sums, sums[len(buffers) :], strict=False):
        buffer.out[:] = scaled_halves(high, low, scale)


def _add_up(transport: Transport, arrays: list[Any]) -> list[Any]:
    transport.allreduce([Buffer(array, array, DType.INT64) for array in arrays], ReduceOp.SUM)
    return arrays


def reduction(request: Request, present: int, divisor: int) -> tuple[ReduceOp, float]:
    """Fold average, prescale and postscale into one factor, applied once to the result.

    ``present``: the number of ranks with data; ``divisor``: the divisor of an average. Integers are
    prescaled before the reduction.
    """
    op, pre, post = (
        request.op,
        1.0 if _prescales_first(request) else request.prescale,
        request.postscale,
    )
    if op is ReduceOp.AVERAGE:
        return ReduceOp.SUM, pre * post / divisor if (pre, post) != (1.0, 1.0) else 1.0 / divisor
    if op is ReduceOp.PRODUCT:
        return op, float(pre**present) * post
    if pre < 0 and op in (ReduceOp.MIN, ReduceOp.MAX):  # a negative factor reverses the order
        return (ReduceOp.MAX if op is ReduceOp.MIN else ReduceOp.MIN), pre * post
    return op, pre * post


def _prescales_first(request: Request) -> bool:
    return request.prescale != 1.0 and not request.dtype.is_float


def _summand(
    request: Request, data: Array, transport: Transport, out: Array | None = None
) -> Array:
    """Return the operand of the reduction: ``data``, or for integers with a prescale, ``data``
    scaled and truncated into ``out`` or new memory.

    Programs written for Horovod depend on this rounding.
    """
    if not _prescales_first(request):
        return data
    out = _empty(transport, len(data), request.dtype) if out is None else out
    _scale_into(out, data, request.prescale, transport)
    return out


def _scale_into(out: Array, values: Array, factor: float, transport: Transport) -> None:
    """Scale integers in the memory of the host or of a device."""
    if isinstance(out, np.ndarray):
        scale_into(out, values, factor)
    else:
        cast(DeviceTransport, transport).scale(out, values, DType.INT64, factor)


def _row(shape: Sequence[int]) -> int:
    count = 1
    for length in shape[1:]:
        count *= length
    return count


def _allgather(request: Request, buffer: Buffer, parts: Parts, transport: Transport) -> Any:
    (rows_of,) = parts
    row = _row(request.shape)
    out = _empty(transport, sum(rows_of) * row, request.dtype)
    counts = [rows * row * request.dtype.itemsize for rows in rows_of]
    transport.allgather(_bytes(buffer.data), _bytes(out), counts)
    return out, rows_of


def _broadcast(request: Request, buffer: Buffer, parts: Parts, transport: Transport) -> Any:
    if transport.rank == request.root and buffer.out is not buffer.data:
        buffer.out[:] = buffer.data
    transport.broadcast(_bytes(buffer.out), request.root)


def _reducescatter(request: Request, buffer: Buffer, parts: Parts, transport: Transport) -> Any:
    row = _row(request.shape)
    counts = [rows * row for rows in shares(request.shape[0], transport.size)]
    out = _empty(transport, counts[transport.rank], request.dtype)
    given = Buffer(_summand(request, buffer.data, transport), out, request.dtype)
    if _averages_int64(request):

        def scatter(arrays: list[Any]) -> list[Any]:
            sums = [_empty(transport, len(out), DType.INT64) for _ in arrays]
            for array, mine in zip(arrays, sums, strict=True):
                transport.reducescatter(Buffer(array, mine, DType.INT64), counts, ReduceOp.SUM)
            return sums

        _average_int64(request, [given], transport, transport.size, scatter)
    else:
        transport.reducescatter(given, counts, *reduction(request, transport.size, transport.size))
    return out


def nothing(request: Request) -> Buffer:
    """Return the operand of a rank without data: the neutral element of the reduction."""
    dtype = request.dtype
    # the effective operation: a negative factor swaps minimum and maximum
    op, _ = reduction(request, 1, 1)
    count = 1
    for length in request.shape:
        count *= length
    array = np.full(count, _neutral(dtype, op), dtype=dtype.storage)
    return Buffer(array, array, dtype)


def _neutral(dtype: DType, op: ReduceOp) -> Any:
    if op in (ReduceOp.SUM, ReduceOp.AVERAGE, ReduceOp.ADASUM):
        return 0
    if dtype is DType.BFLOAT16:  # the bits of 1, inf and -inf
        return {ReduceOp.PRODUCT: 0x3F80, ReduceOp.MIN: 0x7F80, ReduceOp.MAX: 0xFF80}[op]
    if op is ReduceOp.PRODUCT:
        return 1
    if dtype is DType.BOOL:
        return op is ReduceOp.MIN
    if dtype.is_float:
        return np.inf if op is ReduceOp.MIN else -np.inf
    limits = np.iinfo(dtype.storage)
    return limits.max if op is ReduceOp.MIN else limits.min


def _join(request: Request, buffer: Buffer, parts: Parts, transport: Transport) -> Any:
    return parts[0][0]


def _allocate(request: Request, buffer: Buffer, parts: Parts, transport: Transport) -> Any:
    return transport.allocate(request.shape[0])


def _barrier(request: Request, buffer: Buffer, parts: Parts, transport: Transport) -> Any:
    transport.barrier()


def _alltoall(request: Request, buffer: Buffer, splits: Parts, transport: Transport) -> Any:
    unit = _row(request.shape) * request.dtype.itemsize
    received = tuple(rows[transport.rank] for rows in splits)
    out = _empty(transport, sum(received) * _row(request.shape), request.dtype)
    sends = [rows * unit for rows in splits[transport.rank]]
    used = sum(sends)
    transport.alltoall(
        _bytes(buffer.data)[:used], sends, _bytes(out), [rows * unit for rows in received]
    )
    return out, received


def _empty(transport: Transport, count: int, dtype: DType) -> Any:
    """Return memory for a result, allocated by the transport if it has its own."""
    make = getattr(transport, "empty", None)
    return np.empty(count, dtype=dtype.storage) if make is None else make(count, dtype)


def _bytes(array: Array) -> Array:
    """Return host memory as bytes; device transports convert it themselves."""
    return array.view(np.uint8) if isinstance(array, np.ndarray) else array


_RUN: dict[Kind, Callable[[Request, Buffer, Parts, Transport], Any]] = {
    Kind.ALLTOALL: _alltoall,
    Kind.ALLGATHER: _allgather,
    Kind.BROADCAST: _broadcast,
    Kind.REDUCESCATTER: _reducescatter,
    Kind.BARRIER: _barrier,
    Kind.JOIN: _join,
    Kind.ALLOCATE: _allocate,
}


def _allreduce_by_codec(
    unit: Unit, entries: Sequence[Entry], scale: float, transport: Transport
) -> None:
    """Reduce the unit's tensors with the codec that all ranks requested."""
    spec = unit.requests[0].codec
    codec = entries[0].codec or _without_state(spec)
    codec.allreduce([_part(entry) for entry in entries], scale, transport)


def _part(entry: Entry) -> Part:
    key = (entry.key or entry.request.name) if entry.codec is not None else ""
    return Part(key, entry.request.shape, entry.buffer, entry.given)


@lru_cache(maxsize=16)
def _without_state(spec: str) -> Codec:
    """Return the codec on a rank that has joined, which may never have used it.

    Raises SettingsError if the codec is not registered.
    """
    made: Codec = registry.make("codec", spec)
    return made
