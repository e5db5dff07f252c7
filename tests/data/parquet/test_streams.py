"""Folders of streaming queries: the log names the valid files."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from farandole.data import from_parquet
from farandole.errors import DataError
from farandole.inference import predict_parquet
from tests.kits.messages import mentioning, mentions

PREFIX = "file:///where/it%20was/out"


def write(folder: Path, name: str, rows: Sequence[int]) -> str:
    """Write a file, and return its name as in a log."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"x": rows}), folder / name)
    return f"{PREFIX}/{name.replace(' ', '%20')}"


def log(folder: Path, batch: str, paths: Sequence[str], action: str = "add") -> None:
    (folder / "_spark_metadata").mkdir(exist_ok=True)
    lines = [
        json.dumps({"path": path, "size": 1, "isDir": False, "action": action}) for path in paths
    ]
    (folder / "_spark_metadata" / batch).write_text("\n".join(["v1", *lines]))


def rows(*paths: Path) -> list[int]:
    (batch,) = from_parquet([str(path) for path in paths], columns=["x"]).numpy(
        100, rank=0, size=1, shuffle=False
    )
    return sorted(batch["x"].tolist())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a moved query with partitions; batches 0 and 1 are in a compacted log."""
    made = tmp_path / "at=1" / "moved"
    found = [
        write(made, f"p q={number % 2}/part-{number}.parquet", [number]) for number in range(4)
    ]
    log(made, "0", ["gone"])  # as Spark leaves it for a while
    log(made, "1.compact", found[:3])
    log(made, "2", [])
    log(made, "3", found[3:])
    write(made, "p q=1/part-x.parquet", [7])
    (made / "p q=0" / "part-y.parquet").write_bytes(b"PAR1, torn")
    (made / "_spark_metadata" / ".3.crc").touch()
    (made / "_spark_metadata" / ".4.0b1.tmp").touch()
    return made


def test_only_files_that_the_log_names_are_read(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "farandole"):
        data = from_parquet(folder)
    assert [column.name for column in data.columns] == ["x", "p q"]
    assert data.rows == 4
    assert mentions(caplog.text, "2", "6", "Spark")
    assert rows(folder) == [0, 1, 2, 3]
    assert rows(folder / "p q=1") == [1, 3]
    write(folder.parent, "other.parquet", [8])
    assert rows(folder, folder.parent / "other.parquet") == [0, 1, 2, 3, 8]
    assert (
        predict_parquet(
            lambda x: x, folder, folder.parents[1] / "out", inputs="x", returns="bigint"
        ).rows
        == 4
    )


def test_a_log_that_does_not_tell(folder: Path) -> None:
    (folder / "p q=1" / "part-3.parquet").rename(folder / "part.parquet")
    with pytest.raises(
        DataError,
        match=mentioning("/where/it was/out/p q=1/part-3.parquet"),
    ):
        from_parquet(folder)
    assert rows(folder / "p q=0") == [0, 2]
    log(folder, "4", ["file:///where/it%20was/out/p%20q=1/part-3.parquet"], "delete")
    assert rows(folder) == [0, 1, 2]
    (folder / "_spark_metadata" / "3").unlink()
    with pytest.raises(
        DataError,
        match=mentioning("1", "4", "from_spark", "spark.read.parquet"),
    ):
        from_parquet(folder)
    (folder / "_spark_metadata" / "3").write_text("v2")
    with pytest.raises(DataError, match=mentioning("_spark_metadata/3", "'v2'", "'v1'")):
        from_parquet(folder)
    (folder / "_spark_metadata" / "1.compact").unlink()
    (folder / "_spark_metadata" / "0").unlink()
    with pytest.raises(DataError, match=mentioning("0", "4", "batches")):
        from_parquet(folder)
