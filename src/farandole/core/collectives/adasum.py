"""Adasum: a sum in which parallel vectors count once and orthogonal vectors are added.

The Adasum of two vectors is ``(1 - ab / 2aa) a + (1 - ab / 2bb) b``, where ab is their dot product.
More vectors are combined in pairs, as a tree: Maleki et al., "Scaling Distributed Training with
Adaptive Summation", MLSys 2021.

For any tree, the result is a weighted sum of the ranks' vectors, and the weights follow from the
dot products of all pairs. Each rank therefore receives one segment of all vectors and computes its
part of these products. An allreduce of the products gives all ranks the same weights. Then each
rank combines its segment once. The algorithm moves as many bytes as a ring, works for any number of
ranks, and rounds once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from farandole.base.contracts import Transport
from farandole.base.types import Buffer, DType, ReduceOp
from farandole.core.kernels import narrow_into, quiet, shares, widen

if TYPE_CHECKING:
    from farandole.base.types import Array

_CHUNK = 1 << 15  # elements converted to float64 at a time
_NOISE = 1e-14  # a square below this fraction of the sum of its terms counts as zero


def allreduce(transport: Transport, buffers: Sequence[Buffer], scale: float = 1.0) -> None:
    """Compute the Adasum of each buffer, times ``scale``.

    All buffers have the same floating point type. All ranks get the same bits.
    """
    size = transport.size
    if not buffers or size == 1:
        for data, out, dtype in buffers:
            _combine(out, [data], [scale], dtype)
        return
    dtype = buffers[0].dtype
    counts = [shares(len(buffer.data), size) for buffer in buffers]
    parts = _deal(transport, buffers, counts)
    products = np.stack([_products(vectors, dtype) for vectors in parts])
    flat = products.reshape(-1)
    transport.allreduce([Buffer(flat, flat, DType.FLOAT64)], ReduceOp.SUM)
    segments = [np.empty(count[transport.rank], dtype.storage) for count in counts]
    for segment, vectors, product in zip(segments, parts, products, strict=True):
        _combine(segment, vectors, [scale * weight for weight in weights(product)], dtype)
    _collect(transport, buffers, counts, segments)


def weights(products: Array) -> list[float]:
    """Return the weight of each vector in the Adasum of all vectors.

    ``products``: the dot products of all pairs. Neighbours are paired first. If the number of
    vectors is not a power of two, the last vectors are first combined with the first ones, so that
    a power of two remains.
    """
    size = len(products)
    vectors = list(np.eye(size))
    power = 1 << (size.bit_length() - 1)
    with quiet():
        for extra in range(power, size):
            vectors[extra - power] = _pair(vectors[extra - power], vectors[extra], products)
        del vectors[power:]
        while len(vectors) > 1:
            vectors = [
                _pair(one, two, products)
                for one, two in zip(vectors[::2], vectors[1::2], strict=True)
            ]
    return [float(weight) for weight in vectors[0]]


def _pair(one: Array, two: Array, products: Array) -> Array:
    both = float(one @ products @ two)
    result: Array = _share(one, both, products) * one + _share(two, both, products) * two
    return result


def _share(vector: Array, both: float, products: Array) -> float:
    square = float(vector @ products @ vector)
    noise = _NOISE * float(np.abs(vector) @ np.sqrt(np.abs(np.diag(products)))) ** 2
    return 1.0 if square <= noise else 1.0 - both / (2.0 * square)


def _products(vectors: Sequence[Array], dtype: DType) -> Array:
    """Return the dot products of all pairs of vectors, in float64."""
    total = np.zeros((len(vectors), len(vectors)))
    with quiet():
        for start in range(0, len(vectors[0]), _CHUNK):
            chunk = np.stack([_wide(vector[start : start + _CHUNK], dtype) for vector in vectors])
            total += chunk @ chunk.T
    return total


def _combine(out: Array, vectors: Sequence[Array], factors: Sequence[float], dtype: DType) -> None:
    with quiet():
        for start in range(0, len(out), _CHUNK):
            stop = start + _CHUNK
            total = factors[0] * _wide(vectors[0][start:stop], dtype)
            for factor, vector in zip(factors[1:], vectors[1:], strict=True):
                total += factor * _wide(vector[start:stop], dtype)
            if dtype.is_half:
                narrow_into(out[start:stop], total.astype(np.float32), dtype)
            else:
                out[start:stop] = total


def _wide(values: Array, dtype: DType) -> Array:
    return (widen(values, dtype) if dtype.is_half else values).astype(np.float64)


def _deal(
    transport: Transport, buffers: Sequence[Buffer], counts: Sequence[Sequence[int]]
) -> list[list[Array]]:
    """Return, for each buffer, the segments of all ranks that this rank combines."""
    size, rank, itemsize = transport.size, transport.rank, buffers[0].dtype.itemsize
    pieces = [
        np.split(data, np.cumsum(count)[:-1])
        for (data, _, _), count in zip(buffers, counts, strict=True)
    ]
    send = np.concatenate([piece[peer] for peer in range(size) for piece in pieces])
    mine = [count[rank] for count in counts]
    receive = np.empty(size * sum(mine), send.dtype)
    sends = [itemsize * sum(count[peer] for count in counts) for peer in range(size)]
    transport.alltoall(
        send.view(np.uint8), sends, receive.view(np.uint8), [itemsize * sum(mine)] * size
    )
    rows = receive.reshape(size, sum(mine))
    ends = np.cumsum(mine)
    return [list(rows[:, end - count : end]) for end, count in zip(ends, mine, strict=True)]


def _collect(
    transport: Transport,
    buffers: Sequence[Buffer],
    counts: Sequence[Sequence[int]],
    segments: Sequence[Array],
) -> None:
    """Gather the combined segments of all ranks."""
    itemsize = buffers[0].dtype.itemsize
    send = np.concatenate(segments)
    receive = np.empty(sum(sum(count) for count in counts), send.dtype)
    totals = [sum(count[peer] for count in counts) for peer in range(transport.size)]
    transport.allgather(
        send.view(np.uint8), receive.view(np.uint8), [itemsize * total for total in totals]
    )
    place = 0
    firsts = [0] * len(buffers)
    for peer in range(transport.size):
        for index, count in enumerate(counts):
            length = count[peer]
            buffers[index].out[firsts[index] : firsts[index] + length] = receive[
                place : place + length
            ]
            firsts[index] += length
            place += length
