"""Columns as the inputs of a model that has names and dtypes for them."""

from __future__ import annotations

import numpy as np
import pytest

from farandole.errors import DataError
from farandole.inference.input_names import cast, named
from farandole.inference.isolate import BatchError
from tests.kits.messages import mentioning

X, Y = np.ones(2), np.zeros(2)


def test_inputs_without_an_order_are_found_by_their_names() -> None:
    found = named({"b": X, "a": Y}, ["a", "b"], "the model", ordered=False)
    assert (found["a"] is Y, found["b"] is X) == (True, True)
    assert named({"x": X}, ["a"], "the model", ordered=False)["a"] is X
    assert named({"x": X, "y": Y}, ["a", "b"], "the model", ordered=True)["b"] is Y
    with pytest.raises(BatchError, match=mentioning("a, b", "x, y")):
        named({"x": X, "y": Y}, ["a", "b"], "the model", ordered=False)


def test_a_column_never_takes_the_place_of_another_input() -> None:
    for columns in ({"b": X, "c": Y}, {"c": X, "a": Y}):
        with pytest.raises(
            BatchError,
            match=mentioning("a, b", "order"),
        ):
            named(columns, ["a", "b"], "the model", ordered=True)
    assert named({"a": X, "c": Y}, ["a", "b"], "the model", ordered=True)["b"] is Y


def test_numbers_are_cast_only_to_dtypes_that_hold_them() -> None:
    assert cast("a", np.array([1.5]), "float32").tolist() == [1.5]
    assert cast("a", np.array([1.0, 2.0]), "int64").tolist() == [1, 2]
    assert cast("a", np.array([0, 1]), "bool").tolist() == [False, True]
    for array, dtype in (
        ([1.5], "int64"),
        ([300], "uint8"),
        ([2**40], "int32"),
        ([np.nan], "int64"),
        ([2], "bool"),
    ):
        with pytest.raises(DataError, match=mentioning("'a'")):
            cast("a", np.array(array), dtype)
