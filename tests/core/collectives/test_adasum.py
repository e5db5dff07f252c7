"""Adasum against its definition: vectors combined in pairs, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from farandole.base.types import Buffer, DType
from farandole.core.collectives import adasum
from farandole.core.kernels import narrow_into, widen
from tests import pool

FLOATS = [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64]


def pair(one: Any, two: Any) -> Any:
    both, a, b = one @ two, one @ one, two @ two
    return (1 - both / (2 * a) if a else 1.0) * one + (1 - both / (2 * b) if b else 1.0) * two


def tree(vectors: list[Any]) -> Any:
    vectors = list(vectors)
    power = 1 << (len(vectors).bit_length() - 1)
    for extra in range(power, len(vectors)):
        vectors[extra - power] = pair(vectors[extra - power], vectors[extra])
    vectors = vectors[:power]
    while len(vectors) > 1:
        vectors = [pair(one, two) for one, two in zip(vectors[::2], vectors[1::2], strict=True)]
    return vectors[0]


def stored(values: Any, dtype: DType) -> Any:
    if not dtype.is_half:
        return values.astype(dtype.storage)
    out = np.empty(values.shape, dtype.storage)
    narrow_into(out.reshape(-1), values.astype(np.float32).reshape(-1), dtype)
    return out


def wide(array: Any, dtype: DType) -> Any:
    return (widen(array, dtype) if dtype.is_half else array).astype(np.float64)


def inputs(n: int, length: int, dtype: DType) -> Any:
    return stored(np.random.default_rng([n, length]).normal(size=(n, length)), dtype)


@pytest.mark.parametrize("wire", ["shm", "tcp"])
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_every_type_and_number_of_ranks(n: int, dtype: DType, wire: str) -> None:
    lengths = [0, 1, 7, 1000, 70001]

    def body(transport: Any) -> list[Any]:
        given = [inputs(n, length, dtype)[transport.rank].copy() for length in lengths]
        outs = [np.empty_like(array) for array in given]
        adasum.allreduce(
            transport, [Buffer(a, b, dtype) for a, b in zip(given, outs, strict=True)], 2.0
        )
        for length, array in zip(lengths, given, strict=True):
            assert np.array_equal(array, inputs(n, length, dtype)[transport.rank]), (
                "what is read is not written"
            )
        one = given[3]
        adasum.allreduce(transport, [Buffer(one, one, dtype)])
        return [*outs, one]

    results = pool.procs(n, body, wire=wire)
    tolerance = {
        DType.FLOAT16: 2e-3,
        DType.BFLOAT16: 2e-2,
        DType.FLOAT32: 1e-6,
        DType.FLOAT64: 1e-12,
    }[dtype]
    for index, length in enumerate([*lengths, 1000]):
        wanted = tree(list(wide(inputs(n, length, dtype).reshape(-1), dtype).reshape(n, length)))
        factor = 2.0 if index < len(lengths) else 1.0
        for result in results:
            assert np.array_equal(result[index].view(np.uint8), results[0][index].view(np.uint8)), (
                "the same bits"
            )
            np.testing.assert_allclose(
                wide(result[index], dtype), factor * wanted, rtol=tolerance, atol=tolerance
            )


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_adasum_counts_equal_once_and_adds_orthogonal_vectors(n: int) -> None:
    same = np.ones((n, n)) * 7.0
    np.testing.assert_allclose(sum(adasum.weights(same)), 1.0)
    np.testing.assert_allclose(adasum.weights(np.diag(np.arange(1.0, n + 1))), np.ones(n))


def test_zeros_and_opposites_change_nothing_else() -> None:
    a, zero, c = np.array([3.0, 4.0]), np.zeros(2), np.array([1.0, -2.0])
    for vectors in (
        [a, zero],
        [zero, a],
        [zero, zero],
        [a, -a, c, zero],
        [a, -a, zero, c],
        [zero, zero, a, c],
    ):
        products = np.array([[one @ two for two in vectors] for one in vectors])
        found = sum(
            weight * vector
            for weight, vector in zip(adasum.weights(products), vectors, strict=True)
        )
        np.testing.assert_allclose(found, tree(vectors), atol=1e-12)


def test_vectors_that_cancel_but_for_rounding_do_not_explode() -> None:
    generator = np.random.default_rng(1)
    a, c = generator.normal(size=1000), generator.normal(size=1000)
    vectors = [a, -a * (1 + 1e-16), c, c * 0.5]
    products = np.array([[one @ two for two in vectors] for one in vectors])
    weights = adasum.weights(products)
    assert max(map(abs, weights)) < 3, weights
    found = sum(weight * vector for weight, vector in zip(weights, vectors, strict=True))
    np.testing.assert_allclose(found, pair(c, c * 0.5), rtol=1e-9)


def test_adasum_spreads_nan_to_all_ranks() -> None:
    def body(transport: Any) -> Any:
        mine = np.ones(3, np.float32) * (np.nan if transport.rank == 1 else 1)
        adasum.allreduce(transport, [Buffer(mine, mine, DType.FLOAT32)])
        return mine

    assert all(np.isnan(each).all() for each in pool.procs(2, body, wire="shm"))
