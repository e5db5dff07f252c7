"""For any failure on the cluster: one clear error in time, no leftovers, and a working next job."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from farandole.errors import JobFailedError, SettingsError
from farandole.spark import HorovodRunner
from tests.job.launch.tools import read_pids
from tests.kits.messages import mentioning, mentions
from tests.spark import tools

KILLS = int(os.environ.get("FARANDOLE_SPARK_KILLS", "3"))  # one of each kind
LOST = "its Spark task was lost: "
SAYS = [("rank", "SIGKILL"), ("task", LOST), ("executor", f"{LOST}ExecutorLostFailure")]


def rank() -> int:
    return int(os.environ["FARANDOLE_RANK"])


def run(main: Callable[..., Any], **kwargs: Any) -> Any:
    return HorovodRunner(np=2).run(main, **kwargs)


@pytest.fixture(autouse=True)
def usable(cluster: Any, request: pytest.FixtureRequest) -> Iterator[None]:
    """Check after each test that the session runs a job."""
    jobs = {"test_random_kills": KILLS, "test_its_executor_is_killed": 4}.get(request.node.name, 1)
    with tools.Clean(cluster, 2 * tools.LIMIT * jobs):  # with the start of the job
        yield
    with tools.Clean(cluster):
        assert run(lambda: ("fine", rank())) == ("fine", 0)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def wait_for_the_others(folder: str) -> None:
    """Train as a rank: report the process, then exchange for minutes."""
    import numpy

    from farandole.core.api.objects import allgather_object
    from farandole.job import context

    context.init()
    values = numpy.ones(4)
    path = Path(folder) / f"{rank()}.tmp"
    # above reaper and guard
    path.with_suffix(".agent").write_text(f"{parent_of(parent_of(os.getppid()))}\n")
    path.write_text(f"{os.getpid()}\n")
    path.rename(path.with_suffix(".pid"))
    for _ in range(10_000):
        allgather_object(values)
        time.sleep(0.01)


class TestOfTheFunction:
    def test_an_exception_is_shown_as_its_rank_saw_it(self) -> None:
        def train() -> None:
            if rank() == 1:
                raise ValueError("boom")
            time.sleep(1000)

        with pytest.raises(
            JobFailedError, match=r"^Rank 1 on \S+ failed: ValueError: boom"
        ) as caught:
            run(train)
        text = str(caught.value)
        assert 'raise ValueError("boom")' in text
        assert "py4j" not in text.lower()
        assert "worker.py" not in text
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__

    def test_horovods_words_stand_at_the_end_under_its_name(self) -> None:
        import horovod.spark

        def train() -> None:
            raise ValueError("boom")

        words = (
            r"boom[^$]*\nHorovod .*\nProcess name:"
            r" 0\nExit code: 1$"
        )
        with pytest.raises(RuntimeError, match=words):
            horovod.spark.run(train, num_proc=1, verbose=0)

    def test_exit(self) -> None:
        with pytest.raises(JobFailedError, match=mentioning("code 3")) as caught:
            run(lambda: sys.exit(3) if rank() == 1 else time.sleep(1000))
        assert (caught.value.rank, caught.value.exit_code) == (1, 3)

    def test_a_crash_in_native_code(self) -> None:
        def train() -> None:
            import ctypes

            if rank() == 1:
                ctypes.string_at(0)
            time.sleep(1000)

        with pytest.raises(JobFailedError, match=mentioning("Rank 1", "SIGSEGV")):
            run(train)

    def test_unpicklable_values_are_named(self) -> None:
        lock = threading.Lock()
        with pytest.raises(SettingsError, match=mentioning("'lock'", "_thread.lock")):
            run(lambda: lock.acquire())

    def test_a_result_that_cannot_be_pickled(self) -> None:
        with pytest.raises(JobFailedError, match=mentioning("Rank 0", "generator")):
            run(lambda: {"x": (i for i in range(3))})

    def test_only_the_result_of_rank_0_has_to_be(self) -> None:
        assert run(lambda: (i for i in range(3)) if rank() else 5) == 5

    def test_a_missing_module(self) -> None:
        with pytest.raises(
            JobFailedError,
            match=mentioning("ModuleNotFoundError", "module"),
        ):
            run(lambda: __import__("nowhere"))

    def test_ranks_that_refuse_to_end(self) -> None:
        def train() -> None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if os.fork() == 0:
                time.sleep(1000)
            if rank() == 1:
                time.sleep(0.3)
                raise ValueError("boom")
            time.sleep(1000)

        with pytest.raises(JobFailedError, match="ValueError: boom"):
            run(train)


class TestOfTheCluster:
    def test_more_ranks_than_slots(self) -> None:
        with pytest.raises(SettingsError) as caught:
            HorovodRunner(np=3).run(print)
        text = str(caught.value)
        assert mentions(text, "np=3", "[2,1,1024]")
        assert "Use np=2 or less" in text
        assert "spark.executor.cores" in text

    def test_the_job_is_cancelled_in_sparks_ui(self, cluster: Any, tmp_path: Path) -> None:
        thread = threading.Thread(
            target=lambda: (read_pids(tmp_path, 2, 100.0), cluster.sparkContext.cancelAllJobs())
        )
        thread.start()
        with pytest.raises(JobFailedError, match=r"Job \d+ cancelled"):
            run(wait_for_the_others, folder=str(tmp_path))
        thread.join()

    def test_the_cell_is_interrupted(self, tmp_path: Path) -> None:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        running: list[int] = []

        def interrupt() -> None:
            read_pids(tmp_path, 2, 100.0)
            running.extend(tools.left())
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        try:
            thread.start()
            began = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                run(wait_for_the_others, folder=str(tmp_path))
            assert time.monotonic() - began < tools.LIMIT
        finally:
            thread.join()
            signal.signal(signal.SIGINT, before)
        assert len(running) >= 2, "what Clean looks for can be found"

    def test_random_kills(self, tmp_path: Path) -> None:
        """A rank, the process of its task, or its executor, at some moment while both ranks
        train.
        """
        dice = random.Random(5)
        victims = [SAYS[turn % len(SAYS)] for turn in range(KILLS)]
        dice.shuffle(victims)
        for turn, (victim, says) in enumerate(victims):
            folder, who = tmp_path / str(turn), dice.choice("01")
            folder.mkdir()
            print(f"{turn}: {victim} of rank {who}")
            killer = Killer(folder, victim, who, dice.random())
            with pytest.raises(JobFailedError, match=f"^Rank {who} on .*{says}") as caught:
                run(wait_for_the_others, folder=str(folder))
            killer.join()
            assert time.monotonic() - killer.at < tools.LIMIT
            assert str(caught.value.rank) == who
            assert str(caught.value).count("\n") < 6, caught.value
            assert tools.wait_until(lambda: not tools.left(), tools.LIMIT), (
                f"{turn}: {victim}: left behind"
            )


class TestOfAFit:
    def test_its_executor_is_killed(self, cluster: Any, tmp_path: Path) -> None:
        """One error and checkpoints are left, no data; ``run_id`` continues after the last
        checkpoint.
        """
        pytest.importorskip("torch")
        from farandole.data import Store
        from farandole.estimators import Callback
        from tests.estimators.tools import frame
        from tests.estimators.torch_tools import estimator

        began, store = tmp_path / "began", Store.create(str(tmp_path / "store"))

        class Killing(Callback):
            """A callback that kills the executor of rank 1 when it first begins the third epoch."""

            def on_epoch_begin(self, epoch: int) -> None:
                import psutil

                import farandole.torch as hvd

                hvd.barrier()  # so that rank 0 has written its checkpoint
                if hvd.rank() == 1:
                    killing = epoch == 2 and "2" not in (
                        began.read_text().split() if began.exists() else ()
                    )
                    with began.open("a") as file:
                        file.write(f"{epoch}\n")
                    if killing:
                        next(
                            each for each in psutil.Process().parents() if each.name() == "java"
                        ).kill()
                        # this rank outlives its executor for a moment, and would end the epoch
                        signal.pause()

        rows = frame(cluster)
        made = estimator(
            num_proc=2,
            callbacks=[Killing()],
            epochs=4,
            store=store,
            run_id="killed",
            validation=0.2,
        )
        with pytest.raises(JobFailedError, match=f"^Rank 1 on .*{LOST}ExecutorLostFailure"):
            made.fit(rows)
        assert names(tmp_path / "store") == ["epoch-0.ckpt", "epoch-1.ckpt"]
        assert len(made.fit(rows).getHistory()) == 4
        assert began.read_text().split() == ["0", "1", "2", "2", "3"]
        assert names(tmp_path / "store") == ["epoch-2.ckpt", "epoch-3.ckpt"]


def names(folder: Path) -> list[str]:
    """Return the names of all files below a folder."""
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


class Killer(threading.Thread):
    """Kills the process of a rank, of its task, or its executor, some time after both ranks
    train.
    """

    def __init__(self, folder: Path, victim: str, who: str, delay: float = 0.0) -> None:
        super().__init__()
        self.folder, self.victim, self.who, self.delay, self.at = folder, victim, who, delay, 0.0
        self.start()

    def run(self) -> None:
        ranks = read_pids(self.folder, 2, 100.0)
        time.sleep(self.delay)
        task = int((self.folder / f"{self.who}.agent").read_text())
        tools.kill({"rank": ranks[self.who], "task": task, "executor": jvm_of(task)}[self.victim])
        self.at = time.monotonic()


def jvm_of(pid: int) -> int:
    """The executor of a task's Python process: its daemon's parent."""
    for _ in range(2):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid
