"""Tasks in the driver's own JVM, ``local[2]``: the whole road without a cluster, and a stopped
session.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import farandole
import farandole.data.written_frames
from farandole.data import from_spark
from farandole.data.spark_names import write_folder
from farandole.errors import DataError, JobFailedError, SettingsError
from farandole.spark import HorovodRunner, log_to_driver, run
from tests.job.launch.tools import read_pids
from tests.kits.messages import mentioning, mentions
from tests.spark import tools


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with tools.session("local[2]") as found:
        yield found


def exchanged(scale: float) -> tuple[int, int, float]:
    """Return the sum of the ranks' values, without a framework."""
    import numpy as np

    from farandole.core.api.objects import allgather_object
    from farandole.job import context

    context.init()
    values = allgather_object(np.float64(scale * (context.rank() + 1)))
    log_to_driver(f"rank {context.rank()} of {context.size()}")
    return context.rank(), context.local_size(), float(sum(values))


def wait(folder: str) -> None:
    path = Path(folder) / f"{os.environ['FARANDOLE_RANK']}.tmp"
    path.write_text(f"{os.getpid()}\n")
    path.rename(path.with_suffix(".pid"))
    time.sleep(1000)


def test_the_value_of_rank_0(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with tools.Clean(spark):
        assert HorovodRunner(np=2).run(exchanged, scale=1.5) == (0, 2, 4.5)
    assert sorted(capsys.readouterr().out.splitlines()) == ["rank 0 of 2", "rank 1 of 2"]
    assert run(exchanged, (2.0,), num_proc=2) == [(0, 2, 6.0), (1, 2, 6.0)]
    assert farandole.Runner(np=1, launcher="spark").run(exchanged, scale=1.0) == (0, 1, 1.0)


def test_more_ranks_than_cores(spark: Any) -> None:
    with pytest.raises(SettingsError) as caught:
        HorovodRunner(np=3).run(print)
    assert str(caught.value) == (
        "np=3 ranks need 3 task slots at the same time; local[2] has 2 task slots in the driver. "
        "Use np=2 or less, or start the session with .master('local[3]')"
    )


def test_hosts_are_the_clusters_business(spark: Any) -> None:
    with pytest.raises(SettingsError, match=mentioning("launcher", "spark", "a:2")):
        farandole.run(print, np=2, launcher="spark", hosts="a:2")


def test_tasks_that_do_not_get_their_turn_in_time(spark: Any, tmp_path: Path) -> None:
    def busy(_: Any) -> Any:
        (tmp_path / "busy").touch()
        while not (tmp_path / "go").exists():
            time.sleep(0.05)
        return iter(())

    thread = threading.Thread(
        target=lambda: spark.sparkContext.parallelize([0], 1).mapPartitions(busy).collect()
    )
    thread.start()
    assert tools.wait_until((tmp_path / "busy").exists)
    try:
        with pytest.raises(farandole.errors.RendezvousError) as caught:
            run(print, num_proc=2, start_timeout=1.0)
    finally:
        (tmp_path / "go").touch()
        thread.join()
    assert str(caught.value).startswith(
        "Timed out waiting for Spark tasks to start (0 of 2 Spark tasks started). Please "
    )
    assert mentions(str(caught.value), "start_timeout", "parameter")
    with tools.Clean(spark):
        assert HorovodRunner(np=2).run(exchanged, scale=1.0)[2] == 3.0


def test_a_failure_and_an_interrupt_leave_the_session_usable(spark: Any, tmp_path: Path) -> None:
    with (
        tools.Clean(spark),
        pytest.raises(JobFailedError, match=mentioning("ZeroDivisionError")),
    ):
        HorovodRunner(np=2).run(lambda: 1 / 0)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(
        target=lambda: (read_pids(tmp_path, 2, 100.0), os.kill(os.getpid(), signal.SIGINT))
    )
    try:
        thread.start()
        with tools.Clean(spark), pytest.raises(KeyboardInterrupt):
            HorovodRunner(np=2).run(wait, folder=str(tmp_path))
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)
    with tools.Clean(spark):
        assert HorovodRunner(np=2).run(exchanged, scale=1.0)[2] == 3.0


def test_an_interrupt_before_the_tasks_have_started(spark: Any, tmp_path: Path) -> None:
    def busy(_: Any) -> Any:
        (tmp_path / "busy").touch()
        while not (tmp_path / "go").exists():
            time.sleep(0.05)
        return iter(())

    other = threading.Thread(
        target=lambda: spark.sparkContext.parallelize([0], 1).mapPartitions(busy).collect()
    )
    other.start()
    assert tools.wait_until((tmp_path / "busy").exists)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            HorovodRunner(np=2).run(print)
    finally:
        timer.cancel()
        (tmp_path / "go").touch()
        other.join()
        signal.signal(signal.SIGINT, before)
    with tools.Clean(spark):
        assert HorovodRunner(np=2).run(exchanged, scale=1.0)[2] == 3.0


