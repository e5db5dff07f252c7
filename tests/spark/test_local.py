"""Tasks in the driver's own JVM, ``local[2]``: the whole way without a cluster, and a session that is stopped."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import farandole
from farandole.errors import JobFailedError, SettingsError
from farandole.spark import HorovodRunner, log_to_driver, run
from tests.launch.tools import read_pids
from tests.spark import tools


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with tools.session("local[2]") as found:
        yield found


def exchanged(scale: float) -> tuple[int, int, float]:
    """The sum of what the ranks give, without a framework."""
    import numpy as np

    from farandole import context
    from farandole.frontend.objects import allgather_object

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
    with pytest.raises(SettingsError, match="with launcher 'spark', the cluster says where ranks run"):
        farandole.run(print, np=2, launcher="spark", hosts="a:2")


def test_tasks_that_do_not_get_their_turn_in_time(spark: Any, tmp_path: Path) -> None:
    def busy(_: Any) -> Any:
        (tmp_path / "busy").touch()
        while not (tmp_path / "go").exists():
            time.sleep(0.05)
        return iter(())

    thread = threading.Thread(target=lambda: spark.sparkContext.parallelize([0], 1).mapPartitions(busy).collect())
    thread.start()
    assert tools.wait_until((tmp_path / "busy").exists, 30)
    try:
        with pytest.raises(farandole.errors.RendezvousError) as caught:
            run(print, num_proc=2, start_timeout=1.0)
    finally:
        (tmp_path / "go").touch()
        thread.join()
    assert str(caught.value).startswith(
        "Timed out waiting for Spark tasks to start (0 of 2 Spark tasks started). Please "
    )
    assert "You may need to increase the start_timeout parameter to a larger value" in str(caught.value)
    with tools.Clean(spark):
        assert HorovodRunner(np=2).run(exchanged, scale=1.0)[2] == 3.0


def test_a_failure_and_an_interrupt_leave_the_session_usable(spark: Any, tmp_path: Path) -> None:
    with tools.Clean(spark), pytest.raises(JobFailedError, match="ZeroDivisionError: division by zero"):
        HorovodRunner(np=2).run(lambda: 1 / 0)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=lambda: (read_pids(tmp_path, 2, 100.0), os.kill(os.getpid(), signal.SIGINT)))
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

    other = threading.Thread(target=lambda: spark.sparkContext.parallelize([0], 1).mapPartitions(busy).collect())
    other.start()
    assert tools.wait_until((tmp_path / "busy").exists, 30)
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


def test_the_session_is_stopped_meanwhile(spark: Any, tmp_path: Path) -> None:
    """(The last test of this session.)"""
    thread = threading.Thread(target=lambda: (read_pids(tmp_path, 2, 100.0), spark.stop()))
    thread.start()
    began = time.monotonic()
    with pytest.raises(JobFailedError, match="its Spark task was lost: the Spark session was stopped"):
        HorovodRunner(np=2).run(wait, folder=str(tmp_path))
    assert time.monotonic() - began < tools.LIMIT
    thread.join()
    assert tools.wait_until(lambda: not tools.left(), tools.LIMIT)
    with pytest.raises(SettingsError, match="Could not find an active SparkContext"):
        run(print, num_proc=2)
    with tools.session("local[2]") as fresh, tools.Clean(fresh):
        assert HorovodRunner(np=2).run(exchanged, scale=1.0)[2] == 3.0
