"""Predictions for Parquet files: by one process and several, and after a crash."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.errors import DataError, JobFailedError, SettingsError
from farandole.inference import predict_parquet
from farandole.inference.output_files import FILE_BYTES, InputFile, plan_files, share
from tests.inference.parquet_tools import read
from tests.kits.messages import mentioning


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, FILE_BYTES)), max_size=5),
    st.integers(1, 60),
    st.integers(1, 4),
)
def test_each_row_is_in_one_file_of_one_rank(
    files: list[tuple[int, int]], rows: int, size: int
) -> None:
    sources = [
        InputFile(str(number), count, bytes_) for number, (count, bytes_) in enumerate(files)
    ]
    every = plan_files(sources, rows)
    found = [(file.source, row) for file in every for row in range(file.begin, file.end)]
    assert found == [(file, row) for file, (count, _) in enumerate(files) for row in range(count)]
    assert [file.number for file in every] == list(range(len(every)))
    assert sorted(file for rank in range(size) for file in share(every, rank, size)) == every


def test_large_rows_make_small_files() -> None:
    assert [file.end for file in plan_files([InputFile("a", 10, 5 * FILE_BYTES)], 1000)] == [
        2,
        4,
        6,
        8,
        10,
    ]


def total(x: Any) -> Any:
    return x.sum(axis=1)


def test_the_output_is_the_same_for_any_number_of_processes(table: Path, tmp_path: Path) -> None:
    for np_ in (1, 3):
        out = tmp_path / f"out{np_}.parquet"
        done = predict_parquet(
            total,
            str(table),
            str(out),
            np=np_,
            returns="float",
            rows_per_file=np.int64(150),
            batch_size=np.int32(64),
        )
        assert (done.rows, done.files, done.resumed) == (1000, 7, 0)
        rows = read(out)
        assert [row["id"] for row in rows] == list(range(1000))
        assert all(
            row["prediction"] == row["id"] + 1 and row["name"] == f"n{row['id']}" for row in rows
        )
        assert {row["year"] for row in rows} == {2024, 2025}
        assert not [path.name for path in out.iterdir() if path.name.startswith(".")]


def test_columns_of_a_struct_kept_ones_and_rows_that_fail(table: Path, tmp_path: Path) -> None:
    def model(x: Any, number: Any) -> Any:
        if (number == 700).any():
            raise KeyError("700")
        return {"sum": x.sum(axis=1), "twice": 2 * number}

    options: dict[str, Any] = {
        "inputs": ["x", "id"],
        "keep": ["id"],
        "key": "name",
        "returns": "twice int, sum double",
    }
    out = tmp_path / "out"
    predict_parquet(
        model, str(table), str(out), output_columns=["double", "total"], errors="column", **options
    )
    rows = read(out)
    assert list(rows[0]) == ["id", "double", "total", "double_error"]
    assert rows[699] == {"id": 699, "double": 1398, "total": 700.0, "double_error": None}
    assert rows[700] == {
        "id": 700,
        "double": None,
        "total": None,
        "double_error": "KeyError: '700'",
    }
    with pytest.raises(
        DataError,
        match=mentioning("'n700'", "row 100", "KeyError", "'700'"),
    ):
        predict_parquet(model, str(table), str(tmp_path / "other"), **options)


def test_a_crash_costs_no_row_and_doubles_none(table: Path, tmp_path: Path) -> None:
    out, crash, seen = tmp_path / "out", tmp_path / "crash", tmp_path / "seen"
    crash.touch()
    seen.mkdir()

    def model(x: Any) -> Any:
        first = int(x[0, 0])
        if crash.exists() and first >= 300:
            os.kill(os.getpid(), 9)
        (seen / f"{first}-{os.getpid()}").touch()
        return x.sum(axis=1)

    options: dict[str, Any] = {
        "returns": "double",
        "inputs": "x",
        "rows_per_file": 100,
        "batch_size": 100,
    }
    with pytest.raises(JobFailedError, match=r"SIGKILL|signal 9"):
        predict_parquet(model, str(table), str(out), np=2, **options)
    crash.unlink()
    whole = sorted(path.name for path in out.glob("part-*"))
    assert whole
    assert len(whole) < 10
    (out / whole[0]).write_bytes((out / whole[0]).read_bytes()[:-7])  # the machine went down, too
    before = {path.name for path in seen.iterdir()}
    done = predict_parquet(model, str(table), str(out), np=1, **options)
    assert (done.files, done.resumed) == (10, len(whole) - 1)
    assert [row["prediction"] for row in read(out)] == [row + 1 for row in range(1000)]
    again = {int(path.name.split("-")[0]) for path in seen.iterdir() if path.name not in before}
    assert len(again) == 10 - (len(whole) - 1), "only what was missing is predicted again"


def test_an_output_of_something_else_is_not_touched(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options: dict[str, Any] = {"returns": "double", "inputs": "x"}
    predict_parquet(total, str(table), str(out), **options)
    with pytest.raises(SettingsError, match=mentioning("predictions", "columns")):
        predict_parquet(total, str(table), str(out), returns="float", inputs="x")
    predict_parquet(total, str(table), str(out), returns="float", inputs="x", overwrite=True)
    assert pq.read_schema(next(out.glob("part-*"))).field("prediction").type == pa.float32()
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").touch()
    for overwrite in (True, False):
        with pytest.raises(SettingsError, match=r"contains other files|not written"):
            predict_parquet(total, str(table), str(mine), overwrite=overwrite, **options)
    with pytest.raises(SettingsError, match=mentioning("id, x, name, year", "'name'")):
        predict_parquet(total, str(table), str(tmp_path / "o"), inputs=["nam"])
    with pytest.raises(SettingsError, match=mentioning("'name'", "column")):
        predict_parquet(total, str(table), str(tmp_path / "o"), output_columns="name")
    assert not (tmp_path / "o").exists()


def first_byte(value: bytes) -> Any:
    return np.frombuffer(value, np.uint8)[0]


def test_an_output_is_gone_on_with_only_by_what_decides_the_same(
    small: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    custom: dict[str, Any] = {"custom_objects": {"a": 1}}
    options: dict[str, Any] = {
        "decode": {"x": first_byte},
        "returns": "a float",
        "rows_per_file": 3,
        **custom,
    }
    model = lambda x: {"a": x.astype(np.float32)}  # noqa: E731
    predict_parquet(model, str(small), str(out), **options)
    assert predict_parquet(model, str(small), str(out), **options).resumed == 2
    others = [
        {"decode": {"x": lambda value: first_byte(value) + 1}},
        {"custom_objects": {"a": 2}},
        {"output_columns": ["prediction"]},
    ]
    for other in others:
        with pytest.raises(SettingsError, match=mentioning("predictions")):
            predict_parquet(model, str(small), str(out), **{**options, **other})
    bare = pq.read_table(out / "part-00001.parquet").replace_schema_metadata(None)
    pq.write_table(bare, out / "part-00001.parquet")  # of a call that overwrite= put an end to
    assert predict_parquet(model, str(small), str(out), **options).resumed == 1


def test_an_input_rewritten_meanwhile_is_reported(small: Path, tmp_path: Path) -> None:
    def model(x: Any) -> Any:
        os.utime(small, ns=(1, 1))
        return x.astype(np.float32)

    with pytest.raises(DataError, match=mentioning("in.parquet", "overwrite")):
        predict_parquet(
            model, str(small), str(tmp_path / "out"), decode={"x": first_byte}, returns="float"
        )


def test_an_input_is_never_deleted_as_an_output(small: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"decode": {"x": first_byte}, "returns": "float"}
    preds = tmp_path / "preds"
    predict_parquet(np.sqrt, str(small), str(preds), **options)
    (preds / ".notes").touch()
    (preds / ".part-00000.parquet.gone-1").touch()
    (preds / "._farandole.json.gone-1").touch()
    predict_parquet(np.sqrt, str(small), str(preds), **options)
    names = sorted(path.name for path in preds.iterdir())
    assert names == [".notes", "_farandole.json", "part-00000.parquet"]
    (tmp_path / "link").symlink_to(preds)
    for input_, output in (
        (preds, preds),
        (preds, tmp_path / "link"),
        (preds / names[-1], preds),
        (preds, preds / "o"),
    ):
        with pytest.raises(SettingsError, match=mentioning("overlap")):
            predict_parquet(np.sqrt, str(input_), str(output), overwrite=True, **options)
    assert sorted(path.name for path in preds.iterdir()) == names


def test_a_model_that_writes_to_its_inputs_changes_no_column(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    rows = [[-1.0, 2.0], [3.0, -4.0]]
    pq.write_table(pa.table({"x": pa.array(rows, pa.list_(pa.float32()))}), tmp_path / "in.parquet")

    def positive(x: Any) -> Any:
        return np.maximum(x, 0, out=x).sum(axis=1)

    head = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.ones_(head.weight)
    for number, model in enumerate(
        (positive, torch.nn.Sequential(torch.nn.ReLU(inplace=True), head))
    ):
        out = tmp_path / f"{number}.parquet"
        predict_parquet(
            model, str(tmp_path / "in.parquet"), str(out), inputs=["x"], returns="float", np=1
        )
        assert [(row["x"], row["prediction"]) for row in read(out)] == [
            (rows[0], 2.0),
            (rows[1], 3.0),
        ]
