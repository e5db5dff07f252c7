"""Predictions for files with different columns, and the schemas in their footers."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from farandole.errors import DataError
from farandole.inference import predict_parquet
from tests.inference.parquet_tools import read
from tests.kits.messages import mentioning

SPARK = "org.apache.spark.sql.parquet.row.metadata"


def test_an_input_without_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([], pa.float64())}), tmp_path / "in.parquet")
    done = predict_parquet(
        np.exp, str(tmp_path / "in.parquet"), str(tmp_path / "out"), returns="float"
    )
    assert (done.rows, read(tmp_path / "out")) == (0, [])
    assert pq.read_table(tmp_path / "out").column_names == ["x", "prediction"]


def test_files_whose_columns_differ_make_files_of_one_schema(tmp_path: Path) -> None:
    tables = [
        pa.table({"x": pa.array([1, 2], pa.int32()), "tags": [["a"], None]}),
        pa.table(
            {"tags": pa.array([None], pa.null()), "x": pa.array([2**40], pa.int64()), "more": ["m"]}
        ),
        pa.table({"x": pa.array([], pa.null())}),  # as pandas writes a column without rows
        pa.table({"x": pa.array([5], pa.int8())}),
    ]
    for number, key in enumerate(("1", "__HIVE_DEFAULT_PARTITION__", "1", "2")):
        (tmp_path / "in" / f"day={key}").mkdir(parents=True, exist_ok=True)
        pq.write_table(tables[number], tmp_path / "in" / f"day={key}" / f"{number}.parquet")
    seen = tmp_path / "seen"

    def model(x: Any) -> Any:
        with seen.open("a") as file:
            file.write(x.dtype.name + "\n")
        return 2 * x

    predict_parquet(model, tmp_path / "in", tmp_path / "out", inputs="x", returns="bigint")
    schemas = {pq.read_schema(path).remove_metadata() for path in (tmp_path / "out").glob("part-*")}
    (schema,) = schemas
    assert schema.names == ["x", "tags", "day", "more", "prediction"]
    assert [*map(str, schema.types)] == [
        "int64",
        "list<element: string>",
        "int32",
        "string",
        "int64",
    ]
    assert set(seen.read_text().split()) == {"int64"}
    expected = {(1, 1, None, 2), (2, 1, None, 4), (2**40, None, "m", 2**41), (5, 2, None, 10)}
    assert {
        (row["x"], row["day"], row["more"], row["prediction"]) for row in read(tmp_path / "out")
    } == expected
    pq.write_table(pa.table({"x": ["text"]}), tmp_path / "in" / "day=2" / "9.parquet")
    with pytest.raises(DataError, match=mentioning("9.parquet", "column")):
        predict_parquet(model, tmp_path / "in", tmp_path / "other", inputs="x", returns="bigint")
    wide = [pa.table({"x": [0.5]}), pa.table({"x": [2**53 + 1]})]
    for number, each in enumerate(wide):
        pq.write_table(each, tmp_path / f"{number}.parquet")
    with pytest.raises(DataError, match=mentioning("1.parquet", "'x'", "int64")):
        predict_parquet(
            np.exp,
            [tmp_path / f"{number}.parquet" for number in (0, 1)],
            tmp_path / "w",
            returns="double",
        )


def test_timestamps_as_spark_writes_them_stay_instants(tmp_path: Path) -> None:
    # Arrow's own is nanoseconds
    times = [datetime(2024, 6, 1, 12), datetime(9999, 12, 31), datetime(1, 1, 2), None]
    kind, utc = pa.timestamp("us"), pa.timestamp("us", "UTC")
    columns = {
        "at": pa.array(times, kind),
        "all": pa.array([[each] for each in times], pa.list_(kind)),
        "of": pa.array([[("a", each)] for each in times], pa.map_(pa.string(), kind)),
        "in": pa.array(
            [{"at": each, "x": 1} for each in times], pa.struct([("at", kind), ("x", pa.int64())])
        ),
    }
    pq.write_table(
        pa.table({"x": range(4), **columns}),
        tmp_path / "b.parquet",
        use_deprecated_int96_timestamps=True,
    )
    new = pa.table({"local": pa.array(times, kind), "at": columns["at"].cast(utc), "x": range(4)})
    pq.write_table(new, tmp_path / "a.parquet")
    both = [tmp_path / "b.parquet", tmp_path / "a.parquet"]
    predict_parquet(np.exp, both, tmp_path / "out", inputs="x", returns="double")
    found = pq.read_table(tmp_path / "out")
    assert found.schema.names == ["x", *columns, "local", "prediction"]
    at, every, of, inside, local, _ = found.schema.types[1:]
    assert [at, every.value_type, of.item_type, inside.field("at").type, local] == [
        utc,
        utc,
        utc,
        utc,
        kind,
    ]
    assert found["at"].cast(kind).to_pylist() == times + times
    for name, column in columns.items():
        assert found[name].slice(4).cast(column.type).to_pylist() == column.to_pylist(), name


def test_the_schema_in_footers_matches_the_columns(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    kinds = (
        ["x", "long"],
        ["u", {"type": "udt", "class": "U"}],
        ["gone", "string"],
        ["wide", "integer"],
    )
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in kinds
    ]
    about = {SPARK: json.dumps({"type": "struct", "fields": fields}), "avro.schema": "x, u"}
    wide = pa.array([3], pa.int32())
    table = pa.table(
        {"x": [1], "u": [{"a": 1.0}], "gone": ["g"], "wide": wide}
    ).replace_schema_metadata(about)
    pq.write_table(table, tmp_path / "0.parquet")
    pq.write_table(pa.table({"x": [2], "wide": [2**40]}), tmp_path / "1.parquet")
    both, keep = [tmp_path / "0.parquet", tmp_path / "1.parquet"], ["x", "u", "wide"]
    predict_parquet(np.sqrt, both, tmp_path / "out", inputs="x", keep=keep, returns="double")
    for path in (tmp_path / "out").glob("*.parquet"):
        metadata = pq.read_schema(path).metadata
        assert b"avro.schema" not in metadata  # it says that there are no other columns
        found = {
            field["name"]: field["type"] for field in json.loads(metadata[SPARK.encode()])["fields"]
        }
        # wide is wider now
        assert found == {"x": "long", "u": kinds[1][1], "wide": "long", "prediction": "double"}

    odd = table.append_column("at", pa.array([1], pa.time64("us"))).replace_schema_metadata(about)
    pq.write_table(odd, tmp_path / "odd.parquet")
    predict_parquet(
        np.sqrt, tmp_path / "odd.parquet", tmp_path / "odd", inputs="x", returns="double"
    )
    assert SPARK.encode() not in pq.read_schema(tmp_path / "odd" / "part-00000.parquet").metadata

    frame = pandas.DataFrame(
        {"x": [1.0, 2.0], "c": pandas.Categorical(["b", "a"])}, index=["i", "j"]
    )
    frame.to_parquet(tmp_path / "frame.parquet")
    predict_parquet(
        np.sqrt, tmp_path / "frame.parquet", tmp_path / "frame", inputs="x", returns="double"
    )
    found = pandas.read_parquet(tmp_path / "frame")
    pandas.testing.assert_frame_equal(found[["x", "c"]], frame)


def test_an_input_without_rows_has_the_columns_of_its_path(tmp_path: Path) -> None:
    (tmp_path / "in" / "day=1").mkdir(parents=True)
    pq.write_table(
        pa.table({"x": pa.array([], pa.float64())}), tmp_path / "in" / "day=1" / "0.parquet"
    )
    predict_parquet(
        np.exp, str(tmp_path / "in"), str(tmp_path / "out"), inputs="x", returns="float"
    )
    assert pq.read_schema(tmp_path / "out" / "part-00000.parquet").names == [
        "x",
        "day",
        "prediction",
    ]


def test_several_folders_and_files_are_one_input(tmp_path: Path) -> None:
    for number, name in enumerate(("a/0.parquet", "b/deep/1.parquet", "c.parquet", "b/2.parquet")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"x": [float(number)]}), tmp_path / name)
    given = [tmp_path / "c.parquet", str(tmp_path / "b"), tmp_path / "a"]
    done = predict_parquet(np.negative, given, tmp_path / "out", returns="double")
    assert done.rows == 4
    assert sorted(row["prediction"] for row in read(tmp_path / "out")) == [-3, -2, -1, 0]
    with pytest.raises(DataError, match=mentioning("file", "folder")):
        predict_parquet(
            np.negative, str(tmp_path / "*.parquet"), str(tmp_path / "o"), returns="double"
        )
