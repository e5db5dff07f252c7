"""Elastic jobs on two executors: ranks fail, executors are killed and decommissioned."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farandole.errors import RendezvousError
from tests.job.launch.tools import wait_until
from tests.kits.messages import mentioning, mentions
from tests.spark import tools

STEPS = 6
MOST_STEPS = 3000  # a job whose history does not come ends


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    conf = {"spark.decommission.enabled": "true"}
    with tools.session("local-cluster[2,1,1024]", **conf) as found:
        yield found


def train(folder: str, fault: str, memberships: int) -> dict[str, Any]:
    """Train for ``STEPS`` steps, and on until there were as many memberships.

    ``fault``: the fate of the first process, or of all processes, in the third step of the first
    membership.
    """
    import os
    import signal
    import time

    import numpy as np

    import farandole.numpy as hvd

    hvd.init()
    start = int(os.environ["HOROVOD_RANK"])

    def fail() -> None:
        if fault in ("executor", "daemon"):
            pid, child = os.getppid(), os.getpid()
            while Path(f"/proc/{pid}/comm").read_text().strip() != "java":
                child = pid
                pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            os.kill(pid if fault == "executor" else child, signal.SIGKILL)
            if fault == "daemon":
                return
            time.sleep(1000)
        raise ValueError(f"fails as scheduled: {start}")

    @hvd.elastic.run
    def steps(state: Any) -> None:
        state.sizes = [*state.sizes, hvd.size()]
        while state.step < MOST_STEPS:
            if state.step >= STEPS and len(state.sizes) >= memberships:
                return
            if state.step == 3 and len(state.sizes) == 1:
                Path(folder, "running").touch()
                if fault == "all" or (fault and start == 0):
                    fail()
            state.total += float(hvd.allreduce(np.ones(3), op=hvd.Average, name="mean")[0])
            state.step += 1
            state.commit()
            time.sleep(0.1 if state.step > STEPS else 0.0)

    state = hvd.elastic.ObjectState(step=0, total=0.0, sizes=[])
    steps(state)
    return {
        "rank": hvd.rank(),
        "start": start,
        "host": os.environ["HOROVOD_HOSTNAME"],
        "local": (hvd.local_rank(), hvd.local_size()),
        "sizes": state.sizes,
        "lost": state.step - state.total,
    }


def run(folder: Path, fault: str = "", memberships: int = 1, **options: Any) -> list[Any]:
    import horovod.spark

    given = {"num_proc": 2, "elastic_timeout": 120.0, "start_timeout": 120.0, **options}
    return horovod.spark.run_elastic(train, (str(folder), fault, memberships), **given)


def test_a_failed_rank_is_replaced(spark: Any, tmp_path: Path) -> None:
    out, err = io.StringIO(), io.StringIO()
    with tools.Clean(spark, 4 * tools.LIMIT):
        first, second = run(tmp_path, "rank", 2, stdout=out, stderr=err)
    assert (first["rank"], second["rank"]) == (0, 1)
    assert first["start"] == 1, "the survivor is rank 0"
    assert first["sizes"] == second["sizes"] == [2, 2]
    assert first["host"] != second["host"]
    assert first["local"] == second["local"] == (0, 1)
    assert first["lost"] == second["lost"] == 0.0
    assert mentions(err.getvalue(), "fails as scheduled: 0")


def test_a_killed_executor_is_replaced(spark: Any, tmp_path: Path) -> None:
    with tools.Clean(spark, 4 * tools.LIMIT):
        found = run(tmp_path, "executor", 3, min_np=1)
    assert [each["sizes"] for each in found] == [[2, 1, 2]] * 2
    assert [each["lost"] for each in found] == [0.0, 0.0]
    assert found[0]["start"] == 1


def test_ranks_survive_their_python_daemon(spark: Any, tmp_path: Path) -> None:
    """The daemon forks the tasks of later jobs, which Spark starts with another one."""
    with tools.Clean(spark, 4 * tools.LIMIT):
        found = run(tmp_path, "daemon", 1)
    assert [each["start"] for each in found] == [0, 1]
    assert [each["sizes"] for each in found] == [[2], [2]]


def test_an_estimator_continues_without_a_rank(spark: Any, tmp_path: Path) -> None:
    from farandole.data import Store
    from tests.estimators import elastic_tools
    from tests.estimators.test_elastic_training import callback
    from tests.estimators.tools import frame
    from tests.estimators.torch_tools import estimator, losses

    seen = tmp_path / "seen"
    seen.mkdir()
    model = estimator(
        num_proc=2,
        min_num_proc=1,
        max_num_proc=2,
        epochs=1000,
        store=Store.create(str(tmp_path / "store")),
        callbacks=[callback(seen)],
    ).fit(frame(spark))
    epochs = [each["epoch"] for each in model.getHistory()]
    assert epochs == list(range(len(losses(model))))
    assert elastic_tools.sizes(seen) >= {"2.1", "2.2", f"{epochs[-1]}.2"}


def test_a_decommissioned_executor_is_left(
    spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    context = spark.sparkContext
    scala = context._jsc.sc()
    executor = executors(scala)[0]

    def decommission() -> None:
        assert wait_until(lambda: (tmp_path / "running").exists(), 120)
        jvm = context._jvm
        kind = jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo
        info = kind("a test", jvm.scala.Option.apply(None))
        scala.schedulerBackend().decommissionExecutor(executor, info, False, False)

    thread = threading.Thread(target=decommission)
    thread.start()
    with tools.Clean(spark, 4 * tools.LIMIT):
        found = run(tmp_path, "", 2, min_num_proc=1)
    thread.join()
    assert found[0]["sizes"][:2] == [2, 1]
    assert {each["lost"] for each in found} == {0.0}
    assert any(mentions(each, "executor", executor) for each in caplog.messages)


def executors(scala: Any) -> list[str]:
    """Return the ids of the executors that run."""
    found = scala.statusStore().executorList(True)
    ids = [str(found.apply(index).id()) for index in range(found.size())]
    return [each for each in ids if each != "driver"]


def test_a_job_without_survivors_has_failed(spark: Any, tmp_path: Path) -> None:
    says = ("fails as scheduled", "Horovod", "non-zero")
    with tools.Clean(spark, 4 * tools.LIMIT), pytest.raises(RuntimeError, match=mentioning(says)):
        run(tmp_path, "all", verbose=0)


def test_too_few_tasks_in_time(spark: Any, tmp_path: Path) -> None:
    """Another job holds an executor."""
    context = spark.sparkContext

    def hold() -> None:
        with pytest.raises(Exception, match="cancelled"):
            context.parallelize([0], 1).foreach(lambda _: __import__("time").sleep(1000))

    from pyspark import InheritableThread

    context.addJobTag("held")
    thread = InheritableThread(target=hold)
    thread.start()
    tracker = context.statusTracker()
    assert wait_until(lambda: bool(tracker.getActiveJobsIds()), 60)
    with pytest.raises(RendezvousError, match=mentioning("start_timeout")):
        run(tmp_path, start_timeout=3.0)
    context.cancelJobsWithTag("held")
    context.removeJobTag("held")
    thread.join()
