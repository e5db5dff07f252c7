"""Gradients of a few rows of a parameter (``grad_stype="row_sparse"``): only these rows are
sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np

from farandole.core.api.array_binding import ArrayBinding
from farandole.core.api.collectives import Collectives
from farandole.core.kernels import average_of_halves, divisor_of, halves, scale_into
from farandole.job.context import ProcessSet

if TYPE_CHECKING:
    from farandole.base.types import Array

_collectives: Collectives[Any, Any] = Collectives(ArrayBinding())


def reduce_rows(
    name: str, gradients: list[Any], fresh: bool, factor: float, process_set: ProcessSet
) -> Callable[[], bool]:
    """Start summing the rows of all ranks, times ``factor``, and return a function that waits.

    ``gradients``: of the same parameter on each device of this rank. The function writes the sum to
    them, and returns whether any rank's were ``fresh``.
    """
    parts = [_rows(gradient) for gradient in gradients] if fresh else [_none(gradients[0])]
    indices = np.concatenate([part[0] for part in parts])
    values = np.concatenate([part[1] for part in parts])
    flag = np.array([fresh], dtype=np.uint8)
    handle = _collectives.gather_rows_async(
        [indices, values, flag], gradients[0].shape, name, process_set
    )

    def finish() -> bool:
        every_index, every_value, flags = _collectives.synchronize(handle)
        index, total = added_up(every_index, every_value, factor)
        for gradient in gradients:
            _set_rows(gradient, index, total)
        return bool(flags.any())

    return finish


def added_up(indices: Array, values: Array, factor: float = 1.0) -> tuple[Array, Array]:
    """Sum the rows of equal index, times ``factor``; half types in float32, integers in 64 bits.
    Returned indices ascend without duplicates.
    """
    if not len(indices):
        return indices, values
    order = np.argsort(indices, kind="stable")
    ordered = indices[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    divisor = divisor_of(factor)
    if values.dtype == np.int64 and divisor > 1:  # the sum may overflow where the average does not
        high, low = (np.add.reduceat(half[order], starts, axis=0) for half in halves(values))
        return ordered[starts], average_of_halves(high, low, divisor)
    wide = {"f": values.dtype if values.dtype != np.float16 else np.dtype(np.float32)}.get(
        values.dtype.kind, np.int64
    )
    total = np.add.reduceat(values[order].astype(wide, copy=False), starts, axis=0)
    out = total if wide == values.dtype else np.empty(total.shape, values.dtype)
    if factor != 1.0:
        scale_into(out, total, factor)
    elif out is not total:
        np.copyto(out, total, casting="unsafe")
    return ordered[starts], out


def _none(gradient: Any) -> tuple[Array, Array]:
    return np.empty(0, dtype=np.int64), np.empty((0, *gradient.shape[1:]), dtype=gradient.dtype)


def _rows(gradient: Any) -> tuple[Array, Array]:
    indices = gradient.indices.asnumpy().astype(np.int64, copy=False)
    return (indices, gradient.data.asnumpy()) if len(indices) else _none(gradient)


def _set_rows(gradient: Any, indices: Array, values: Array) -> None:
    if not len(indices):
        mx.nd.sparse.zeros(
            "row_sparse", gradient.shape, ctx=gradient.context, dtype=gradient.dtype
        ).copyto(gradient)
        return
    mx.nd.sparse.row_sparse_array(
        (values, indices), shape=gradient.shape, ctx=gradient.context, dtype=gradient.dtype
    ).copyto(gradient)
