"""Sums of sparse tensors: all ranks gather all indices and values, and add them up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed import ReduceOp as TorchOp

from farandole.groups.group import Group
from farandole.torch.distributed.tensors import apart, code, raw, shown

_KIND = 20  # beyond the numbers of dense collectives


def allreduce_sparse(group: Group, tensors: Sequence[Any], op: Any) -> None:
    """Sum each tensor (COO), in its place. Raises ValueError for other layouts and operations."""
    if op.op != TorchOp.SUM or any(tensor.layout is not torch.sparse_coo for tensor in tensors):
        raise ValueError(f"sparse tensors can be summed, in COO layout alone; asked for: {op.op.name}")
    for tensor in tensors:
        with apart(tensor):
            tensor.copy_(_sum(group, tensor.detach().coalesce()))


def _sum(group: Group, mine: Any) -> Any:
    counts = _gather(group, mine, torch.tensor([mine._nnz()]), [1] * group.size)
    numbers = [int(count) for count in counts]
    indices = _gather(group, mine, mine.indices().t().contiguous(), numbers)
    values = _gather(group, mine, mine.values().contiguous(), numbers)
    whole = torch.cat([part.t() for part in indices], dim=1)
    return torch.sparse_coo_tensor(whole, torch.cat(values), mine.shape, check_invariants=False).coalesce()


def _gather(group: Group, mine: Any, rows: Any, counts: Sequence[int]) -> list[Any]:
    parts = [torch.empty((count, *rows.shape[1:]), dtype=rows.dtype) for count in counts]
    arrays, given = [raw(part).array for part in parts], raw(rows)
    given.refresh()
    wants = (_KIND, code(rows.dtype), *mine.shape, *counts, *rows.shape[1:])
    group.collectives.allgather(given.array, arrays, wants, lambda: f"all_reduce of sparse {shown([mine])}")
    return parts
