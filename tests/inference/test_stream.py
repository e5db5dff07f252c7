"""Arrow columns to predictions, without Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from farandole.data.parquet.arrays import values
from farandole.data.parquet.columns import ColumnOptions
from farandole.errors import DataError
from farandole.inference.returns import parse
from farandole.inference.stream import PredictOptions, predictions
from tests.kits.messages import mentioning, mentions


class Function:
    """A model that keeps what it was called with."""

    def __init__(self, function: Callable[..., Any], floating: str | None = None) -> None:
        self.function, self.floating = function, floating
        self.calls: list[dict[str, Any]] = []

    def __call__(self, inputs: dict[str, Any]) -> Any:
        self.calls.append(inputs)
        return self.function(*inputs.values())


def how(inputs: Sequence[str], returns: str, batch_size: int = 4, **options: Any) -> PredictOptions:
    column_options = ColumnOptions(*(options.pop(name, {}) for name in ColumnOptions._fields))
    return PredictOptions(tuple(inputs), parse(returns), batch_size, column_options, **options)


def run(chunks: Sequence[Sequence[Any]], model: Function, options: PredictOptions) -> list[Any]:
    found = list(predictions(iter(chunks), model, options, "partition 0"))
    assert all(each.type == options.type for each in found)
    return [value for each in found for value in each.to_pylist()]


def column(*values: Any, kind: Any = None) -> Any:
    return pa.array(list(values), kind)


def test_batches_are_recut_and_numbers_get_the_models_dtype() -> None:
    model = Function(lambda x, n: x.sum(axis=1) * n, floating="float32")
    rows = [([float(row), 1.0], row) for row in range(11)]
    chunks = [
        (column(*(x for x, _ in part)), column(*(n for _, n in part)))
        for part in (rows[:3], rows[3:4], rows[4:])
    ]
    chunks.insert(1, (column(kind=pa.list_(pa.float64())), column(kind=pa.int64())))
    assert run(chunks, model, how(["x", "n"], "float")) == [(row + 1) * row for row in range(11)]
    assert [call["x"].shape for call in model.calls] == [(4, 2), (4, 2), (3, 2)]
    assert (model.calls[0]["x"].dtype, model.calls[0]["n"].dtype) == ("float32", "int64")


def test_few_large_columns_come_out_of_many_small_batches() -> None:
    chunks = [(column(*range(10)),), (column(*range(10)),)]
    found = list(predictions(iter(chunks), Function(lambda x: x), how(["x"], "bigint", 2), ""))
    assert [len(each) for each in found] == [10, 10]


def test_columns_are_converted_once_for_all_batches_of_a_chunk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows: list[int] = []

    def counted(array: Any, *others: Any) -> Any:
        rows.append(len(array))
        return values(array, *others)

    monkeypatch.setattr("farandole.inference.stream.values", counted)
    chunks = [(column(*range(11)),), (column(*range(11, 22)),)]
    model = Function(lambda x: x)
    assert run(chunks, model, how(["x"], "bigint")) == [*range(22)]
    assert rows == [8, 4, 8, 2], "the second batch lies in both chunks"
    assert [len(call["x"]) for call in model.calls] == [4, 4, 4, 4, 4, 2]


def test_columns_of_numbers_are_stacked() -> None:
    model = Function(lambda x: x @ np.array([1.0, 10.0]))
    chunks = [(column(1.0, 2.0), column(3, 4))]
    assert run(chunks, model, how(["a", "b"], "double", stack=True)) == [31, 42]
    with pytest.raises(DataError, match=mentioning("stack=True", "columns")):
        run([(column(1.0), column("a"))], model, how(["a", "b"], "double", stack=True))


def failing(x: Any) -> Any:
    if (x == 5).any():
        raise ArithmeticError("five\nis odd")
    return x * 2.0


def test_a_row_that_fails_is_named_by_its_key() -> None:
    chunks = [(column(0.0, 1.0, 5.0), column("a", "b", "c")), (column(5.0), column("d"))]
    with pytest.raises(DataError) as error:
        run(chunks, Function(failing), how(["x"], "double", key=True))
    assert mentions(str(error.value), "'c'", "row 2", "partition 0", "ArithmeticError")
    assert isinstance(error.value.__cause__, ArithmeticError)
    with pytest.raises(
        DataError,
        match=mentioning("row 2", "partition 0", "'x'"),
    ):
        run([(column(0.0, 1.0, None),)], Function(failing), how(["x"], "double"))
    with pytest.raises(DataError, match=mentioning("five is odd", "errors='column'")):
        run([(column(5.0),)], Function(failing), how(["x"], "double"))
    # of a caller that has no errors=
    with pytest.raises(DataError, match=mentioning("five is odd")):
        run([(column(5.0),)], Function(failing), how(["x"], "double", cure="Do without"))


def test_rows_that_fail_become_null_next_to_their_errors() -> None:
    chunks = [(column(None, 1.0, 5.0),), (column(3.0, 4.0, 5.0, 6.0),)]
    found = run(chunks, Function(failing), how(["x"], "double", errors="column"))
    assert [row["prediction"] for row in found] == [None, 2, None, 6, 8, None, 12]
    errors = [row["error"] for row in found]
    assert [error is None for error in errors] == [False, True, False, True, True, False, True]
    assert "column 'x': null" in errors[0]
    assert errors[2] == "ArithmeticError: five is odd"


@pytest.mark.parametrize("threads", [1, 3])
def test_bytes_are_decoded_ahead_and_bad_ones_fail_alone(threads: int) -> None:
    def decode(value: bytes) -> Any:
        return np.frombuffer(value, np.uint8).reshape(2, 2)

    good = [bytes([row] * 4) for row in range(9)]
    chunks = [(column(b"tor", *good[:4]),), (column(*good[4:], b"torn!"),)]
    model = Function(lambda x: x.sum(axis=(1, 2)).astype("int64"))
    options = how(["x"], "bigint", errors="column", decode={"x": decode}, threads=threads)
    found = run(chunks, model, options)
    assert [row["prediction"] for row in found] == [None, *(4 * row for row in range(9)), None]
    assert "row 10, column 'x': decode failed on 5 bytes" in found[-1]["error"]


def test_a_type_that_no_row_can_have_is_one_error() -> None:
    model = Function(lambda x: x)
    with pytest.raises(DataError, match=mentioning("binary", "array")):
        run([(column(b"a", b"b"),)], model, how(["x"], "float", errors="column"))
    with pytest.raises(DataError, match=mentioning("3 rows", "2")):
        run(
            [(column(1.0, 2.0),)],
            Function(lambda x: np.zeros(3)),
            how(["x"], "float", errors="column"),
        )
    assert model.calls == []


def test_a_closed_stream_leaves_no_threads() -> None:
    def chunks() -> Iterator[Any]:
        while True:
            yield (column(b"a", b"b"),)

    options = how(["x"], "int", 2, decode={"x": lambda value: np.ones(1)}, threads=2)
    stream = predictions(chunks(), Function(lambda x: x[:, 0].astype(int)), options, "")
    assert next(stream).to_pylist() == [1, 1]
    stream.close()
    names = ("farandole-decode", "farandole-ahead")
    assert not [each.name for each in threading.enumerate() if each.name.startswith(names)]


def test_a_value_that_does_not_fit_fails_alone() -> None:
    options = how(["x"], "tinyint", errors="column")
    found = run([(column(1, 300, 2, 3),)], Function(lambda x: x), options)
    assert [row["prediction"] for row in found] == [1, None, 2, 3]
    assert "'tinyint' cannot hold" in found[1]["error"]
    with pytest.raises(DataError, match=mentioning("row 1", "partition 0", "300", "int64")):
        run([(column(1, 300, 2, 3),)], Function(lambda x: x), how(["x"], "tinyint"))


@pytest.mark.parametrize(
    "rows", [[[1.0], [1.0, 2.0], [3.0, 4.0]], [[1.0], None, [1.0, 2.0], [3.0, 4.0]]]
)
def test_the_length_that_most_rows_have_is_that_of_lists(rows: list[Any]) -> None:
    found = run(
        [(column(*rows),)], Function(lambda x: x.sum(axis=1)), how(["x"], "double", errors="column")
    )
    assert [row["prediction"] for row in found] == [*[None] * (len(rows) - 2), 3.0, 7.0]


def test_stacked_columns_have_the_models_dtype() -> None:
    model = Function(lambda x: x[:, 0], floating="float32")
    run([(column(1.0), column(3))], model, how(["a", "b"], "float", stack=True))
    run([(column(1), column(3))], model, how(["a", "b"], "bigint", stack=True))
    run(
        [(column(1.0), column(3))],
        model,
        how(["a", "b"], "double", stack=True, dtypes={"a": "float64"}),
    )
    assert [call["a"].dtype.name for call in model.calls] == ["float32", "int64", "float64"]


def test_decoded_rows_beyond_the_first_ones_dtype_fail() -> None:
    def decode(value: bytes) -> Any:
        return np.array([len(value) * 100], "uint8" if len(value) < 3 else "uint16")

    chunks = [(column(b"1", b"22", b"333"),)]
    found = run(
        chunks,
        Function(lambda x: x[:, 0]),
        how(["x"], "int", errors="column", decode={"x": decode}),
    )
    assert [row["prediction"] for row in found] == [100, 200, None]
    assert "row 2, column 'x'" in found[2]["error"]
    options = how(["x"], "int", decode={"x": decode}, dtypes={"x": "uint16"})
    assert run(chunks, Function(lambda x: x[:, 0]), options) == [100, 200, 300]


def test_batches_of_a_model_with_one_buffer_are_kept() -> None:
    buffer = np.empty(2)
    model = Function(lambda x: np.multiply(x, 2.0, out=buffer))
    assert run([(column(1.0, 2.0, 3.0, 4.0),)], model, how(["x"], "double", 2)) == [2, 4, 6, 8]


def test_chunks_of_a_column_with_other_pandas_types_are_joined() -> None:
    text = column(None, None), column("a", "b")
    for first, second in (((1, 2), (3.0, None)), ((3.0, None), (1, 2))):
        model = Function(lambda x, name: x)
        chunks = [*zip((column(*first), column(*second)), text, strict=True)]
        found = run(chunks, model, how(["x", "name"], "double", fill={"x": 7, "name": "?"}))
        assert found == [value or 7 for value in (*first, *second)]
        assert [list(call["name"]) for call in model.calls] == [["?", "?", "a", "b"]]


def test_an_image_that_spark_could_not_decode_fails_alone() -> None:
    bad = {"origin": "a", "height": -1, "width": -1, "nChannels": -1, "mode": -1, "data": b""}
    good = [
        {**bad, "height": 2, "width": 1, "nChannels": 3, "mode": 16, "data": bytes([row] * 6)}
        for row in range(3)
    ]
    numbers = dict.fromkeys(("height", "width", "nChannels", "mode"), pa.int32())
    kind = pa.struct({"origin": pa.string(), **numbers, "data": pa.binary()})
    options = how(["image"], "int", 3, errors="column")
    model = Function(lambda image: image.reshape(len(image), -1).sum(axis=1).astype(int))
    found = run(
        [(column(bad, good[1], good[2], bad, None, bad, good[1], kind=kind),)], model, options
    )
    assert [each["prediction"] for each in found] == [None, 6, 12, None, None, None, 6]
    assert all("an image that Spark could not decode" in found[row]["error"] for row in (0, 3, 5))
    found = run([(column(bad, bad, bad, good[1], kind=kind),)], model, options)
    assert [each["prediction"] for each in found] == [None, None, None, 6]