def rows_of(data: Any, batch_size: int) -> list[int]:
    """Return the numbers of the rows that a rank reads."""
    found = []
    for x, y in data.numpy(batch_size, seed=3):
        assert x["vector"].tolist() == [[0, row, 0] if row % 2 else [row, 1, 2] for row in y]
        assert x["array"].tolist() == [[row, row] for row in y]
        found += y.tolist()
    return found


def check_that_files_are_found_again(spark: Any, folder: Path) -> None:
    """For the same plan and names, over unchanged files; also by two threads at the same time."""

    def written(*columns: str) -> Any:
        return from_spark(spark.read.parquet(str(folder)).selectExpr(*columns))

    with ThreadPoolExecutor(2) as threads:
        one, two = threads.map(lambda _: written("id as x", "-id as y"), range(2))
    with one, two, written("id as y", "-id as x") as swapped:
        assert one.path == two.path != swapped.path
        part = next(folder.glob("*.parquet"))
        before = part.stat()
        os.utime(part, (1, 1))  # as if it were overwritten
        with written("id as x", "-id as y") as later:
            assert later.path != one.path
        mixed = [
            spark.read.parquet(str(folder)).crossJoin(spark.range(2).toDF("n")) for _ in range(2)
        ]
        with from_spark(mixed[0], labels="n") as three, from_spark(mixed[1], labels="n") as four:
            assert three.path != four.path  # not of files alone: it may have changed
        check_that_no_others_are_found(spark, folder)
        # its own handle would tell, too
        os.utime(part, ns=(before.st_atime_ns, before.st_mtime_ns))


def check_that_no_others_are_found(spark: Any, folder: Path) -> None:
    """Equal plans with different rows: a subquery, a function, the time."""
    from pyspark.sql import functions as F

    other = folder.parent / "least.txt"
    files = spark.read.parquet(str(folder)).select("id")

    def above() -> Any:
        spark.read.text(str(other)).createOrReplaceTempView("least")
        return files.where("id > (SELECT max(CAST(value AS INT)) FROM least)")

    other.write_text("97\n")
    with from_spark(above()) as few:
        other.write_text("9\n")
        with from_spark(above()) as many:
            assert (few.rows, many.rows) == (3, 91)
    kept = above().cache()
    with from_spark(kept) as many:
        kept.unpersist()
        other.write_text("98\n")
        with from_spark(kept) as few:
            assert (few.rows, many.rows) == (2, 91)
    other.unlink()
    plus = F.udf(lambda number: number + 1, "bigint")
    for column in (plus("id"), F.unix_timestamp(F.current_timestamp())):
        with (
            from_spark(files.select(column.alias("id"))) as one,
            from_spark(files.select(column.alias("id"))) as two,
        ):
            assert one.path != two.path


def test_a_dataframe_as_data_on_the_ranks(spark: Any, tmp_path: Path) -> None:
    """Written once, opened where ranks read it, and removed afterwards in every case."""
    from pyspark.ml.linalg import Vectors

    rows = [
        (
            row,
            Vectors.sparse(3, {1: row}) if row % 2 else Vectors.dense(row, 1, 2),
            [float(row)] * 2,
            "text",
        )
        for row in range(101)
    ]
    frame = spark.createDataFrame(rows, ["id", "vector", "array", "other"]).repartition(3)
    spark.conf.set("spark.farandole.data.dir", str(tmp_path))
    front = f"farandole-data-{socket.gethostname()}-{2**22 + 1}-1"
    # of a driver that was killed
    dead = tmp_path / f"{front}-{os.stat('/proc/self/ns/pid').st_ino}-0"
    unknown = tmp_path / f"{front}-1-0"  # of another container's, perhaps
    dead.mkdir()
    unknown.mkdir()
    named = {"features": ["vector", "array"], "labels": "id"}
    chosen = frame.where("id >= 0")
    with tools.Clean(spark), from_spark(chosen, **named) as data:
        unknown.rmdir()
        (folder,) = tmp_path.iterdir()
        assert data.path == str(folder)
        again = from_spark(chosen, labels=["id"], columns=None, features=["vector", "array"])
        assert again.path == data.path
        with from_spark(frame.where("id < 50"), **named) as other:
            assert other.path != data.path
        assert [*tmp_path.iterdir()] == [folder]
        check_that_files_are_found_again(spark, folder)
        assert [*tmp_path.iterdir()] == [folder]
        written = spark.read.parquet(data.path)
        assert written.columns == ["vector", "array", "id"]
        assert written.count() == 101
        assert data.rows == 101
        alone = farandole.run(rows_of, (data, 16), np=1)[0]
        assert sorted(alone) == list(range(101))
        assert HorovodRunner(np=2).run(rows_of, data=data, batch_size=8) == alone[::2]
        data.delete()
        assert folder.exists()  # another handle has it
        again.delete()
        again.delete()
        assert not folder.exists()
    assert [*tmp_path.iterdir()] == []


