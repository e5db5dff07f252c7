"""What columns may hold, how they become arrays, and what is said of those that cannot."""

from __future__ import annotations

import decimal
import io
import pickle
import signal
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from farandole.data import ParquetData, Store, from_parquet, from_spark
from farandole.data.parquet.arrays import values
from farandole.data.parquet.columns import Column
from farandole.data.parquet.location import RowLocation
from farandole.errors import DataError
from tests.kits.messages import mentioning

VECTOR = pa.struct(
    {
        "type": pa.int8(),
        "size": pa.int32(),
        "indices": pa.list_(pa.int32()),
        "values": pa.list_(pa.float64()),
    }
)
DENSE = {"type": 1, "size": None, "indices": None, "values": [1.0, 2.0, 3.0]}
SPARSE = {"type": 0, "size": 3, "indices": [2, 0], "values": [5.0, 4.0]}


def image(height: int = 2, channels: int = 1, data: bytes | None = None) -> dict[str, Any]:
    found = bytes(range(height * 2 * channels)) if data is None else data
    return {
        "origin": "a",
        "height": height,
        "width": 2,
        "nChannels": channels,
        "mode": 0,
        "data": found,
    }


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def load(value: bytes) -> Any:
    return np.load(io.BytesIO(value))


def written(folder: Path, column: Any, name: str = "part.parquet", **options: Any) -> str:
    pq.write_table(pa.table({"x": column}), folder / name, **options)
    return str(folder)


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


