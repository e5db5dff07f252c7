"""Recursive doubling: in step i a rank exchanges its partial result with the rank whose number
differs in bit i.

This takes ``log2(size)`` latencies, and suits small messages between many ranks: Thakur,
Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19
(2005). If the number of ranks is not a power of two, the surplus ranks first send their elements to
a partner, which returns the result.

Both ranks of a pair combine the same two partial results in the same order, so the results are
bitwise identical.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from farandole.base.types import DType, ReduceOp
from farandole.core import kernels
from farandole.core.collectives.flat import Flat, Scratch

if TYPE_CHECKING:
    from farandole.base.contracts import Link
    from farandole.base.types import Array


def allreduce(
    link: Link, data: Flat, out: Flat, scratch: Scratch, dtype: DType, op: ReduceOp, scale: float
) -> None:
    """Reduce ``data`` into ``out`` (which may be the same memory) on all ranks."""
    rank, kind = link.rank, kernels.accumulator(dtype, scale)
    pairs = 1 << (link.size.bit_length() - 1)
    extra = link.size - pairs
    mine, theirs = (scratch.take(name, data.size, kind) for name in ("mine", "theirs"))
    mine[:] = kernels.opened(data.read(0, data.size), dtype, scale)
    view = out.view(0, out.size)
    result = scratch.take("result", out.size, out.dtype) if view is None else view
    if rank >= pairs:
        link.sendrecv(mine.view(np.uint8), rank - pairs, None, rank - pairs)
        link.sendrecv(None, rank - pairs, result.view(np.uint8), rank - pairs)
    else:
        if rank < extra:
            _combine(link, mine, theirs, rank + pairs, op, exchange=False)
        bit = 1
        while bit < pairs:
            _combine(link, mine, theirs, rank ^ bit, op, exchange=True)
            bit <<= 1
        kernels.close_into(result, mine, dtype, scale)
        if rank < extra:
            link.sendrecv(result.view(np.uint8), rank + pairs, None, rank + pairs)
    if view is None:
        out.write(0, result)


def _combine(
    link: Link, mine: Array, theirs: Array, peer: int, op: ReduceOp, *, exchange: bool
) -> None:
    """Receive the partial result of ``peer``, in exchange for this rank's if ``exchange``, and
    combine the two.
    """
    link.sendrecv(mine.view(np.uint8) if exchange else None, peer, theirs.view(np.uint8), peer)
    left, right = (mine, theirs) if link.rank < peer else (theirs, mine)
    kernels.combine_into(mine, left, right, op)
