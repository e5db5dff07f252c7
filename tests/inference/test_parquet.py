"""Predictions for Parquet files: by one process and several, after a crash, and by the command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole import cli
from farandole.errors import DataError, JobFailedError, SettingsError
from farandole.inference import predict_parquet
from farandole.inference.output_files import FILE_BYTES, InputFile, plan_files, share
from tests.kits.messages import mentioning

SPARK = "org.apache.spark.sql.parquet.row.metadata"


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


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """1000 rows in two files of a folder."""
    folder = tmp_path / "in.parquet"
    for year, rows in ((2024, range(600)), (2025, range(600, 1000))):
        (folder / f"year={year}").mkdir(parents=True)
        made = pa.table(
            {
                "id": list(rows),
                "x": [[float(row), 1.0] for row in rows],
                "name": [f"n{row}" for row in rows],
            }
        )
        pq.write_table(made, folder / f"year={year}" / "a.parquet", row_group_size=130)
    return folder


def read(path: Path) -> list[dict[str, Any]]:
    return list(pq.read_table(path).to_pylist())


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
        with pytest.raises(SettingsError, match=r"holds other files|not written"):
            predict_parquet(total, str(table), str(mine), overwrite=overwrite, **options)
    with pytest.raises(SettingsError, match=mentioning("id, x, name, year", "'name'")):
        predict_parquet(total, str(table), str(tmp_path / "o"), inputs=["nam"])
    with pytest.raises(SettingsError, match=mentioning("'name'", "column")):
        predict_parquet(total, str(table), str(tmp_path / "o"), output_columns="name")
    assert not (tmp_path / "o").exists()


def test_an_input_without_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([], pa.float64())}), tmp_path / "in.parquet")
    done = predict_parquet(
        np.exp, str(tmp_path / "in.parquet"), str(tmp_path / "out"), returns="float"
    )
    assert (done.rows, read(tmp_path / "out")) == (0, [])
    assert pq.read_table(tmp_path / "out").column_names == ["x", "prediction"]


def test_the_command(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(2, 1)
    torch.save(module, tmp_path / "m.pt")
    out = tmp_path / "out.parquet"
    command = [
        sys.executable,
        "-m",
        "farandole.cli",
        "predict",
        "--model",
        str(tmp_path / "m.pt"),
        "--input",
        str(table),
    ]
    done = subprocess.run(
        [
            *command,
            "--output",
            str(out),
            "-np",
            "2",
            "--keep",
            "id",
            "--returns",
            "float",
            "--rows-per-file",
            "300",
        ],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1000 rows in 4 files, ")
    rows = read(out)
    expected = (
        module(torch.tensor([[float(row), 1.0] for row in range(1000)])).detach().numpy()[:, 0]
    )
    np.testing.assert_allclose([row["prediction"] for row in rows], expected, rtol=1e-5)
    assert list(rows[0]) == ["id", "prediction"]

    (tmp_path / "own.py").write_text(
        "def load():\n    return lambda x, n: x[:, 0] + n\n\n\ndef bad(x, n):\n    return x[0]\n"
    )
    other = [
        "predict",
        "--input",
        str(table),
        "--output",
        str(tmp_path / "o"),
        "--columns",
        "x,id",
        "--returns",
        "double",
    ]
    assert (
        cli.main([*other, "--model", f"{tmp_path}/own.py:load", "--shape", "x=2", "--fill", "id=0"])
        == 0
    )
    assert capsys.readouterr().out.startswith("1000 rows in 2 files")
    for wrong, why in (
        (["--model", f"{tmp_path}/own.py:none"], "has no function 'none'"),
        (["--model", f"{tmp_path}/own.py:bad", "--overwrite"], "gave 2 rows for 256"),
        (["--model", f"{tmp_path}/own.py:load", "--shape", "x"], "--shape x must be COLUMN=VALUE"),
        (
            ["--model", f"{tmp_path}/own.py:load", "--shape", "x=2,y"],
            "--shape x=2,y must be COLUMN=SIZE,SIZE,..., in",
        ),
        (["--model", f"{tmp_path}/own.py:load", "--shape=--"], "argument --shape: "),
        (["--model", f"{tmp_path}/own.py:load", "--threads=--"], "argument --threads: "),
        (["--model", ":"], "':' names no function: write FILE.py:FUNCTION"),
        (["--model", "..own:load"], "'..own:load' names no function"),
        (["--model", f"{tmp_path}/own.py:load", "-np", "0"], "-np 0 must be at least 1"),
    ):
        assert cli.main([*other, *wrong]) == 2
        assert why in capsys.readouterr().err


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Six rows of bytes."""
    path = tmp_path / "small" / "in.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"x": [bytes([row]) for row in range(6)]}), path)
    return path


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


