"""Columns and rows that cannot be used: errors with the file, the row and the cure."""

from __future__ import annotations

import decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from farandole.data import ParquetData, from_parquet
from farandole.errors import DataError
from tests.data.parquet.tools import DENSE, SPARSE, VECTOR, image, load, npy, written
from tests.kits.messages import mentioning


@pytest.mark.parametrize(
    ("column", "options", "text"),
    [
        (
            pa.array([1, 2, None]),
            {},
            "part.parquet, row 2, column 'x': null",
        ),
        (pa.array([1]), {"fill": {"y": 1}}, "fill={'y': ...}"),
        (pa.array([1]), {"columns": ["xx"]}, "Column xx does not exist in"),
        (pa.array([1]), {"labels": ["yy"]}, "Label column yy does not exist in"),
        (pa.array([1]), {"columns": ["x"], "features": ["x"]}, "columns=['x']"),
        (
            pa.array([b"a"]),
            {},
            "column 'x': binary cannot become an array",
        ),
        (
            pa.array([b"a"], pa.binary(1)),
            {},
            "fixed_size_binary[1] cannot become an array",
        ),
        (
            pa.array([1], pa.date32()),
            {},
            "cannot become an array; cast it to a number",
        ),
        (pa.array([{"a": 1}]), {}, "struct<a: int64> cannot become an array"),
        (
            pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
            {},
            "write its values as separate columns",
        ),
        (
            pa.array([[{"a": 1}]]),
            {},
            "cannot become an array; write a list of numbers instead for each field",
        ),
        (
            pa.array([["a"]]),
            {},
            "cannot become an array; write a list of numbers instead",
        ),
        (
            pa.array([1]),
            {"columns": []},
            "columns=[] names no column",
        ),
        (
            pa.array([1]),
            {"features": []},
            "features=[] names no column",
        ),
        (
            pa.array([{**image(), "height": -1}]),
            {},
            "row 0, column 'x': an image that Spark could not decode",
        ),
        (
            pa.array([[1, 2]]),
            {"shapes": {"x": (2, -1)}},
            "column 'x': shapes={'x': (2, -1)}",
        ),
        (
            pa.array([1]),
            {"shapes": {"x": (2,)}},
            "column 'x': shapes={'x': (2,)}",
        ),
        (
            pa.array(["a"]),
            {"shapes": {"x": (2,)}},
            "column 'x': shapes={'x': (2,)}",
        ),
        (
            pa.array(["a"]),
            {"weight": "x"},
            "column 'x': it has text in each row",
        ),
        (
            pa.array([[1, 2]]),
            {"weight": "x"},
            "column 'x': it has shape (2,) in each row",
        ),
        (
            pa.array([None, [1]]),
            {},
            "row 0, column 'x': the first row is null; declare shapes={'x': (...)}",
        ),
        (
            pa.array([b"abcd"]),
            {"shapes": {"x": ()}, "dtypes": {"x": ">f4"}},
            "dtypes={'x': '>f4'} does not have",
        ),
        (
            pa.array(["a"]),
            {"dtypes": {"x": "float32"}},
            "part.parquet, column 'x': string cannot be converted to dtypes={'x': 'f",
        ),
        (
            pa.array([1]),
            {"dtypes": {"x": "U5"}},
            "column 'x': int64 cannot be converted to dtypes={'x': 'U5'}",
        ),
        (
            pa.array([1]),
            {"dtypes": {"x": "flot32"}},
            "dtypes={'x': 'flot32'}: numpy has no such dtype",
        ),
        (
            pa.array([1, None]),
            {"fill": {"x": "one"}},
            "column 'x': fill='one' is not of type int64",
        ),
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
def test_invalid_columns_are_refused_before_training(
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
            "row 1, column 'x': a list of 1, but shape (2,) needs 2; declare another",
        ),
        (pa.array([[1, 2], [3]]), {}, "or fill={'x': value}"),
        (
            pa.array([[1], [3, 4]]),
            {"fill": {"x": 0}},
            "row 1, column 'x': a list of 2, but shape (1,) needs 1",
        ),
        (
            pa.array([[1, 2], [3, None]]),
            {},
            "row 1, column 'x': null in a list",
        ),
        (pa.array([[1, 2], None]), {}, "row 1, column 'x': null"),
        (
            pa.array([[1, 2]]),
            {"shapes": {"x": (3,)}},
            "row 0, column 'x': a list of 2, but shape (3,)",
        ),
        (
            pa.array([DENSE, {**SPARSE, "size": 4}], VECTOR),
            {},
            "row 1, column 'x': a vector of size 4, but the oth",
        ),
        (
            pa.array([b"\1\2", b"\3"]),
            {"shapes": {"x": (2,)}},
            "row 1, column 'x': 1 bytes, but shape (2,) of uint8",
        ),
        (
            pa.array([image(), image(3)]),
            {},
            "row 1, column 'x': an image with height=3, but the others have 2",
        ),
        (pa.array([image(), {**image(), "data": None}]), {}, "row 1, column 'x': null"),
        (
            pa.array([image(), {**image(), "height": -1}]),
            {},
            "row 1, column 'x': an image that Spark could not decode",
        ),
        (
            pa.array([1, -1]),
            {"dtypes": {"x": "uint8"}},
            "row 1, column 'x': -1 does not fit into uint8",
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
                "row 1, column 'x': decode returned 300, which does not fit: uint8 holds whole numbers"
                " from 0 to 255"
            ),
        ),
        (
            pa.array([npy([0, 1]), npy([0.5, 0.7])]),
            {"decode": {"x": load}},
            "row 1, column 'x': decode returned float64, but the first row has int64",
        ),
        (
            pa.array([npy([1]), b"?"]),
            {"decode": {"x": load}},
            "row 1, column 'x': decode failed on 1 bytes",
        ),
        (
            pa.array([npy([1]), npy([1, 2])]),
            {"decode": {"x": load}},
            "row 1, column 'x': decode returned shape (2,)",
        ),
    ],
)
@pytest.mark.parametrize("threads", [0, 1])
def test_invalid_rows_raise_where_they_are_read(
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


def test_the_reported_row_is_that_of_the_file_in_any_order(tmp_path: Path) -> None:
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