def test_a_driver_without_pyarrow_writes_and_cannot_read(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pyarrow", "pyarrow.fs", "pyarrow.dataset"):
        monkeypatch.setitem(sys.modules, name, None)
    with from_spark(spark.range(3), parent=str(tmp_path)) as data:
        assert list(tmp_path.iterdir()) == [Path(data.path)]
        with pytest.raises(ImportError, match=mentioning("Parquet", "pip install pyarrow")):
            data.numpy(8)


def test_a_dataframe_that_cannot_be_data(spark: Any, tmp_path: Path) -> None:
    spark.conf.set("spark.farandole.data.dir", str(tmp_path))
    frame = spark.createDataFrame([(1, None), (2, 3)], "a int, b int")
    with pytest.raises(DataError, match=mentioning("column c", "a, b")):
        from_spark(frame, features="a", labels="c")
    with tools.Clean(spark), pytest.raises(Exception, match="no such row"):
        from_spark(frame.selectExpr("if(a = 2, raise_error('no such row'), a) as a"))
    with pytest.raises(DataError, match=mentioning("'b'", "DataFrame")):
        from_spark(frame)
    with pytest.raises(DataError, match=mentioning("DataFrame", "rows")):
        from_spark(frame.where("a > 5"))
    for url, why in (
        ("s3a://b", "Class org.apache.hadoop.fs.s3a.S3AFileSystem not found"),
        ("s3://b", 'scheme "s3"'),
    ):
        with pytest.raises(DataError, match=mentioning(url, why)):
            from_spark(frame.select("a"), parent=url)
    assert [*tmp_path.iterdir()] == []
    left = from_spark(frame.select("a"))  # it is deleted at the end of the process
    assert Path(left.path).exists()
    farandole.data.written_frames.remove_all()
    assert [*tmp_path.iterdir()] == []
    spark.conf.unset("spark.farandole.data.dir")
    assert write_folder(spark) == tempfile.gettempdir()


def test_a_dataframe_of_files_of_a_delta_table(spark: Any, tmp_path: Path) -> None:
    """Read as plain files in its folder, or in a parent: some have deleted rows."""
    table = tmp_path / "all of them" / "table"
    spark.range(3).selectExpr("id", "1 as day").write.partitionBy("day").parquet(f"file://{table}")
    above = spark.read.option("recursiveFileLookup", "true")
    with from_spark(above.parquet(str(table.parent))) as data:
        assert data.rows == 3
    (table / "_delta_log").mkdir()
    part = next((table / "day=1").glob("*.parquet"))
    for path, reader in ((table, spark.read), (table / "day=1", spark.read), (table.parent, above)):
        with pytest.raises(
            DataError, match=mentioning("Delta", "/all", "them/table", "format('delta')")
        ):
            from_spark(spark.range(1).union(reader.parquet(str(path)).select("id")))
    with from_spark(spark.read.parquet(str(part))) as data:  # which are those that the log names
        assert data.rows < 4


def test_spark_connect_has_no_tasks_for_ranks(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")  # its server may be in this process
    with pytest.raises(SettingsError, match=mentioning("Spark", "session")):
        HorovodRunner(np=2).run(print)


def test_the_session_is_stopped_meanwhile(spark: Any, tmp_path: Path) -> None:
    """(The last test of this session.)"""
    thread = threading.Thread(target=lambda: (read_pids(tmp_path, 2, 100.0), spark.stop()))
    thread.start()
    began = time.monotonic()
    with pytest.raises(JobFailedError, match=mentioning("Spark", "task")):
        HorovodRunner(np=2).run(wait, folder=str(tmp_path))
    assert time.monotonic() - began < tools.LIMIT
    thread.join()
    assert tools.wait_until(lambda: not tools.left(), tools.LIMIT)
    with pytest.raises(SettingsError, match=mentioning("SparkContext")):
        run(print, num_proc=2)
    with tools.session("local[2]") as fresh, tools.Clean(fresh):
        assert HorovodRunner(np=2).run(exchanged, scale=1.0)[2] == 3.0