@pytest.mark.parametrize(
    ("column", "options", "text"),
    [
        (
            pa.array([1, 2, None]),
            {},
            "part.parquet, row 2, column 'x': null; give fill={'x': value}",
        ),
        (pa.array([1]), {"fill": {"y": 1}}, "fill={'y': ...}: that column is not read; x are"),
        (pa.array([1]), {"columns": ["xx"]}, "Column xx does not exist in"),
        (pa.array([1]), {"labels": ["yy"]}, "Label column yy does not exist in"),
        (pa.array([1]), {"columns": ["x"], "features": ["x"]}, "say the same: give one of them"),
        (
            pa.array([b"a"]),
            {},
            "column 'x': binary is no type that becomes an array: give decode={...: function",
        ),
        (
            pa.array([b"a"], pa.binary(1)),
            {},
            "fixed_size_binary[1] is no type that becomes an array: give decode={...: f",
        ),
        (
            pa.array([1], pa.date32()),
            {},
            "is no type that becomes an array: cast it to a number, or leave the column",
        ),
        (
            pa.array([{"a": 1}]),
            {},
            (
                "write its fields as columns of their own (of a DataFrame, they are that already:"
                " 's.a' of s), or leave"
            ),
        ),
        (
            pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
            {},
            "write its values as columns of their own, one",
        ),
        (
            pa.array([[{"a": 1}]]),
            {},
            "that becomes an array: write a list of numbers instead for each field, or leave",
        ),
        (
            pa.array([["a"]]),
            {},
            "that becomes an array: write a list of numbers instead, or leave the column out",
        ),
        (
            pa.array([1]),
            {"columns": []},
            "columns=[] names no column; leave it out, and all are read",
        ),
        (
            pa.array([1]),
            {"features": []},
            "features=[] names no column; leave it out, and all are read",
        ),
        (
            pa.array([{**image(), "height": -1}]),
            {},
            "row 0, column 'x': an image that Spark could not decode",
        ),
        (
            pa.array([[1, 2]]),
            {"shapes": {"x": (2, -1)}},
            "column 'x': shapes={'x': (2, -1)} leaves a length open: give",
        ),
        (
            pa.array([1]),
            {"shapes": {"x": (2,)}},
            "column 'x': shapes={'x': (2,)}: each row is one value, and no list:",
        ),
        (
            pa.array(["a"]),
            {"shapes": {"x": (2,)}},
            "column 'x': shapes={'x': (2,)}: each row is one value, and no lis",
        ),
        (
            pa.array(["a"]),
            {"weight": "x"},
            "column 'x': it has text in each row, and a weight is one number",
        ),
        (
            pa.array([[1, 2]]),
            {"weight": "x"},
            "column 'x': it has shape (2,) in each row, and a weight is one number",
        ),
        (
            pa.array([None, [1]]),
            {},
            "row 0, column 'x': the first row is null: declare shapes={'x': (...)}",
        ),
        (
            pa.array([b"abcd"]),
            {"shapes": {"x": ()}, "dtypes": {"x": ">f4"}},
            "dtypes={'x': '>f4'}: batches have the byte",
        ),
        (
            pa.array(["a"]),
            {"dtypes": {"x": "float32"}},
            "part.parquet, column 'x': string does not become dtypes={'x': 'f",
        ),
        (
            pa.array([1]),
            {"dtypes": {"x": "U5"}},
            "column 'x': int64 does not become dtypes={'x': 'U5'}: only numbers",
        ),
        (
            pa.array([1]),
            {"dtypes": {"x": "flot32"}},
            "dtypes={'x': 'flot32'}: numpy has no such dtype",
        ),
        (pa.array([1, None]), {"fill": {"x": "one"}}, "column 'x': fill='one' is no int64"),
        (
            pa.array([1, None]),
            {"fill": {"x": -1}, "dtypes": {"x": "uint8"}},
            (
                "part.parquet, column 'x': fill=-1 does not fit: uint8 holds whole numbers from 0"
                " to 255"
            ),
        ),
        (
            pa.array([[1], None]),
            {"fill": {"x": 0.5}},
            "column 'x': fill=0.5 does not fit: int64 holds whole numbers",
        ),
        (
            pa.array([DENSE, None], VECTOR),
            {"fill": {"x": "a"}},
            "column 'x': fill='a' does not fit: float64 holds",
        ),
        (
            pa.array([b"ab", None]),
            {"shapes": {"x": (2,)}, "fill": {"x": 300}},
            "column 'x': fill=300 does not fit",
        ),
        (
            pa.array([b"a"]),
            {"decode": {"x": lambda _: 1 / 0}},
            "row 0, column 'x': decode failed on 1 bytes: ZeroDi",
        ),
    ],
)
def test_what_is_told_before_training_starts(
    tmp_path: Path, column: Any, options: Any, text: str
) -> None:
    folder = written(tmp_path, column)
    with pytest.raises(DataError) as caught:
        from_parquet(folder, **options)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("column", "options", "text"),
    [
        (
            pa.array([[1, 2], [3]]),
            {},
            "row 1, column 'x': a list of 1, where shape (2,) asks for 2; declare another",
        ),
        (pa.array([[1, 2], [3]]), {}, "or fill={'x': value}"),
        (
            pa.array([[1], [3, 4]]),
            {"fill": {"x": 0}},
            "row 1, column 'x': a list of 2, where shape (1,) asks for 1",
        ),
        (
            pa.array([[1, 2], [3, None]]),
            {},
            "row 1, column 'x': null in a list; give fill={'x': value}",
        ),
        (pa.array([[1, 2], None]), {}, "row 1, column 'x': null; give fill"),
        (
            pa.array([[1, 2]]),
            {"shapes": {"x": (3,)}},
            "row 0, column 'x': a list of 2, where shape (3,)",
        ),
        (
            pa.array([DENSE, {**SPARSE, "size": 4}], VECTOR),
            {},
            "row 1, column 'x': a vector of size 4, where the oth",
        ),
        (
            pa.array([b"\1\2", b"\3"]),
            {"shapes": {"x": (2,)}},
            "row 1, column 'x': 1 bytes, where shape (2,) of uint8",
        ),
        (
            pa.array([image(), image(3)]),
            {},
            "row 1, column 'x': an image with height=3, where the others have 2",
        ),
        (pa.array([image(), {**image(), "data": None}]), {}, "row 1, column 'x': null; give fill"),
        (
            pa.array([image(), {**image(), "height": -1}]),
            {},
            "row 1, column 'x': an image that Spark could not decode",
        ),
        (
            pa.array([1, -1]),
            {"dtypes": {"x": "uint8"}},
            (
                "row 1, column 'x': -1 does not fit into uint8: uint8 holds whole numbers from 0 to"
                " 255; give dtypes={'x': a dtype that holds it}, or leave such rows out"
            ),
        ),
        (
            pa.array([1, 2**63 - 1]),
            {"dtypes": {"x": "int32"}},
            "row 1, column 'x': 9223372036854775807 does not fit",
        ),
        (
            pa.array([1, 2**63], pa.uint64()),
            {"dtypes": {"x": "int64"}},
            "row 1, column 'x': 9223372036854775808 does",
        ),
        (
            pa.array([2.0, 1.7]),
            {"dtypes": {"x": "int32"}},
            "row 1, column 'x': 1.7 does not fit into int32",
        ),
        (
            pa.array([2.0, float("nan")]),
            {"dtypes": {"x": "int32"}},
            "row 1, column 'x': nan does not fit into int32",
        ),
        (
            pa.array([0, 2]),
            {"dtypes": {"x": "bool"}},
            "row 1, column 'x': 2 does not fit into bool: bool holds whole",
        ),
        (
            pa.array([1.0, 1e300]),
            {"dtypes": {"x": "float32"}},
            (
                "row 1, column 'x': 1e+300 does not fit into float32: float32 holds finite numbers"
                " up to 3.4e+38"
            ),
        ),
        (
            pa.array([decimal.Decimal("1.25")]),
            {"dtypes": {"x": "int64"}},
            "row 0, column 'x': 1.25 does not fit",
        ),
        (
            pa.array([[1, 2], [3, 300]]),
            {"dtypes": {"x": "uint8"}},
            "row 1, column 'x': 300 does not fit into uint8",
        ),
        (
            pa.array([[[1], [2, 3]], [[4], [300]]]),
            {"shapes": {"x": (3, 2)}, "fill": {"x": 0}, "dtypes": {"x": "int8"}},
            "row 1, column 'x': 300 does not fit into int8",
        ),
        (
            pa.array([DENSE, {**SPARSE, "values": [5.0, 4.5]}], VECTOR),
            {"dtypes": {"x": "int16"}},
            "row 1, column 'x': 4.5 does not fit into int16",
        ),
        (
            pa.array([npy([1]), npy([300])]),
            {"decode": {"x": load}, "dtypes": {"x": "uint8"}},
            (
                "row 1, column 'x': decode gives 300, which does not fit: uint8 holds whole numbers"
                " from 0 to 255"
            ),
        ),
        (
            pa.array([npy([0, 1]), npy([0.5, 0.7])]),
            {"decode": {"x": load}},
            (
                "row 1, column 'x': decode gives float64, where the first row has int64; give"
                " dtypes={'x': 'float64'}"
            ),
        ),
        (
            pa.array([npy([1]), b"?"]),
            {"decode": {"x": load}},
            "row 1, column 'x': decode failed on 1 bytes",
        ),
        (
            pa.array([npy([1]), npy([1, 2])]),
            {"decode": {"x": load}},
            "row 1, column 'x': decode gives shape (2,), wh",
        ),
    ],
)
@pytest.mark.parametrize("threads", [0, 1])
def test_what_is_told_where_rows_are_read(
    tmp_path: Path, column: Any, options: Any, text: str, threads: int
) -> None:
    data = from_parquet(written(tmp_path, column), **options)
    with pytest.raises(DataError) as caught:
        list(data.numpy(1, threads=threads, rank=0, size=1))
    assert text in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "part.parquet"))