@pytest.mark.parametrize(
    ("number", "np"), [(signal.SIGTERM, 1), (signal.SIGTERM, 2), (signal.SIGKILL, 1)]
)
def test_an_ended_command_leaves_nothing_in_temporary_folders(
    tmp_path: Path, number: int, np: int
) -> None:
    """Nor has it anything there, once all of its processes have opened the model."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    (tmp_path / "own.py").write_text(
        "import time\ndef model(x):\n    time.sleep(x.max())\n    return x\n"
    )
    command = [
        sys.executable,
        "-m",
        "farandole",
        "predict",
        "--model",
        f"{tmp_path}/own.py:model",
        "--returns",
        "double",
    ]
    command += [
        "--input",
        str(tmp_path / "in.parquet"),
        "--output",
        str(tmp_path / "out"),
        "--overwrite",
    ]
    command += ["--rows-per-file", "1", "-np", str(np)]
    env = {**os.environ, "TMPDIR": str(temporary)}
    pq.write_table(pa.table({"x": [100.0] * np}), tmp_path / "in.parquet")
    with subprocess.Popen(command, env=env) as running:
        while len(list(tmp_path.glob("out/.part*"))) < np:
            assert running.poll() is None
            time.sleep(0.05)
        assert not list(temporary.iterdir())
        running.send_signal(number)
    assert running.returncode in (128 + signal.SIGTERM, -signal.SIGKILL)
    assert len(list(tmp_path.glob("out/.part*"))) == (number == signal.SIGKILL)
    pq.write_table(pa.table({"x": [0.0] * np}), tmp_path / "in.parquet")
    subprocess.run(command, env=env, check=True)
    assert [*temporary.iterdir(), *tmp_path.glob("out/.part*")] == []


def test_an_input_that_is_written_anew_meanwhile_is_told(small: Path, tmp_path: Path) -> None:
    def model(x: Any) -> Any:
        os.utime(small, ns=(1, 1))
        return x.astype(np.float32)

    with pytest.raises(DataError, match=mentioning("written", "read")):
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
        with pytest.raises(SettingsError, match=mentioning("each other")):
            predict_parquet(np.sqrt, str(input_), str(output), overwrite=True, **options)
    assert sorted(path.name for path in preds.iterdir()) == names


def test_the_command_resumes_the_output_of_the_same_function(small: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    text = "import numpy as np\nclass Twice:\n    def __call__(self, x): return 2.0 * x\n"
    own.write_text(
        f"{text}def load():\n    return Twice().__call__\ndef first(value):\n    return"
        " np.array(value[0])\n"
    )
    command = [
        "predict",
        "--input",
        str(small),
        "--output",
        str(tmp_path / "out"),
        "--model",
        f"{own}:load",
    ]
    command += ["--decode", f"x={own}:first", "--returns", "double"]
    assert [cli.main(command), cli.main(command)] == [0, 0]
    assert [row["prediction"] for row in read(tmp_path / "out")] == [2.0 * row for row in range(6)]
    own.write_text(own.read_text().replace("2.0", "3.0"))
    assert cli.main(command) == 2


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


def test_what_footers_say_of_columns_stays_right(tmp_path: Path) -> None:
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


def test_numbers_and_names_that_cannot_be_are_told_at_once(small: Path, tmp_path: Path) -> None:
    for wrong, why in (
        ({"np": 0}, ("np=0", "1", "number")),
        ({"rows_per_file": 0}, ("rows_per_file=0", "1", "number")),
        ({"rows_per_file": 1.5}, "rows_per_file=1.5"),
        ({"threads": -1}, ("threads=-1", "0", "number")),
        ({"inputs": ["x", "x"]}, ("'x'", "inputs")),
        ({"keep": ["x", "x"]}, ("'x'", "name")),
        (
            {"returns": "a float, b float", "output_columns": ["p", "p"]},
            ("'p'", "columns"),
        ),
    ):
        options: dict[str, Any] = {"returns": "float", **wrong}
        with pytest.raises(SettingsError, match=mentioning(why)):
            predict_parquet(np.sqrt, str(small), str(tmp_path / "out"), **options)
    assert not (tmp_path / "out").exists()
