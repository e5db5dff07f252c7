"""Sums of sparse tensors: every rank gathers all indices and values, and sums them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed import ReduceOp as TorchOp

from farandole.core.groups.group import CollectiveGroup
from farandole.torch.distributed.tensors import byte_memory, dtype_code, no_autograd, tensors_text

_KIND = 20  # above the numbers of dense collectives


def check_sparse(tensors: Sequence[Any], op: Any) -> None:
    """Raise ValueError for layouts and operations that ``allreduce_sparse`` does not support."""
    if op.op != TorchOp.SUM:
        cure = "divide their sum by the number of ranks, or " if op.op == TorchOp.AVG else ""
        raise ValueError(
            f"all_reduce supports only ReduceOp.SUM for sparse tensors, not {op.op.name}. To fix"
            f" this, {cure}pass tensor.to_dense()"
        )
    for tensor in tensors:
        if tensor.layout is not torch.sparse_coo:
            layout = str(tensor.layout).removeprefix("torch.")
            raise ValueError(
                "all_reduce supports sparse tensors in COO layout only, but one has layout"
                f" {layout}. Pass tensor.to_sparse_coo() or tensor.to_dense()"
            )


def allreduce_sparse(group: CollectiveGroup, tensors: Sequence[Any]) -> None:
    """Sum each COO tensor in place."""
    for tensor in tensors:
        with no_autograd(tensor):
            tensor.copy_(_sum(group, tensor.detach().coalesce()))


def _sum(group: CollectiveGroup, mine: Any) -> Any:
    counts = _gather(group, mine, torch.tensor([mine._nnz()]), [1] * group.size)
    numbers = [int(count) for count in counts]
    indices = _gather(group, mine, mine.indices().t().contiguous(), numbers)
    values = _gather(group, mine, mine.values().contiguous(), numbers)
    whole = torch.cat([part.t() for part in indices], dim=1)
    return torch.sparse_coo_tensor(
        whole, torch.cat(values), mine.shape, check_invariants=False
    ).coalesce()


def _gather(group: CollectiveGroup, mine: Any, rows: Any, counts: Sequence[int]) -> list[Any]:
    parts = [torch.empty((count, *rows.shape[1:]), dtype=rows.dtype) for count in counts]
    arrays, given = [byte_memory(part).array for part in parts], byte_memory(rows)
    given.refresh()
    wants = (_KIND, dtype_code(rows.dtype), *mine.shape, *counts, *rows.shape[1:])
    group.collectives.allgather(
        given.array, arrays, wants, lambda: f"all_reduce of sparse {tensors_text([mine])}"
    )
    return parts
