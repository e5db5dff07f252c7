"""Direct exchange between all ranks: a single latency, the main cost of small messages.

The exchange is the pairwise exchange of Thakur, Rabenseifner and Gropp, "Optimization of collective
communication operations in MPICH", IJHPCA 19 (2005): in step i a rank sends to ``rank + i`` and
receives from ``rank - i``. Messages that a link accepts without waiting are sent to all ranks
first, so the steps cost a single latency. Every rank reduces in rank order, so the results are
bitwise identical.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from farandole.base.types import DType, ReduceOp
from farandole.core import kernels
from farandole.core.collectives.flat import Flat, Scratch

if TYPE_CHECKING:
    from farandole.base.contracts import Link
    from farandole.base.types import Array


def exchange(link: Link, sends: Sequence[Array], receives: Sequence[Array]) -> None:
    """Send ``sends[i]`` to rank i and receive ``receives[i]`` from rank i (uint8). This rank's own
    part is not copied.
    """
    rank, size = link.rank, link.size
    steps = [((rank + i) % size, (rank - i) % size) for i in range(1, size)]
    if max(len(sends[dst]) for dst, _ in steps) <= link.ahead and size > 2:
        for dst, _ in steps:
            link.sendrecv(sends[dst], dst, None, dst)
        for _, src in steps:
            link.sendrecv(None, src, receives[src], src)
    else:
        for dst, src in steps:
            link.sendrecv(sends[dst], dst, receives[src], src)


def allreduce(
    link: Link, data: Flat, out: Flat, scratch: Scratch, dtype: DType, op: ReduceOp, scale: float
) -> None:
    """Reduce ``data`` into ``out`` (which may be the same memory) on all ranks."""
    mine = data.read(0, data.size)
    parts = [
        mine if rank == link.rank else scratch.take(("part", rank), len(mine), mine.dtype)
        for rank in range(link.size)
    ]
    exchange(link, [mine.view(np.uint8)] * link.size, [part.view(np.uint8) for part in parts])
    target = out.view(0, out.size)
    if target is None or link.rank > 1:  # the kernel may overwrite only its first two parts
        result = scratch.take("sum", len(mine), mine.dtype)
        kernels.reduce_into(result, parts, op, dtype, scale)
        out.write(0, result)
    else:
        kernels.reduce_into(target, parts, op, dtype, scale)


def reducescatter(
    link: Link,
    data: Array,
    out: Array,
    counts: Sequence[int],
    dtype: DType,
    op: ReduceOp,
    scale: float,
) -> None:
    """Reduce ``data`` and write the segment of this rank to ``out`` (which may be its memory in
    ``data``).
    """
    segments = np.split(data, np.cumsum(counts)[:-1])
    parts = [
        segments[rank] if rank == link.rank else np.empty(counts[link.rank], data.dtype)
        for rank in range(link.size)
    ]
    exchange(
        link,
        [segment.view(np.uint8) for segment in segments],
        [part.view(np.uint8) for part in parts],
    )
    if len(out) and link.rank > 1 and np.may_share_memory(out, data):  # see ``allreduce``
        result = np.empty_like(out)
        kernels.reduce_into(result, parts, op, dtype, scale)
        out[:] = result
    elif len(out):
        kernels.reduce_into(out, parts, op, dtype, scale)
