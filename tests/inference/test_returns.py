"""Types as Spark writes them, and a model's arrays as Arrow's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from farandole.errors import DataError, SettingsError
from farandole.inference.returns import ShapeError, Type, arrow_type, of, parse, to_arrow
from tests.kits.messages import mentioning


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("float", "float"),
        ("LONG", "bigint"),
        ("array<array<double>>", "array<array<double>>"),
        ("string", "string"),
        ("struct<a:int,b:array<float>>", "struct<`a`:int,`b`:array<float>>"),
        ("a int, `b c` array<float>", "struct<`a`:int,`b c`:array<float>>"),
        ("label: int", "struct<`label`:int>"),
    ],
)
def test_types_are_read_as_spark_writes_them(text: str, same: str) -> None:
    assert str(parse(text)) == same
    assert parse(same) == parse(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("array<flaot>", "'float'"),
        ("array<float", "incomplete"),
        ("float>", "follows"),
        ("date", "'date'"),
        ("array<decimal(10, 3)>", "'decimal(10, 3)'"),
        ("a#int", "'#int'"),
        ("struct<a:int b:int>", "','"),
    ],
)
def test_unknown_return_types_are_refused(text: str, why: str) -> None:
    with pytest.raises(SettingsError, match=mentioning(why)):
        parse(text)


def test_the_type_of_an_array() -> None:
    kinds = [
        of((), "float32"),
        of((1,), "int64"),
        of((10,), "float16"),
        of((2, 3), "uint8"),
        of((), "bool"),
        of((), "<U3"),
    ]
    assert [str(kind) for kind in kinds] == [
        "float",
        "bigint",
        "array<float>",
        "array<array<smallint>>",
        "boolean",
        "string",
    ]


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        (np.array([1.5, 2.5], np.float32), "float"),
        (np.array([[1.5], [2.5]]), "float"),
        (np.array([3, 4]), "int"),
        (np.arange(6.0).reshape(2, 3), "array<double>"),
        (np.arange(12).reshape(2, 3, 2), "array<array<bigint>>"),
        (np.arange(2.0).reshape(2, 1), "array<double>"),
        (["a", "b"], "string"),
        (np.array(["a", "b"]), "string"),
        (np.array([np.inf, 1]), "float"),
        ([[1.0], [1.0, 2.0]], "array<float>"),
        (np.array([True, False]), "boolean"),
        ({"scores": np.ones(2)}, "double"),
    ],
)
def test_arrays_become_columns(output: Any, kind: str) -> None:
    found = to_arrow(output, parse(kind), 2)
    assert found.type == arrow_type(parse(kind))
    output = next(iter(output.values())) if isinstance(output, dict) else output
    expected = np.squeeze(output, -1) if kind in ("float",) and np.ndim(output) == 2 else output
    assert found.to_pylist() == (
        expected.tolist() if isinstance(expected, np.ndarray) else expected
    )


def test_masked_values_are_null() -> None:
    found = np.ma.array([[1, 2], [3, 4]], mask=[[False, True], [False, False]])
    assert to_arrow(found, parse("array<int>"), 2).to_pylist() == [[1, None], [3, 4]]
    assert to_arrow(found[0], parse("bigint"), 2).to_pylist() == [1, None]
    assert to_arrow(found[1], parse("bigint"), 2).to_pylist() == [3, 4]


def test_several_outputs_become_a_struct() -> None:
    kind = parse("label int, scores array<float>")
    parts = {"scores": np.ones((2, 2), np.float32), "label": np.array([4, 5])}
    expected = [{"label": 4, "scores": [1, 1]}, {"label": 5, "scores": [1, 1]}]
    assert to_arrow(parts, kind, 2).to_pylist() == expected
    assert to_arrow((parts["label"], parts["scores"]), kind, 2).to_pylist() == expected


@pytest.mark.parametrize(
    ("output", "kind", "why"),
    [
        (np.ones((3, 2)), "array<float>", ("3 rows", "2")),
        (np.ones((2, 3)), "float", "returns='array<double>'"),
        (np.ones(2), "array<float>", "returns='double'"),
        (np.array([1.5, 2.0]), "int", "returns='double'"),
        (np.array([1, 300]), "tinyint", ("300", "int64")),
        (np.array([1, 1e39]), "float", "1e+39"),
        (np.array([[1], [2**24 + 1]]), "array<float>", ("16777217", "int64", "'bigint'")),
        (np.array([2**53 + 1, 0]), "double", "9007199254740993"),
        (np.float32(1), "float", "each row"),
        (np.broadcast_to(np.int8(1), (2, 2**30)), "array<tinyint>", (str(2**31), "batch_size")),
        ((np.ones(2), np.ones(2)), "float", "2 arrays"),
        (np.ones(2), "a float, b float", "one ndarray"),
        ({"x": np.ones(2)}, "a float, b float", "'a'"),
        (["a", 1], "string", "'string'"),
    ],
)
def test_outputs_that_do_not_fit_the_type_are_refused(output: Any, kind: str, why: str) -> None:
    with pytest.raises(DataError, match=mentioning(why)):
        to_arrow(output, parse(kind), 2)


def test_columns_stay_when_the_model_uses_its_buffer_again() -> None:
    output = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = to_arrow(output, Type("array", items=Type("number", "float32")), 2)
    output[:] = 9
    assert found.to_pylist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        ([[4.0, 5.0]], "scores array<double>"),
        ([np.array([4.0, 5.0])], "scores array<double>"),
        ([np.array([[4.0, 5.0]])], "scores array<double>"),
        ([[[4.0, 5.0]]], "scores array<double>"),
        (["abc"], "name string"),
        ([7], "label int"),
        ([np.array([7])], "label int"),
        ((np.array([7]),), "label int"),
    ],
)
def test_the_value_of_one_row_is_not_taken_for_a_field(output: Any, kind: str) -> None:
    (row,) = to_arrow(output, parse(kind), 1).to_pylist()
    assert list(row.values())[0] in ([4.0, 5.0], "abc", 7)  # noqa: RUF015


def test_a_column_of_one_text_per_row_and_a_number_for_all_rows() -> None:
    found = to_arrow(np.array([[b"a"], [b"b"]], object), parse("string"), 2)
    assert found.to_pylist() == ["a", "b"]
    with pytest.raises(ShapeError, match=mentioning("row")):
        to_arrow({"sum": np.float32(3)}, parse("float"), 2)
