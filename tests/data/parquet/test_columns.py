"""Contents of columns, and their conversion to arrays."""

from __future__ import annotations

import decimal
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from farandole.data import from_parquet
from farandole.data.parquet.arrays import values
from farandole.data.parquet.columns import Column
from farandole.data.parquet.location import RowLocation
from farandole.errors import DataError
from tests.data.parquet.tools import DENSE, SPARSE, VECTOR, image, load, npy, written
from tests.kits.messages import mentioning


def read(folder: Path, column: Any, **options: Any) -> Any:
    data = from_parquet(written(folder, column), **options)
    (batch,) = data.numpy(100, shuffle=False, rank=0, size=1)
    (found,) = data.columns
    assert batch["x"].shape[1:] == found.shape
    assert batch["x"].dtype == found.dtype
    assert batch["x"].flags.writeable
    return batch["x"]


@pytest.mark.parametrize(
    ("column", "options", "expected", "dtype"),
    [
        (pa.array([1, 2], pa.int8()), {}, [1, 2], "int8"),
        (pa.array([1.5, 2], pa.float16()), {}, [1.5, 2], "float16"),
        (pa.array([1, 2], pa.int64()), {"dtypes": {"x": np.float32}}, [1, 2], "float32"),
        (pa.array([True, False]), {}, [True, False], "bool"),
        (pa.array([decimal.Decimal("1.25")]), {}, [1.25], "float64"),
        (
            pa.array(
                [decimal.Decimal("5027.90"), decimal.Decimal("-9001.88"), decimal.Decimal("0.07")]
            ),
            {},
            [5027.9, -9001.88, 0.07],
            "float64",
        ),
        (
            pa.array([decimal.Decimal("1E-30"), decimal.Decimal("0.3")], pa.decimal128(38, 38)),
            {},
            [1e-30, 0.3],
            "float64",
        ),
        (pa.array([decimal.Decimal(2**53 + 1)]), {"dtypes": {"x": "int64"}}, [2**53 + 1], "int64"),
        (
            pa.array([decimal.Decimal(2**63 + 1)]),
            {"dtypes": {"x": "uint64"}},
            [2**63 + 1],
            "uint64",
        ),
        (
            pa.array([0.1, 1e-300, float("-inf")]),
            {"dtypes": {"x": "float32"}},
            [np.float32(0.1), 0, -np.inf],
            "float32",
        ),
        (pa.array([255.0, 0.0]), {"dtypes": {"x": "uint8"}}, [255, 0], "uint8"),
        (
            pa.array([decimal.Decimal("1.25"), None]),
            {"fill": {"x": decimal.Decimal("0.5")}},
            [1.25, 0.5],
            "float64",
        ),
        (pa.array([decimal.Decimal("1.25"), None]), {"fill": {"x": 0.5}}, [1.25, 0.5], "float64"),
        (pa.array([1, None], pa.int64()), {"fill": {"x": -1}}, [1, -1], "int64"),
        (
            pa.array([1, None, 3]),
            {"fill": {"x": -1}, "shapes": {"x": (1,)}},
            [[1], [-1], [3]],
            "int64",
        ),
        (
            pa.array([1.5, 2]),
            {"shapes": {"x": (1, 1)}, "dtypes": {"x": "float32"}},
            [[[1.5]], [[2]]],
            "float32",
        ),
        (pa.array([1, 2]), {"shapes": {"x": ()}}, [1, 2], "int64"),
        (pa.array(["a", "b"]), {"shapes": {"x": (1,)}}, [["a"], ["b"]], "object"),
        (pa.array(["a", "b", None]), {"fill": {"x": ""}}, ["a", "b", ""], "object"),
        (pa.array(["a", "b", "a"]).dictionary_encode(), {}, ["a", "b", "a"], "object"),
        (pa.array([[1, 2], [3, 4]], pa.list_(pa.int32())), {}, [[1, 2], [3, 4]], "int32"),
        (pa.array([[1, 2], [3, 4]], pa.list_(pa.float32(), 2)), {}, [[1, 2], [3, 4]], "float32"),
        (
            pa.array([[1, 2], None], pa.list_(pa.float32(), 2)),
            {"fill": {"x": 9}},
            [[1, 2], [9, 9]],
            "float32",
        ),
        (
            pa.array([[1, 2, 3, 4]], pa.list_(pa.int32())),
            {"shapes": {"x": (2, 2)}},
            [[[1, 2], [3, 4]]],
            "int32",
        ),
        (pa.array([[[1], [2]], [[3], [4]]]), {}, [[[1], [2]], [[3], [4]]], "int64"),
        (
            pa.array([[[1, 2], [3, 4]]], pa.list_(pa.list_(pa.int32()), 2)),
            {},
            [[[1, 2], [3, 4]]],
            "int32",
        ),
        (
            pa.array([[1], None, [2, None, 3]]),
            {"shapes": {"x": (3,)}, "fill": {"x": 0}},
            [[1, 0, 0], [0, 0, 0], [2, 0, 3]],
            "int64",
        ),
        (
            pa.array([[[1]], [[2, 3], [4]]]),
            {"shapes": {"x": (2, 2)}, "fill": {"x": 0}},
            [[[1, 0], [0, 0]], [[2, 3], [4, 0]]],
            "int64",
        ),
        (pa.array([DENSE, DENSE], VECTOR), {}, [[1, 2, 3], [1, 2, 3]], "float64"),
        (
            pa.array([SPARSE, DENSE], VECTOR),
            {"dtypes": {"x": "float32"}},
            [[4, 0, 5], [1, 2, 3]],
            "float32",
        ),
        (
            pa.array([SPARSE, DENSE], VECTOR),
            {"shapes": {"x": (3, 1)}},
            [[[4], [0], [5]], [[1], [2], [3]]],
            "float64",
        ),
        (pa.array([DENSE], VECTOR), {"shapes": {"x": (1, 3)}}, [[[1, 2, 3]]], "float64"),
        (pa.array([SPARSE, None], VECTOR), {"fill": {"x": 7}}, [[4, 0, 5], [7, 7, 7]], "float64"),
        (
            pa.array([b"\1\2", b"\3\4"]),
            {"shapes": {"x": (2, 1)}},
            [[[1], [2]], [[3], [4]]],
            "uint8",
        ),
        (
            pa.array([b"\1\0", None]),
            {"shapes": {"x": ()}, "dtypes": {"x": "<i2"}, "fill": {"x": 3}},
            [1, 3],
            "int16",
        ),
        (pa.array([image(), image()]), {}, [[[[0], [1]], [[2], [3]]]] * 2, "uint8"),
        (
            pa.array([npy([1.5, 2]), npy([3, 4.5])]),
            {"decode": {"x": load}},
            [[1.5, 2], [3, 4.5]],
            "float64",
        ),
        (
            pa.array([npy([1.5]), None]),
            {"decode": {"x": load}, "fill": {"x": npy([0.0])}},
            [[1.5], [0]],
            "float64",
        ),
    ],
)
def test_values(tmp_path: Path, column: Any, options: Any, expected: Any, dtype: str) -> None:
    found = read(tmp_path, column, **options)
    assert found.dtype == dtype
    assert found.tolist() == expected


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary(4)])
def test_raw_bytes_are_read_where_they_lie(kind: Any) -> None:
    rows = pa.array([np.array([row, -row], np.int16).tobytes() for row in range(9)], kind)
    column = Column("x", "bytes", "int16", (2,))
    for begin, end in ((0, 9), (3, 7), (4, 4)):
        found = values(rows.slice(begin, end - begin), column, RowLocation("a file"))
        assert (found.shape, found.tolist()) == (
            (end - begin, 2),
            [[row, -row] for row in range(begin, end)],
        )