def all_ranks(data: ParquetData, size: int, memory: int) -> None:
    for rank in range(size):
        list(data.numpy(7, memory=memory, rank=rank, size=size))


def test_the_row_is_that_of_the_file_whatever_the_order(tmp_path: Path) -> None:
    lists = [[row] for row in range(100)]
    written(tmp_path, pa.array([*lists, [1, 2]]), "b.parquet", row_group_size=10)
    written(tmp_path, pa.array(lists), "a.parquet", row_group_size=10)
    for memory in (1 << 28, 1 << 10):
        with pytest.raises(DataError, match=mentioning("b.parquet", "row 100", "'x'", "2")):
            all_ranks(from_parquet(str(tmp_path)), 2, memory)
    written(
        tmp_path,
        pa.array([None, *range(99), None]),
        "c.parquet",
        row_group_size=10,
        write_statistics=False,
    )
    data = from_parquet(str(tmp_path / "c.parquet"))
    with pytest.raises(DataError, match=r"c\.parquet, row (0|100), column 'x': null"):
        list(data.numpy(7, rank=0, size=1))
    pq.write_table(pa.table({"a": [1, 2], "a.b": [None, 3]}), tmp_path / "dots.parquet")
    assert from_parquet(str(tmp_path / "dots.parquet"), fill={"a.b": 0}).rows == 2
    with pytest.raises(DataError, match=r"row 0, column 'a\.b': null"):
        from_parquet(str(tmp_path / "dots.parquet")).rows  # noqa: B018
    pq.write_table(
        pa.table({"a": [{"b": None}, {"b": 1}], "a.b": [2, 3]}), tmp_path / "dots.parquet"
    )
    data = from_parquet(str(tmp_path / "dots.parquet"), columns=["a.b"])
    assert next(iter(data.numpy(2, shuffle=False, rank=0, size=1)))["a.b"].tolist() == [2, 3]
    images = [npy([row]) for row in range(100)]
    written(tmp_path, pa.array([*images[:70], b"?", *images]), "d.parquet", row_group_size=10)
    for size in (1, 3):
        with pytest.raises(DataError, match=mentioning("d.parquet", "row 70", "'x'")):
            all_ranks(from_parquet(str(tmp_path / "d.parquet"), decode={"x": load}), size, 1 << 10)


