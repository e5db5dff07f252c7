"""Ranges of dtypes for every pair of dtypes, compared with Python's numbers."""

from __future__ import annotations

import itertools
import math
import warnings

import numpy as np
import pytest

from farandole.data.parquet.numeric_cast import bounds, cast, is_number, rule

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "float32", "float64"]
EDGES = [
    0,
    1,
    -1,
    2,
    127,
    128,
    255,
    256,
    *(
        sign * (2**power + more)
        for power in (15, 16, 31, 32, 63, 64)
        for sign in (1, -1)
        for more in (-1, 0, 1)
    ),
]


def values(dtype: str) -> np.ndarray:
    """Return numbers near the limits of all dtypes, as far as ``dtype`` represents them."""
    if dtype == "bool":
        return np.array([False, True])
    if dtype in INTEGERS:
        least, most = bounds(dtype)
        return np.array([edge for edge in EDGES if least <= edge <= most], dtype)
    with np.errstate(over="ignore"):
        return np.array(
            [*EDGES, 0.5, -0.5, 1.7, 7e4, 1e300, -1e300, math.inf, -math.inf, math.nan]
        ).astype(dtype)


def held(value: np.generic, dtype: str) -> bool:
    """Return whether the dtype represents the value, by Python's exact numbers."""
    number = value.item()
    if dtype in FLOATS:
        with np.errstate(over="ignore"):
            return not math.isfinite(number) or math.isfinite(np.array(number).astype(dtype))
    least, most = bounds(dtype)
    return math.isfinite(number) and int(number) == number and least <= int(number) <= most


@pytest.mark.parametrize("source", ["bool", *INTEGERS, *FLOATS])
def test_every_pair_of_dtypes(source: str) -> None:
    found = values(source)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for dtype in ["bool", *INTEGERS, *FLOATS]:
            fits = [held(value, dtype) for value in found]
            made, place = cast(found, dtype)
            assert place == (fits.index(False) if not all(fits) else -1), (dtype, found[place])
            good = found[np.array(fits)]
            made, place = cast(good, dtype)
            assert (place, made.dtype) == (-1, dtype)
            expected = good.astype(dtype)
            np.testing.assert_array_equal(made, expected)
            if dtype in INTEGERS:
                assert made.tolist() == [int(value) for value in good.tolist()]


def test_unchanged_values_are_not_copied() -> None:
    found = np.arange(3.0)
    assert cast(found, "float64")[0] is found
    assert cast(found[:0], "int8")[0].dtype == np.int8
    assert cast(np.array([1j]), "float64")[1] == 0


def test_numeric_dtypes_and_their_ranges() -> None:
    assert [
        is_number(dtype) for dtype in ("bool", "int8", "float16", "U5", "O", "M8[s]", "V4")
    ] == [True] * 3 + [False] * 4
    assert [rule(dtype) for dtype in ("bool", "int8", "float32")] == [
        "bool holds whole numbers from 0 to 1",
        "int8 holds whole numbers from -128 to 127",
        "float32 holds finite numbers up to 3.4e+38",
    ]
    for wide, narrow in itertools.product(FLOATS, ["int8"]):
        many = np.arange(-128, 128, dtype=wide)
        assert cast(many, narrow)[0].tolist() == list(range(-128, 128))
