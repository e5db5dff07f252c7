"""Sparse allreduce: all ranks receive the elements of all ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from farandole.base.types import ReduceOp
from farandole.core.api.documented import documented
from farandole.core.api.ops import WORLD
from farandole.core.kernels import average_of_halves, halves
from farandole.job import context
from farandole.job.context import ProcessSet
from farandole.torch.functions import gather_rows_async, synchronize


@documented(
    "init",
    "disagree",
    "set",
    "ValueError: op is neither Average nor Sum.",
    tensor="a sparse COO tensor, or a dense one; the same shape on all ranks.",
    op="Average (the default) or Sum.",
    example="total = hvd.sparse_allreduce_async(tensor, op=hvd.Sum)()",
)
def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = ReduceOp.AVERAGE,
    process_set: ProcessSet = WORLD,
) -> Callable[[], torch.Tensor]:
    """Start to sum (or average) sparse COO tensors. Return a function that waits and returns the
    sparse result.

    The result is not coalesced: an index that several ranks have occurs several times (except in
    averages of integers).
    """
    if op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise ValueError(f"op={op!r} is not defined for sparse tensors. Use Average or Sum")
    own = _to_grow(tensor if tensor.is_sparse else tensor.to_sparse())
    parts = [own._indices().t().contiguous(), own._values()]
    handle = gather_rows_async(parts, own.shape, name, process_set)
    size = context.engine(process_set).size

    @functools.cache  # the handle returns its rows once
    def finish() -> Any:
        indices, values = synchronize(handle)
        if op == ReduceOp.AVERAGE:
            if not values.is_floating_point():
                return _average_of_integers(indices.t(), values, own.shape, size)
            values = values / size
        return _to_grow(sparse(indices.t(), values, own.shape))

    return finish


def _to_grow(tensor: Any) -> Any:
    """Copy an empty tensor: torch adds the first rows in its memory, which must not be shared with
    numpy.
    """
    return tensor if tensor._nnz() else tensor.clone()


def _average_of_integers(indices: Any, values: Any, shape: Any, size: int) -> Any:
    """Average integers exactly, from their sum: the quotient of a sum is not the sum of truncated
    quotients.
    """
    high, low = (sparse(indices, half, shape).coalesce() for half in halves(values.long()))
    mean = average_of_halves(high.values(), low.values(), size)
    return sparse(high.indices(), mean.to(values.dtype), shape)


def sparse(indices: Any, values: Any, shape: Any) -> Any:
    """Return a sparse COO tensor of consistent parts, without checking them."""
    return torch.sparse_coo_tensor(indices, values, tuple(shape), check_invariants=False)
