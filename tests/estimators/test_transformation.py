"""``transformation_fn``: the columns that it gets, and what it may return."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from farandole.data import from_parquet
from farandole.errors import DataError
from farandole.estimators.batches import batch_of, first
from farandole.estimators.spec import Columns
from tests.kits.messages import mentioning

ARRAYS = {
    "x": np.arange(8.0).reshape(4, 2),
    "y": np.array([0.0, 1, 2, 3]),
    "w": np.array([1.0, 0, 1, 0]),
}


def batch(function: Any, *, by_row: bool = True, weight: str | None = None, **more: Any) -> Any:
    columns = Columns(("x",), ("y",), weight, function, by_row=by_row, **more)
    return batch_of({name: array.copy() for name, array in ARRAYS.items()}, columns, 4)


def without(name: str) -> Callable[[Any], Any]:
    def function(row: Any) -> Any:
        return {key: value for key, value in row.items() if key != name or row["y"] != 2}

    return function


def edited(*shape: int | None, dtype: Any = np.float32) -> dict[str, Any]:
    return {"edited": (("x", dtype, shape, False),)}


@pytest.mark.parametrize(
    ("function", "options", "words"),
    [
        (without("x"), {}, ("'x'", "row 2", "y=np.float64(2.0)")),
        (without("w"), {"weight": "w"}, ("'w'", "row 2")),
        (lambda row: {**row, "x": None}, {}, ("None", "'x'", "row 0")),
        (lambda row: {**row, "x": b"ab"}, {}, ("b'ab'", "bytes", "'x'")),
        (lambda row: {**row, "x": [[1], [1, 2]]}, {}, ("[[1], [1, 2]]", "'x'")),
        (lambda row: {**row, "x": np.ones(1 + int(row["y"]))}, {}, ("'x'", "(1,)", "(2,)")),
        (lambda row: [1], {}, ("list", "row 0", "dict")),
        (lambda row: row, edited(3), ("'x'", "(3,)", "(2,)")),
        (lambda row: {**row, "x": row["x"] + 0.5}, edited(2, dtype=np.int64), ("'x'", "0.5")),
        (lambda frame: {**frame}, {"by_row": False}, ("dict", "DataFrame")),
        (lambda frame: frame.nothing, {"by_row": False}, ("AttributeError", "'nothing'")),
        (lambda frame: frame[frame.y > 1], {"by_row": False}, ("2 rows", "4")),
    ],
)
def test_a_wrong_result_is_one_error(
    function: Any, options: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(DataError, match=mentioning(*words)):
        batch(function, **options)


@pytest.mark.parametrize(
    ("function", "options", "shape"),
    [
        (lambda row: row.update(x=row["x"] * 2), {}, (4, 2)),
        (lambda row: {**without("w")(row), "x": row["x"] * 2}, {}, (4, 2)),
        (lambda row: {**row, "x": (row["x"] * 2).tolist()}, edited(2, 1), (4, 2, 1)),
        (lambda row: {**row, "x": row["x"] * 2}, edited(None), (4, 2)),
        (lambda row: {**row, "x": row["x"] * 2}, edited(None, 1), (4, 2, 1)),
        (lambda frame: frame.__setitem__("x", frame.x * 2), {"by_row": False}, (4, 2)),
    ],
)
def test_results_that_are_taken(
    function: Any, options: dict[str, Any], shape: tuple[int, ...]
) -> None:
    found = batch(function, **options)
    assert found.inputs[0].shape == shape
    np.testing.assert_array_equal(found.inputs[0].ravel(), 2 * ARRAYS["x"].ravel())
    np.testing.assert_array_equal(found.labels[0], ARRAYS["y"])


DAY, TIME = datetime.date(2024, 5, 1), datetime.datetime(2024, 5, 1, 12)
VECTOR = pa.struct(
    {
        "type": pa.int8(),
        "size": pa.int32(),
        "indices": pa.list_(pa.int32()),
        "values": pa.list_(pa.float64()),
    }
)
TABLE = {
    "bytes": pa.array([b"ab", b"cde"]),
    "day": pa.array([DAY, None]),
    "time": pa.array([TIME, TIME], pa.timestamp("us")),
    "texts": pa.array([["a", "b"], []]),
    "map": pa.array([[("a", 1)], [("b", 2)]], pa.map_(pa.string(), pa.int64())),
    "struct": pa.array([{"a": 1, "b": [1, 2]}, {"a": 2, "b": []}]),
    "ragged": pa.array([[1, 2, 3], [4]], pa.list_(pa.int16())),
    "holes": pa.array([[1.0, None], None], pa.list_(pa.float64())),
    "table": pa.array([[[1.0, 2.0]], [[3.0, 4.0]]]),
    "vector": pa.array(
        [
            {"type": 0, "size": 3, "indices": [1], "values": [5.0]},
            {"type": 1, "size": None, "indices": None, "values": [1.0, 2.0]},
        ],
        VECTOR,
    ),
    "text": pa.array(["a", None]),
    "number": pa.array([1, None], pa.int64()),
    "decimal": pa.array([decimal.Decimal("1.5"), decimal.Decimal("2.5")]),
    "y": pa.array([1.0, 2.0]),
}


@pytest.mark.parametrize("by_row", [True, False])
def test_columns_of_any_type_are_passed(tmp_path: Path, by_row: bool) -> None:
    pq.write_table(pa.table(TABLE), tmp_path / "rows.parquet")
    seen: list[Any] = []

    def of_row(row: Any) -> Any:
        seen.append(dict(row))
        row["ragged"].sort()  # its memory is the row's own
        row["struct"]["b"].append(3)
        return {"bytes": [float(len(row["bytes"]))], "y": row["y"]}

    def of_frame(frame: Any) -> Any:
        rows = [of_row(row) for row in frame.to_dict("records")]
        made = frame[["y"]].copy()
        made["bytes"] = [row["bytes"] for row in rows]
        return made

    function = of_row if by_row else of_frame
    others = tuple(name for name in TABLE if name not in ("bytes", "y"))
    columns = Columns(("bytes", *others), ("y",), None, function, (), others, by_row, True)
    data = from_parquet(str(tmp_path / "rows.parquet"), columns=columns.all, objects=True)
    found = first(data, columns)
    np.testing.assert_array_equal(found.others["bytes"], [[2.0], [3.0]])
    one, two = seen
    assert (one["bytes"], one["texts"], one["map"]) == (b"ab", ["a", "b"], {"a": 1})
    assert (one["day"], two["day"]) == (DAY, None)
    assert one["time"] == TIME
    assert two["struct"]["a"] == 2
    np.testing.assert_array_equal(one["table"], [[1.0, 2.0]])
    np.testing.assert_array_equal(one["vector"], [0, 5.0, 0])
    np.testing.assert_array_equal(two["vector"], [1.0, 2.0])
    assert one["ragged"].dtype == np.int16
    np.testing.assert_array_equal(one["holes"], [1.0, np.nan])
    assert two["holes"] is None
    assert (one["number"], one["decimal"]) == (1, 1.5)
    assert two["number"] is None or np.isnan(two["number"])  # pandas' null is NaN
    assert two["text"] is None or two["text"] != two["text"]
