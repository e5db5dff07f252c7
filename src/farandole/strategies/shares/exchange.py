"""The exchange of partial sums: every rank receives the sum over all shares, in the order of the
tree.

Vectors are cut into one slice per rank. A rank sends the owner of each slice this slice of each of
its nodes; the owner completes the tree and sends the sum to all ranks. If each rank's block is one
node, this moves as many bytes as a ring allreduce; each further node of a rank adds half an
allreduce on that rank.

Everything is sent as bytes: the vectors of all dtypes in one message to each rank, with a header
that shows whether the ranks are in the same step of the same model. Slices begin at multiples of
``ALIGNMENT`` bytes, so that parts of messages can be used as vectors without a copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from farandole.core.kernels import shares as cut
from farandole.errors import HorovodInternalError
from farandole.strategies.shares.blocks import block
from farandole.strategies.shares.tree import Node, TreeSum, nodes

ALIGNMENT = 16  # bytes


class Vectors(Protocol):
    """Operations on a framework's vectors (one dimension, contiguous). Vectors of bytes are
    uint8.
    """

    def add(self, left: Any, right: Any) -> Any:
        """Return the sum, which may be in the memory of ``left``."""

    def as_bytes(self, vector: Any) -> Any:
        """Return a view of the memory as bytes."""

    def as_values(self, data: Any, like: Any) -> Any:
        """Return a view of bytes with the dtype of ``like``."""

    def concatenate(self, parts: Sequence[Any]) -> Any:
        """Return byte vectors as one vector."""

    def numbers(self, values: Sequence[int]) -> Any:
        """Return integers below 2^63 as bytes, 8 for each."""

    def read_numbers(self, data: Any) -> list[int]:
        """Return the integers in bytes."""

    def alltoall(self, data: Any, sizes: Sequence[int]) -> Any:
        """Send the first ``sizes[0]`` bytes to rank 0 and so on, and return the received bytes in
        the order of the ranks.
        """

    def allgather(self, data: Any) -> Any:
        """Return the bytes of all ranks in their order."""


class StepPlace(NamedTuple):
    """The step of one rank: its rank, the number of ranks and of shares, the number of the step and
    a digest of the model. The last three are the same on all ranks.
    """

    rank: int
    size: int
    total: int
    step: int
    digest: int


def completed(
    parts: Mapping[Node, Sequence[Any]], from_first: Any, place: StepPlace, vectors: Vectors
) -> tuple[list[Any], Any]:
    """Return the sums over all shares, in place of this rank's partial sums, and rank 0's
    ``from_first``. Collective.

    ``parts``: the vectors of each node of this rank's block. ``from_first``: bytes, the same number
    on all ranks. The number of bytes of each is a multiple of ``ALIGNMENT``. Raises
    HorovodInternalError if the ranks are in different steps.
    """
    own = [node for node, _ in sorted(parts.items(), key=lambda part: part[0].first)]
    if place.size == 1:
        return list(parts[own[0]]), from_first
    shapes = parts[own[0]]
    bounds = [_bounds(vector, place.size, vectors) for vector in shapes]
    header = vectors.numbers([place.step, place.digest])
    message, sizes = list[Any](), list[int]()
    for rank in range(place.size):
        found = [header]
        for number, bound in enumerate(bounds):
            found += [
                vectors.as_bytes(parts[node][number][bound[rank] : bound[rank + 1]]) for node in own
            ]
        message += found
        sizes.append(sum(map(len, found)))
    received = vectors.alltoall(vectors.concatenate(message), sizes)
    slices = _summed(_ByteReader(received), shapes, bounds, place, vectors)
    last = from_first if place.rank == 0 else from_first[:0]
    gathered = vectors.allgather(vectors.concatenate([*map(vectors.as_bytes, slices), last]))
    return _gathered(_ByteReader(gathered), shapes, from_first, bounds, vectors)


def _bounds(vector: Any, size: int, vectors: Vectors) -> list[int]:
    """Return the first elements of the ranks' slices, and the end of the last."""
    nbytes = len(vectors.as_bytes(vector))
    unit = ALIGNMENT * len(vector) // nbytes if nbytes else 0
    bounds = [0]
    for units in cut(nbytes // ALIGNMENT, size):
        bounds.append(bounds[-1] + units * unit)
    return bounds


class _ByteReader:
    """Reads a message from the front."""

    def __init__(self, data: Any) -> None:
        self._data, self._begin = data, 0

    def take(self, count: int) -> Any:
        begin, self._begin = self._begin, self._begin + count
        return self._data[begin : self._begin]


def _summed(
    reader: _ByteReader,
    shapes: Sequence[Any],
    bounds: Sequence[Sequence[int]],
    place: StepPlace,
    vectors: Vectors,
) -> list[Any]:
    """Return this rank's slices of the sums, from the message of all ranks."""
    trees: list[TreeSum[Any]] = [TreeSum(place.total, vectors.add) for _ in shapes]
    for rank in range(place.size):
        _check(rank, vectors.read_numbers(reader.take(ALIGNMENT)), place)
        own = block(rank, place.size, place.total)
        found = nodes(range(own.begin, own.end), place.total)
        for tree, like, bound in zip(trees, shapes, bounds, strict=True):
            count = bound[place.rank + 1] - bound[place.rank]
            nbytes = len(vectors.as_bytes(like[:count]))
            for node in found:
                tree.put(node, vectors.as_values(reader.take(nbytes), like))
    return [tree.result() for tree in trees]


def _check(rank: int, header: Sequence[int], place: StepPlace) -> None:
    step, digest = header
    if step != place.step:
        raise HorovodInternalError(
            f"rank {rank} is in step {step} of a fixed global batch, and rank {place.rank} in step"
            f" {place.step}. Train the same epochs on all ranks, and call backward() and step()"
            " once for each batch"
        )
    if digest != place.digest:
        raise HorovodInternalError(
            f"ranks {rank} and {place.rank} exchange gradients of different models. Build the same"
            " model on all ranks"
        )


def _gathered(
    reader: _ByteReader,
    out: Sequence[Any],
    from_first: Any,
    bounds: Sequence[Sequence[int]],
    vectors: Vectors,
) -> tuple[list[Any], Any]:
    """Copy all slices of the sums to ``out``, and return it and rank 0's ``from_first``."""
    first, size = from_first, len(bounds[0]) - 1
    for rank in range(size):
        for vector, bound in zip(out, bounds, strict=True):
            part = vector[bound[rank] : bound[rank + 1]]
            part[:] = vectors.as_values(reader.take(len(vectors.as_bytes(part))), vector)
        if rank == 0:
            first = reader.take(len(from_first))
    return list(out), first