class Preempted(Exception):
    pass


def test_a_signal_handlers_exception_is_not_blamed_on_decode(tmp_path: Path) -> None:
    def handler(number: int, frame: Any) -> None:
        raise Preempted

    def decode(value: bytes) -> Any:
        if value == b"signal":
            signal.raise_signal(signal.SIGUSR1)
        return [len(value)]

    pq.write_table(pa.table({"x": [b"a", b"signal"]}), tmp_path / "rows.parquet")
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(Preempted):
            list(from_parquet(tmp_path / "rows.parquet", decode={"x": decode}).numpy(2, threads=0))
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_an_error_of_the_interpreter_in_decode_is_tried_again(tmp_path: Path) -> None:
    calls = []

    def decode(value: bytes) -> Any:
        calls.append(value)
        if value == b"2" or len(calls) % 3:
            raise SystemError("AST constructor recursion depth mismatch (before=42, after=41)")
        return np.frombuffer(value, np.uint8)

    assert read(tmp_path, pa.array([b"0", b"1"]), decode={"x": decode}).tolist() == [[48], [49]]
    with pytest.raises(
        DataError, match=mentioning("row 0", "'x'", "1 bytes", "SystemError", "AST")
    ):
        read(tmp_path, pa.array([b"2"]), decode={"x": decode})
