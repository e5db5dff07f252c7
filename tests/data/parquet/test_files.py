"""Files and folders: tables of other formats, broken files and file systems."""

from __future__ import annotations

import pickle
from pathlib import Path

import fsspec
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from farandole.data import Store, from_parquet, from_spark
from farandole.errors import DataError
from tests.data.parquet.tools import written
from tests.kits.messages import mentioning


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


def test_a_store_recognizes_parquet_data(tmp_path: Path) -> None:
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
