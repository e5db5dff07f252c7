"""Stores: Horovod's paths, contents, and kept runs, on a disk and remotely."""

from __future__ import annotations

import datetime
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from farandole.data import DBFSLocalStore, FilesystemStore, HDFSStore, LocalStore, Store
from farandole.errors import DataError
from tests.kits.messages import mentioning

fsspec = pytest.importorskip("fsspec")


@pytest.fixture(params=["disk", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """``memory://`` represents object stores: without folders, and without local paths."""
    if request.param == "disk":
        yield Store.create(str(tmp_path / "work"))
        return
    url = f"memory://{uuid.uuid4().hex}"
    made = Store.create(url + "/prefix/")
    yield made
    made.delete(url)


def test_paths(tmp_path: Path) -> None:
    store = Store.create(f"file://{tmp_path}")
    assert type(store) is FilesystemStore is LocalStore
    assert store.get_train_data_path() == f"{tmp_path}/intermediate_train_data"
    assert store.get_val_data_path(3) == f"{tmp_path}/intermediate_val_data.3"
    assert store.get_test_data_path(0) == f"{tmp_path}/intermediate_test_data.0"
    assert store.get_runs_path() == f"{tmp_path}/runs"
    assert store.get_checkpoint_path("a") == f"{tmp_path}/runs/a"
    assert store.get_checkpoint_filename() == "checkpoint"
    assert store.get_logs_path("a") == f"{tmp_path}/runs/a/logs"
    other = FilesystemStore(
        "s3a://bucket/x", train_path="s3://t", save_runs=False, checkpoint_filename="c.pt"
    )
    assert other.prefix_path == "s3://bucket/x"
    assert (other.get_train_data_path(), other.get_runs_path()) == ("s3://t", "s3://bucket/x/runs")
    assert (other.saving_runs(), other.get_checkpoint_path("a"), other.get_logs_path("a")) == (
        False,
        None,
        None,
    )
    assert other.get_checkpoint_filename() == "c.pt"
    for name in ("../a", "..", "", "*", "lr[12]"):
        with pytest.raises(DataError, match=mentioning("folder", "letters")):
            store.get_run_path(name)
    assert (
        Store.create(str(tmp_path), runs_path=f"{tmp_path}/x/").get_run_path("a")
        == f"{tmp_path}/x/a"
    )
    with pytest.raises(DataError, match=mentioning("s3://b/runs", "store")):
        Store.create(str(tmp_path), runs_path="s3://b/runs")


def test_contents_and_runs(store: Store) -> None:
    assert store.runs() == []
    assert store.get_checkpoints("one") == []
    for number in (1, 9, 10):
        path = f"{store.get_run_path('one')}/epoch-{number}.ckpt"
        store.write_text(path, f"epoch {number}")
    assert [os.path.basename(path) for path in store.get_checkpoints("one")] == [
        "epoch-1.ckpt",
        "epoch-9.ckpt",
        "epoch-10.ckpt",
    ]
    there = cloudpickle.loads(cloudpickle.dumps(store))
    assert there.read(path) == b"epoch 10"
    store.write(path, b"new")
    assert there.read(path) == b"new"
    gone = store.retain_checkpoints("one", 1)
    assert [os.path.basename(each) for each in gone] == ["epoch-1.ckpt", "epoch-9.ckpt"]
    assert store.get_checkpoints("one") == [path]
    assert (store.exists(path), store.exists(gone[0])) == (True, False)
    store.delete(gone[0])  # not there: no error
    with pytest.raises(DataError, match=mentioning("checkpoints=0", "1")):
        store.retain_checkpoints("one", 0)


def test_local_files_and_folders_are_copied_to_the_store(store: Store, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    (mine / "inner").mkdir(parents=True)
    (mine / "model.pt").write_bytes(b"weights")
    (mine / "inner" / "log").write_bytes(b"text")
    run = store.get_run_path("r")
    store.copy(str(mine / "model.pt"), f"{run}/model.pt")
    store.copy(str(mine), f"{run}/all", recursive=True)
    assert store.read(f"{run}/model.pt") == b"weights"
    assert (store.read(f"{run}/all/model.pt"), store.read(f"{run}/all/inner/log")) == (
        b"weights",
        b"text",
    )


def test_names_are_no_patterns(store: Store) -> None:
    names = ["lr1", "lr2", "lr[12]", "lr?"]
    for name in names:
        store.write(f"{store.get_runs_path()}/{name}/file", b"x")
    for name in ("lr[12]", "lr?"):
        store.delete(f"{store.get_runs_path()}/{name}")
    assert sorted(store.runs()) == ["lr1", "lr2"]
    with pytest.raises(DataError, match=mentioning("run_id='*'", "name")):
        store.delete_run("*")
    assert sorted(store.retain(0)) == ["lr1", "lr2"]


@pytest.mark.parametrize(
    "key", ["mtime", "LastModified", "last_modified", "updated", "created", "other"]
)
def test_modification_times_of_all_file_systems_are_read(
    tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.create(str(tmp_path))
    for name in ("a", "b"):
        store.write(f"{store.get_run_path(name)}/file", b"x")
    day = {
        name: datetime.datetime(2026, 1, 3 - place, tzinfo=datetime.timezone.utc)
        for place, name in enumerate("ab", 1)
    }

    def find(path: str, detail: bool) -> dict[str, Any]:
        time: Any = day[os.path.basename(path)]
        return {f"{path}/file": {key: time.isoformat() if key == "updated" else time}}

    monkeypatch.setattr(store.fs, "find", find)
    if key == "other":
        with pytest.raises(DataError, match=mentioning("'a'")):
            store.retain(1)
    assert store.runs() == (["a", "b"] if key == "other" else ["b", "a"])


def test_runs_that_are_kept(tmp_path: Path) -> None:
    store = Store.create(str(tmp_path))
    for number, run_id in enumerate(("c", "a", "b"), 1):
        path = f"{store.get_run_path(run_id)}/logs/x"
        store.write_text(path, run_id)
        for each in (path, os.path.dirname(path), store.get_run_path(run_id)):
            os.utime(each, (number, number))
    assert store.runs() == ["c", "a", "b"]
    os.utime(f"{store.get_run_path('c')}/logs/x", (9, 9))
    assert store.runs() == ["a", "b", "c"]
    assert store.retain(2) == ["a"]
    assert store.runs() == ["b", "c"]
    assert store.retain(0) == ["b", "c"]
    with pytest.raises(DataError, match=mentioning("runs=-1", "0")):
        store.retain(-1)
    assert [name for name in os.listdir(tmp_path / "runs") if name.startswith(".")] == []


def test_a_rank_writes_where_it_can_and_brings_it_to_the_store(store: Store) -> None:
    remote = cloudpickle.loads(cloudpickle.dumps(store.to_remote("one", dataset_idx=2)))
    assert remote.train_data_path == store.get_train_data_path(2)
    with remote.get_local_output_dir() as folder:
        (Path(folder) / "logs").mkdir()
        file = Path(folder) / "logs" / "events"
        file.write_text("first")
        remote.sync(folder)
        assert store.read(f"{remote.logs_path}/events") == b"first"
        file.write_text("and more")
        remote.sync(folder)
    assert store.read(f"{remote.logs_path}/events") == b"and more"
    assert store.runs() == ["one"]
    assert os.path.exists(folder) == (folder == remote.run_path)


def test_hdfs_by_url_and_by_arguments() -> None:
    for store in (Store.create("hdfs://name:8020/a/b"), HDFSStore("/a/b", "name", 8020, user="me")):
        assert type(store) is HDFSStore
        assert store.get_runs_path() == "hdfs://name:8020/a/b/runs"
    assert store.storage_options == {"user": "me"}
    assert HDFSStore("/a/b", "name", 8020, runs_path="/c/").get_runs_path() == "hdfs://name:8020/c"
    assert HDFSStore("hdfs:///a").prefix_path == "hdfs:///a"
    with pytest.raises(
        ValueError,
        match=mentioning("HDFS", "hdfs://one/a", "one", "two"),
    ):
        HDFSStore("hdfs://one/a", host="two")
    with pytest.raises(ValueError, match=mentioning("URL", "hdfs://one")):
        HDFSStore("hdfs://one")


def test_databricks(monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("dbfs:/tmp/x", "/dbfs/tmp/x", "file:///dbfs/tmp/x", "file:/dbfs/tmp/x"):
        store = DBFSLocalStore(path)
        assert store.get_checkpoint_path("a") == "/dbfs/tmp/x/runs/a"
    assert DBFSLocalStore("dbfs:/Volumes/a/b").prefix_path == "/Volumes/a/b"
    with pytest.raises(
        ValueError,
        match=mentioning("DBFS", "/tmp/x"),
    ):
        DBFSLocalStore("/tmp/x")
    assert type(Store.create("dbfs:/tmp/x")) is FilesystemStore
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "16.4")
    assert type(Store.create("dbfs:/tmp/x")) is DBFSLocalStore
    assert type(Store.create("/tmp/x")) is FilesystemStore


def test_a_package_that_is_missing_is_named_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "fsspec.core", None)
    with pytest.raises(ImportError, match=mentioning("pip install fsspec", "store")):
        FilesystemStore("/tmp/x").exists("/tmp")