class Preempted(Exception):
    pass


def test_what_a_handler_of_a_signal_raises_is_no_fault_of_decode(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(("log", "kind"), [("_delta_log", "Delta"), (".hoodie", "Hudi")])
def test_a_folder_of_a_table_may_hold_files_that_do_not_count(
    tmp_path: Path, log: str, kind: str
) -> None:
    part = tmp_path / "table" / "day=1" / "hour=2"
    part.mkdir(parents=True)
    written(part, pa.array([1, 2]))
    assert from_parquet(tmp_path / "table").rows == 2
    (tmp_path / "table" / log).mkdir()
    file = part / "part.parquet"
    for path in (
        tmp_path / "table",
        part,
        f"file://{part}/",
        [part, file],
        tmp_path,
        f"{tmp_path}/",
    ):
        with pytest.raises(DataError, match=mentioning(kind, "from_spark", f"'{kind.lower()}'")):
            from_parquet(path)
    # which are those that the log names
    assert from_parquet(file).rows == from_parquet([file]).rows == 2


def test_a_folder_of_an_iceberg_table(tmp_path: Path) -> None:
    (part := tmp_path / "table" / "data" / "day=1").mkdir(parents=True)
    written(part, pa.array([1, 2]))
    (tmp_path / "table" / "metadata").mkdir()
    assert from_parquet(part.parent).rows == 2
    (tmp_path / "table" / "metadata" / "v1.metadata.json").touch()
    for path in (tmp_path / "table", part.parent, part, tmp_path):
        with pytest.raises(
            DataError, match=mentioning("Iceberg", "/table", "from_spark", "'iceberg'")
        ):
            from_parquet(path)


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=mentioning("Parquet")):
        from_parquet(str(tmp_path / "missing"))
    with pytest.raises(DataError, match=mentioning("Parquet")):
        from_parquet(str(tmp_path))
    with pytest.raises(DataError, match=mentioning("file")):
        from_parquet([])
    written(tmp_path, pa.array([1, 2]), "a.parquet")
    written(tmp_path, pa.array(["1", "2"]), "b.parquet")
    with pytest.raises(
        DataError,
        match=mentioning("b.parquet", "'x'", "string", "int64", "a.parquet"),
    ):
        from_parquet(str(tmp_path))
    with pytest.raises(
        DataError, match=mentioning("a.parquet", "'x'", "int64", "string", "b.parquet")
    ):
        # the first one decides
        from_parquet([str(tmp_path / "b.parquet"), str(tmp_path / "a.parquet")])
    pq.write_table(pa.table({"y": [1]}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=mentioning("b.parquet", "'x'", "a.parquet")):
        from_parquet(str(tmp_path))
    pq.write_table(pa.table({"x": [3], "y": [1]}), tmp_path / "b.parquet")
    for options in ({}, {"labels": "x"}):
        with pytest.raises(DataError, match=mentioning("b.parquet", "'y'", "a.parquet")):
            from_parquet(str(tmp_path), **options)
    assert (
        from_parquet(str(tmp_path), columns=["x"]).rows
        == from_parquet(str(tmp_path), features="x").rows
        == 3
    )
    (tmp_path / "b.parquet").write_bytes(b"no such thing")
    with pytest.raises(DataError, match=mentioning("Parquet", "b.parquet")):
        from_parquet(str(tmp_path))
    data = from_parquet(str(tmp_path / "a.parquet"))
    written(tmp_path, pa.array([1, 2, 3]), "a.parquet")
    with pytest.raises(
        DataError,
        match=(mentioning("a.parquet", "handle", "bytes")),
    ):
        list(data.numpy(1, rank=0, size=1))
    with pytest.raises(DataError, match=mentioning("rows")):
        from_parquet(
            written(tmp_path, pa.array([], pa.int64()), "none.parquet") + "/none.parquet"
        ).numpy(1)


def test_columns_that_have_one_name(tmp_path: Path) -> None:
    written(tmp_path, pa.array([1]), "a.parquet")
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["x", "x"])
    pq.write_table(twice, tmp_path / "b.parquet")
    # Arrow refuses the first file of a folder, but not others
    for path in (tmp_path, tmp_path / "b.parquet"):
        with pytest.raises(DataError, match=mentioning("b.parquet", "'x'", "2")):
            from_parquet(str(path))


