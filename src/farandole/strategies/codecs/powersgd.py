"""``powersgd:rank``: each gradient matrix is projected onto the few directions that contain most of
its norm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

import numpy as np

from farandole.base.contracts import Part, Transport
from farandole.base.types import DType
from farandole.strategies.codecs.base import number
from farandole.strategies.codecs.pushable import Pushable, check_length

if TYPE_CHECKING:
    from farandole.base.types import Array

_SHORT = 1 << 14  # shorter vectors (biases, scales) are sent uncompressed
# A direction shorter than this fraction of the longest depends linearly on the others.
_DEPENDENT = 1e-10
_SEED = 0x9D


class _Matrix(NamedTuple):
    """``values``: a 2-D view of ``flat[begin : begin + values.size]``."""

    key: str
    begin: int
    values: Array

    def of(self, flat: Array) -> Array:
        place: Array = flat[self.begin : self.begin + self.values.size].reshape(self.values.shape)
        return place


class PowerSgd(Pushable):
    """PowerSGD (Vogels et al. 2019): one step of a power iteration that starts from the last result
    (``q/<key>``).

    A tensor is a matrix of its first dimension by all others. A long vector, such as a flat buffer
    of many tensors, is treated as a nearly square matrix, which compresses less well. Tensors that
    would not become smaller are sent uncompressed.
    """

    name = "powersgd"

    def __init__(self, rank: str | int = "2") -> None:
        super().__init__(str(rank))
        self._rank: int = number(self.name, rank, int, "the rank, a whole number", 0)

    def add_up(self, values: Array, parts: Sequence[Part], transport: Transport) -> Array:
        matrices = self._matrices(values, parts)
        whole = _outside(values, matrices)
        lefts = [self._start(matrix) @ matrix.values.T for matrix in matrices]
        lefts, rest = self._summed(lefts, values[whole], transport)
        bases = self._orthogonal(lefts, transport)
        rights = [basis @ matrix.values for basis, matrix in zip(bases, matrices, strict=True)]
        values[whole] = 0
        for matrix, basis, right in zip(matrices, bases, rights, strict=True):
            matrix.values[:] -= basis.T @ right
        rights, _ = self._summed(rights, values[:0], transport)
        total = np.empty_like(values)
        total[whole] = rest
        for matrix, basis, right in zip(matrices, bases, rights, strict=True):
            _product(basis.T, right, matrix.of(total))
            self.keep("q", matrix.key, _next_start(right, matrix.key).reshape(-1))
        return total

    def consensus_step(self, shapes: Sequence[tuple[int, ...]]) -> float:
        """See ``contracts.Consensus``. In a matrix without structure, ``rank`` directions contain a
        fraction of about ``rank`` divided by the length of the shorter side.
        """
        sides = [_sides(shape, math.prod(shape)) for shape in shapes]
        shorter = [
            min(rows, columns)
            for rows, columns in sides
            if (rows + columns) * self._rank < rows * columns
        ]
        return min(self.gamma, self._rank / max(shorter, default=1))

    def payload(self, values: Array, parts: Sequence[Part], rank: int) -> Array:
        """Return the number of matrices, their offsets and sides, two factors of each, and the
        remaining values.
        """
        matrices = self._matrices(values, parts)
        whole = _outside(values, matrices)
        table = [side for matrix in matrices for side in (matrix.begin, *matrix.values.shape)]
        sent = [np.array([len(matrices), *table], np.int64)]
        for matrix in matrices:
            left = self._start(matrix) @ matrix.values.T
            basis, nearly = np.empty_like(left), np.empty_like(matrix.values)
            _product(_coefficients(left).astype(left.dtype), left, basis)
            right = basis @ matrix.values
            _product(basis.T, right, nearly)  # as the server does
            matrix.values[:] -= nearly
            self.keep("q", matrix.key, _next_start(right, matrix.key).reshape(-1))
            sent += [basis, right]
        sent.append(values[whole])
        values[whole] = 0
        return np.concatenate([array.reshape(-1).view(np.uint8) for array in sent])

    def unpack(self, payload: Array, out: Array) -> None:
        """See ``contracts.PushCodec``."""
        count = int(payload[:8].view(np.int64)[0])
        table = payload[8 : 8 + 24 * count].view(np.int64).reshape(count, 3)
        numbers = payload[8 + 24 * count :].view(out.dtype)
        matrices = []
        for begin, rows, columns in table.tolist():
            if min(begin, rows - 1, columns - 1) < 0 or begin + rows * columns > len(out):
                raise ValueError(f"a matrix of {rows} x {columns} numbers at {begin} of {len(out)}")
            matrices.append(
                _Matrix("", begin, out[begin : begin + rows * columns].reshape(rows, columns))
            )
        whole = _outside(out, matrices)
        factors = self._rank * sum(sum(matrix.values.shape) for matrix in matrices)
        wanted = 8 + 24 * len(matrices) + out.itemsize * (factors + np.count_nonzero(whole))
        check_length(payload, int(wanted))
        for matrix in matrices:
            basis, numbers = _first_rows(numbers, self._rank, len(matrix.values))
            right, numbers = _first_rows(numbers, self._rank, matrix.values.shape[1])
            _product(basis.T, right, matrix.values)
        out[whole] = numbers

    def _matrices(self, values: Array, parts: Sequence[Part]) -> list[_Matrix]:
        """Return the compressible parts as matrices."""
        found, begin = [], 0
        for part in parts:
            count = len(part.buffer.data)
            rows, columns = _sides(part.shape, count)
            if (rows + columns) * self._rank < rows * columns:
                flat = values[begin : begin + rows * columns]
                found.append(_Matrix(part.key, begin, flat.reshape(rows, columns)))
            begin += count
        return found

    def _start(self, matrix: _Matrix) -> Array:
        """Return the start directions of the columns: the result of the last step, or random
        directions that are the same on all ranks.
        """
        columns = matrix.values.shape[1]
        old = self.kept("q", matrix.key, self._rank * columns, matrix.values.dtype).reshape(
            self._rank, columns
        )
        return old if old.any() else _next_start(old, matrix.key)

    def _summed(
        self, factors: Sequence[Array], rest: Array, transport: Transport
    ) -> tuple[list[Array], Array]:
        """Return the sums over all ranks, sent in one message."""
        flat = np.concatenate([*(factor.reshape(-1) for factor in factors), rest])
        self.sum_of(flat, DType(rest.dtype.name), transport)
        summed, begin = [], 0
        for factor in factors:
            summed.append(flat[begin : begin + factor.size].reshape(factor.shape))
            begin += factor.size
        return summed, flat[begin:]

    def _orthogonal(self, lefts: Sequence[Array], transport: Transport) -> list[Array]:
        """Return orthonormal rows with the same span as the rows of ``lefts``; zeros for linearly
        dependent rows.

        Rank 0 computes the coefficients for all ranks: different processors may differ in the last
        bit of a dot product, and the ranks' weights would drift apart. All later operations give
        identical bits on all processors.
        """
        rank = self._rank
        coefficients = np.empty((len(lefts), rank, rank), np.float64)
        if transport.rank == 0:
            for place, left in enumerate(lefts):
                coefficients[place] = _coefficients(left)
            self.sent += coefficients.nbytes * (transport.size - 1)
        transport.broadcast(coefficients.reshape(-1).view(np.uint8), 0)
        bases = []
        for left, of_left in zip(lefts, coefficients, strict=True):
            basis = np.empty_like(left)
            _product(of_left.astype(left.dtype), left, basis)
            bases.append(basis)
        return bases


def _outside(values: Array, matrices: Sequence[_Matrix]) -> Array:
    """Return a mask of the ``values`` outside of all matrices."""
    whole = np.ones(len(values), np.bool_)
    for matrix in matrices:
        matrix.of(whole)[:] = False
    return whole


def _first_rows(numbers: Array, rows: int, columns: int) -> tuple[Array, Array]:
    """Return a matrix of the first ``numbers``, and the remaining numbers."""
    return numbers[: rows * columns].reshape(rows, columns), numbers[rows * columns :]


def _sides(shape: tuple[int, ...], count: int) -> tuple[int, int]:
    """Return rows and columns of a tensor as a matrix. A long vector gets sides with a small
    remainder.
    """
    if len(shape) > 1 and count:
        return shape[0], count // shape[0]
    if count < _SHORT:
        return 1, count
    rows = math.isqrt(count)
    return rows, count // rows


def _coefficients(left: Array) -> Array:
    """Return the coefficients of orthonormal rows as combinations of the rows of ``left``."""
    wide = left.astype(np.float64)
    lengths = np.sqrt((wide * wide).sum(axis=1))
    if not np.isfinite(lengths).all():
        return np.full((len(left), len(left)), np.nan)
    inverse = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    wide *= inverse[:, None]
    sizes, vectors = np.linalg.eigh(wide @ wide.T)
    kept = sizes > _DEPENDENT * max(sizes.max(), 0)
    factors = np.divide(1.0, np.sqrt(np.maximum(sizes, 0)), out=np.zeros_like(sizes), where=kept)
    found: Array = factors[:, None] * vectors.T * inverse
    return found


def _product(left: Array, right: Array, out: Array) -> None:
    """Compute ``out = left @ right``, for few columns of ``left``.

    It uses elementwise multiplications and additions only, which give identical bits on every
    processor.
    """
    scratch = np.empty_like(out)
    for column, row in enumerate(right):
        np.multiply(left[:, column, None], row, out=scratch if column else out)
        if column:
            out += scratch


def _next_start(right: Array, key: str) -> Array:
    """Return ``right`` with rows of length 1. Rows that are zero or not finite are drawn again."""
    lengths: Array = np.sqrt((right * right).sum(axis=1, keepdims=True))
    good: Array = np.isfinite(lengths) & (lengths > 0)
    start: Array = np.divide(right, lengths, where=good, out=np.zeros_like(right))
    if not good.all():
        generator = np.random.default_rng([_SEED, crc32(key.encode()), right.shape[1]])
        drawn = generator.standard_normal((len(right), right.shape[1]))
        start[~good[:, 0]] = drawn[~good[:, 0]]
    return start
