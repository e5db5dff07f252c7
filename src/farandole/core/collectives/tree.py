"""Broadcast and barrier.

Small data are sent down a binomial tree in ``log2(size)`` steps: Thakur, Rabenseifner and Gropp,
"Optimization of collective communication operations in MPICH", IJHPCA 19 (2005). Large data are
sent along a chain in chunks, so that each rank sends each byte once: Patarasuk, Faraj and Yuan,
"Pipelined broadcast on Ethernet switched clusters", IPDPS 2006. The barrier is the dissemination
barrier of Hensgen, Finkel and Manber, IJPP 17 (1988).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from farandole.base.contracts import Link
    from farandole.base.types import Array

CHUNK = 1 << 18


def broadcast(link: Link, data: Array, root: int) -> None:
    """Copy ``root``'s ``data`` (uint8) to every rank, down a binomial tree."""
    size = link.size
    place = (link.rank - root) % size  # position in the tree; the root has position 0
    bit = 1
    while bit < size:
        if place & bit:
            link.sendrecv(None, 0, data, (place - bit + root) % size)
            break
        bit <<= 1
    bit >>= 1
    while bit:
        if place + bit < size:
            link.sendrecv(data, (place + bit + root) % size, None, 0)
        bit >>= 1


def pipelined_broadcast(link: Link, data: Array, root: int) -> None:
    """Copy ``root``'s ``data`` (uint8) to every rank, along a chain that starts at ``root``.

    Each rank forwards one chunk while it receives the next.
    """
    size = link.size
    place = (link.rank - root) % size
    left, right = (link.rank - 1) % size, (link.rank + 1) % size
    passes_on = place < size - 1
    held: Array | None = None
    for lo in range(0, len(data), CHUNK):
        chunk = data[lo : lo + CHUNK]
        if place == 0:
            link.sendrecv(chunk, right, None, left)
        else:
            link.sendrecv(held if passes_on else None, right, chunk, left)
            held = chunk
    if place > 0 and passes_on and held is not None:
        link.sendrecv(held, right, None, left)


def barrier(link: Link) -> None:
    """Wait until all ranks have reached the barrier."""
    token, seen = np.zeros(1, np.uint8), np.zeros(1, np.uint8)
    step = 1
    while step < link.size:
        link.sendrecv(token, (link.rank + step) % link.size, seen, (link.rank - step) % link.size)
        step <<= 1