def test_a_column_and_a_key_in_the_path_of_one_name(tmp_path: Path) -> None:
    (tmp_path / "x=2024").mkdir()
    written(tmp_path / "x=2024", pa.array(["January"]))
    with pytest.raises(
        DataError,
        match=mentioning("part.parquet", "'x'"),
    ):
        from_parquet(str(tmp_path))


def test_a_store_knows_what_is_parquet(tmp_path: Path) -> None:
    store = Store.create(str(tmp_path))
    assert not store.is_parquet_dataset(store.get_train_data_path())
    written(tmp_path, pa.array([1, 2]), "a.parquet")
    assert store.is_parquet_dataset(str(tmp_path))
    assert store.get_parquet_dataset(str(tmp_path / "a.parquet")).count_rows() == 2
    (tmp_path / "b.parquet").write_text("no such thing")
    assert not store.is_parquet_dataset(str(tmp_path / "b.parquet"))


def test_a_file_system_of_fsspec() -> None:
    system = fsspec.filesystem("memory")
    with system.open("/farandole-test/a.parquet", "wb") as file:
        pq.write_table(pa.table({"x": range(100)}), file, row_group_size=10)
    try:
        data = pickle.loads(pickle.dumps(from_parquet("memory://farandole-test")))
        rows = [
            row
            for rank in range(2)
            for batch in data.numpy(7, rank=rank, size=2)
            for row in batch["x"]
        ]
        assert sorted(rows) == list(range(100))
        with system.open("/farandole-test/a.parquet", "wb") as file:
            pq.write_table(pa.table({"x": range(100, 200)}), file, row_group_size=10)
        with pytest.raises(DataError, match=mentioning("a.parquet", "handle")):
            list(data.numpy(7, rank=0, size=1))
    finally:
        system.rm("/farandole-test", recursive=True)


def test_a_frame_of_pandas_is_no_dataframe_of_spark() -> None:
    with pytest.raises(
        TypeError, match=mentioning("pandas", "DataFrame", "spark.createDataFrame(it)")
    ):
        from_spark(pd.DataFrame({"x": [1]}))
