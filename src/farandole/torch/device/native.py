"""Collectives through a backend of torch.distributed (NCCL): tensors stay on the device.

Dtypes that NCCL cannot reduce are converted: bool to bytes, int16 to int32, scaled integers to
int64. 16-bit floats are summed as such; a factor is applied first, so that sums stay small.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import distributed

from farandole.base.types import DType, ReduceOp
from farandole.torch.device.watch import Watch

_HEAR = 3.0  # seconds to detect that a lost peer caused an error
_LOGICAL = {
    ReduceOp.SUM: ReduceOp.MAX,
    ReduceOp.MAX: ReduceOp.MAX,
    ReduceOp.PRODUCT: ReduceOp.MIN,
    ReduceOp.MIN: ReduceOp.MIN,
}


class Native:
    """The collectives of a Transport, on Buffers of tensors. ``backend``: None for a single
    rank.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        backend: Any = None,
        follow: Callable[[Any], None] | None = None,
        watch: Watch | None = None,
    ) -> None:
        """``follow``: see ``Accelerator``."""
        self.rank = rank
        self.size = size
        self._backend = backend
        self._follow = follow
        self._watch = watch

    def allreduce(self, buffers: Sequence[Any], op: ReduceOp, scale: float) -> None:
        dtype = buffers[0].dtype
        if len(buffers) == 1:
            data, out, _ = buffers[0]
            flat = data if _widens(dtype, scale) else out
            if flat is not data:
                flat.copy_(data)
        else:
            flat = out = torch.cat([buffer.data for buffer in buffers])
        if not len(flat):
            return
        total = opened(flat, dtype, op, scale)
        self._reduce(total, _LOGICAL[op] if dtype is DType.BOOL else op)
        close_into(out, total, dtype, op, scale)
        if len(buffers) > 1:
            outs = [buffer.out for buffer in buffers]
            torch._foreach_copy_(outs, list(out.split([len(part) for part in outs])))

    def allgather(self, send: Any, receive: Any, counts: Sequence[int]) -> None:
        """Gather every rank's ``send``. ``counts``: bytes per rank."""
        send, receive = send.view(torch.uint8), receive.view(torch.uint8)
        longest = max(counts)
        if not longest:
            return
        if self._backend is None:
            receive.copy_(send)
        elif min(counts) == longest:
            self._do(lambda: self._backend._allgather_base(receive, send))
        elif longest * self.size <= 2 * len(receive):
            padded = receive.new_empty(longest * self.size)
            mine = send.new_empty(longest)
            mine[: len(send)] = send
            self._do(lambda: self._backend._allgather_base(padded, mine))
            parts = padded.view(self.size, longest)
            _copy(
                receive.split(list(counts)),
                [part[:count] for part, count in zip(parts, counts, strict=True)],
            )
        else:  # a few ranks have most of the data: padding would multiply it
            parts = receive.split(list(counts))
            parts[self.rank].copy_(send)
            for root, part in enumerate(parts):
                if len(part):
                    self.broadcast(part, root)

    def broadcast(self, data: Any, root: int) -> None:
        if self._backend is None or not len(data):
            return
        options = distributed.BroadcastOptions()
        options.rootRank = root
        self._do(lambda: self._backend.broadcast([data.view(torch.uint8)], options))

    def alltoall(
        self, send: Any, send_counts: Sequence[int], receive: Any, receive_counts: Sequence[int]
    ) -> None:
        """Exchange parts between all ranks. Counts are in bytes."""
        send, receive = send.view(torch.uint8), receive.view(torch.uint8)
        if self._backend is None:
            receive.copy_(send)
            return
        self._do(
            lambda: self._backend.alltoall_base(
                receive, send, list(receive_counts), list(send_counts)
            )
        )

    def reducescatter(self, buffer: Any, counts: Sequence[int], op: ReduceOp, scale: float) -> None:
        data, out, dtype = buffer
        longest = max(counts)
        if not longest:
            return
        rows = (
            data.view(self.size, longest)
            if min(counts) == longest
            else data.new_zeros(self.size, longest)
        )
        if min(counts) < longest:
            _copy(
                [row[:count] for row, count in zip(rows, counts, strict=True)],
                data.split(list(counts)),
            )
        elif _early(dtype, op, scale):
            rows = rows.clone()  # the input must not change
        whole = opened(rows.reshape(-1), dtype, op, scale)
        part = whole.new_empty(longest)
        if self._backend is None:
            part.copy_(whole)
        else:
            options = distributed.ReduceScatterOptions()
            options.reduceOp = _named(_LOGICAL[op] if dtype is DType.BOOL else op)
            self._do(lambda: self._backend._reduce_scatter_base(part, whole, options))
        close_into(out, part[: len(out)], dtype, op, scale)

    def _reduce(self, flat: Any, op: ReduceOp) -> None:
        if self._backend is not None:
            options = distributed.AllreduceOptions()
            options.reduceOp = _named(op)
            self._do(lambda: self._backend.allreduce([flat], options))

    def _do(self, start: Callable[[], Any]) -> None:
        """Start a collective and make later work on the stream wait for it. With NCCL, the calling
        thread does not wait.
        """
        assert self._follow is not None
        try:
            work = start()
            self._follow(work)
        except RuntimeError as error:
            lost = None if self._watch is None else self._watch.cause(_HEAR)
            if lost is not None:
                raise lost from error
            raise
        if self._watch is not None:
            self._watch.note(work)


def opened(flat: Any, dtype: DType, op: ReduceOp, scale: float) -> Any:
    """Return ``flat`` in a dtype that can be reduced: the same memory unless a wider dtype is
    needed.
    """
    if dtype is DType.BOOL:
        return flat.view(torch.uint8)
    if _widens(dtype, scale):
        return flat.to(torch.int32 if scale == 1.0 else torch.int64)
    return flat.mul_(scale) if _early(dtype, op, scale) else flat


def close_into(out: Any, total: Any, dtype: DType, op: ReduceOp, scale: float) -> None:
    """Apply the factor to a reduced ``total`` and store it in ``out``, which may be the same
    memory.
    """
    if dtype is DType.BOOL:
        out = out.view(torch.uint8)
    if scale == 1.0 or _early(dtype, op, scale):
        if out.data_ptr() != total.data_ptr():
            out.copy_(total)
    else:
        scale_into(out, total, dtype, scale)


def scale_into(out: Any, values: Any, dtype: DType, scale: float) -> None:
    """Compute ``out = scale * values``. Integer results are truncated toward zero, exactly for
    averages.
    """
    if dtype.is_float:
        torch.mul(values, scale, out=out)
        return
    divisor = round(1.0 / scale) if abs(scale) > 2.0**-52 else 0
    if divisor and 1.0 / divisor == scale:
        out.copy_(torch.div(values.to(torch.int64), divisor, rounding_mode="trunc"))
    else:
        out.copy_(values.to(torch.float64).mul_(scale).trunc_())


def _widens(dtype: DType, scale: float) -> bool:
    if dtype.is_float or dtype in (DType.INT64, DType.BOOL):
        return False
    return dtype is DType.INT16 or scale != 1.0


def _early(dtype: DType, op: ReduceOp, scale: float) -> bool:
    return dtype.is_half and op is ReduceOp.SUM and scale != 1.0


def _named(op: ReduceOp) -> Any:
    return getattr(distributed.ReduceOp, op.name)


def _copy(targets: Sequence[Any], sources: Sequence[Any]) -> None:
    pairs = [pair for pair in zip(targets, sources, strict=True) if len(pair[0])]
    if pairs:
        torch._foreach_copy_([target for target, _ in pairs], [source for _, source in pairs])
