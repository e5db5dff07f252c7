"""Parts without a cluster: GPUs, the archive for the executors, Spark's exceptions, the weight of a
pickle.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
import zipfile
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from farandole.errors import RendezvousError, SettingsError
from farandole.job.launch.agents import boot
from farandole.job.launch.agents.agent import environment, place
from farandole.job.launch.agents.allocation import visible
from farandole.job.launch.agents.bundle import bundle, digests, packed
from farandole.job.launch.contract import JobRequest
from farandole.job.launch.launchers.spark import SparkLauncher, cluster
from farandole.job.launch.launchers.spark.cluster import SparkCluster, reason
from farandole.job.report import messages, pickling
from farandole.net.handshake import new_secret
from farandole.spark import (
    HorovodRunner,
    LoopLog,
    get_available_devices,
    log_to_driver,
    run,
    run_elastic,
)
from tests.kits.messages import mentioning, mentions


class TestGpus:
    def test_the_device_of_a_local_rank_is_the_one_of_its_task(self) -> None:
        gpus = [["3"], ["0"], ["5"]]
        for local_rank, own in enumerate(("3", "0", "5")):
            found = visible(gpus, local_rank)
            seen = found["CUDA_VISIBLE_DEVICES"].split(",")
            assert seen[local_rank] == own
            assert [seen[int(each)] for each in found["FARANDOLE_GPUS"].split(",")] == [own]

    def test_several_for_each(self) -> None:
        gpus = [["0", "1"], ["6", "7"]]
        found = visible(gpus, 1)
        seen = found["CUDA_VISIBLE_DEVICES"].split(",")
        assert seen[1] == "6"
        assert [seen[int(each)] for each in found["FARANDOLE_GPUS"].split(",")] == ["6", "7"]

    def test_one_gpu_shared_by_several_tasks(self) -> None:
        assert visible([["0"], ["0"]], 1) == {"CUDA_VISIBLE_DEVICES": "0", "FARANDOLE_GPUS": "0"}

    def test_none(self) -> None:
        assert visible([[], []], 1) == {}

    def test_a_rank_asks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert get_available_devices() == []
        monkeypatch.setenv("FARANDOLE_GPUS", "1,3")
        assert get_available_devices() == ["1", "3"]


class TestBundle:
    @pytest.fixture
    def elsewhere(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A folder of Python packages, and Spark's own folder of a host."""
        monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path / 'spark'},/other")
        (tmp_path / "packages").mkdir()
        monkeypatch.setattr(sys, "path", [str(tmp_path / "packages"), *sys.path])
        return tmp_path

    def archive(self, **sources: str) -> bytes:
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            for name, source in sources.items():
                archive.writestr(f"{name}/__init__.py", source)
        return packed.getvalue()

    def test_the_archive_holds_farandole_and_cloudpickle(self) -> None:
        archive, wanted = bundle()
        assert {"farandole", "cloudpickle"} <= set(wanted)
        names = zipfile.ZipFile(io.BytesIO(archive)).namelist()
        assert "farandole/job/worker.py" in names
        assert all(name.endswith((".py", ".typed")) for name in names)

    def test_an_installed_package_is_not_unpacked(self) -> None:
        for part in (packed, digests):
            part.cache_clear()  # another test may have called it, and a file been edited since
        assert boot.provide(*bundle()) == ("", {})

    def test_a_missing_package_is_unpacked_once(self, elsewhere: Path) -> None:
        archive = self.archive(notthere="VALUE = 5\n")
        folder, odd = boot.provide(archive, {"notthere": "digest"})
        assert odd == {"notthere": ""}
        assert Path(folder).parent == elsewhere / "spark"
        assert (Path(folder) / "notthere" / "__init__.py").read_text() == "VALUE = 5\n"
        assert boot.provide(archive, {"notthere": "digest"})[0] == folder
        assert [each.name for each in (elsewhere / "spark").iterdir()] == [Path(folder).name]

    def test_another_version_is_named_and_yields(self, elsewhere: Path) -> None:
        there = elsewhere / "packages" / "odd_package"
        there.mkdir()
        (there / "__init__.py").write_text("VALUE = 'old'\n")
        assert importlib.import_module("odd_package").VALUE == "old"
        archive = self.archive(odd_package="VALUE = 'new'\n")
        folder, odd = boot.provide(archive, {"odd_package": "digest of the new one"})
        assert odd == {"odd_package": str(there)}
        boot.prefer(folder, ["odd_package"])
        assert importlib.import_module("odd_package").VALUE == "new"
        del sys.modules["odd_package"]

    def test_a_digest_is_of_sources(self, elsewhere: Path) -> None:
        there = elsewhere / "packages" / "some_package"
        there.mkdir()
        (there / "__init__.py").write_text("1\n")
        before = boot.digest("some_package")
        (there / "data.bin").write_text("x")
        assert boot.digest("some_package") == before
        (there / "__init__.py").write_text("2\n")
        assert boot.digest("some_package") != before
        assert boot.digest("no_such_package") == ""


class TestEnvironment:
    def test_of_a_rank(self, monkeypatch: pytest.MonkeyPatch) -> None:
        own = {
            "HOME": "/h",
            "HOROVOD_CYCLE_TIME": "5",
            "PYTHON_WORKER_FACTORY_SECRET": "s",
            "PATH": "/bin",
        }
        monkeypatch.setattr(sys, "path", ["/lib", "/unpacked", ""])
        env = environment(own, "/unpacked", cluster.PRIVATE)
        assert env == {
            "HOME": "/h",
            "PATH": "/bin",
            "PYTHONPATH": os.pathsep.join(["/unpacked", "/lib"]),
        }

    def test_a_place_is_where_memory_can_be_shared(self) -> None:
        assert place() == place()
        assert os.readlink("/proc/self/ns/net") in place()


LOST = """Job aborted due to stage failure: Could not recover from a failed barrier ResultStage. Most recent failure reason: Stage failed because barrier task ResultTask(3, 1) finished unsuccessfully.
ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: Command exited with code 137
Driver stacktrace:"""
PYTHON = """Job aborted due to stage failure: Could not recover from a failed barrier ResultStage. Most recent failure reason: Stage failed because barrier task ResultTask(0, 0) finished unsuccessfully.
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 5, in main
    process()
farandole.errors.RendezvousError: the job's store at 10.0.0.1:1 does not answer (timed out)

\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:581)
Caused by: java.lang.RuntimeException: not this"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            LOST,
            (
                "ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason:"
                " Command exited with code 137"
            ),
        ),
        (PYTHON, "RendezvousError: the job's store at 10.0.0.1:1 does not answer (timed out)"),
        (
            (
                "[SPARK_JOB_CANCELLED] Job 5 cancelled part of cancelled job group farandole-1"
                " SQLSTATE: XXKDA"
            ),
            "Job 5 cancelled part of cancelled job group farandole-1 SQLSTATE: XXKDA",
        ),
        ("something else\nand more", "something else"),
    ],
)
def test_errors_of_spark_are_reported_without_the_stack(text: str, says: str) -> None:
    assert reason(Exception(text)) == says


class Conf:
    def __init__(self, **values: str) -> None:
        self.values = {name.replace("__", "."): value for name, value in values.items()}

    def get(self, name: str, default: str = "") -> str:
        return self.values.get(name, default)

    def getAll(self) -> list[tuple[str, str]]:
        return list(self.values.items())


class Context:
    """The parts of a SparkContext that are used before a job starts."""

    def __init__(self, master: str, slots: list[int], executors: int, **conf: str) -> None:
        self.master, self.conf = master, Conf(**conf)
        self._slots, self._executors = slots, executors
        self._jsc = self

    def getConf(self) -> Conf:
        return self.conf

    def sc(self) -> Any:
        return self

    statusTracker = resourceProfileManager = sc

    def defaultResourceProfile(self) -> None: ...

    def maxNumConcurrentTasks(self, _: None) -> int:
        return self._slots.pop(0) if len(self._slots) > 1 else self._slots[0]

    def getExecutorInfos(self) -> list[None]:
        return [None] * (self._executors + 1)


LATE = "Timed out waiting for Spark tasks to start"


class TestSlots:
    def test_executors_that_come_are_awaited(self) -> None:
        assert SparkCluster(Context("spark://h:7077", [0, 1, 2], 2)).await_slots(2, 60.0) == 2

    def test_an_unknown_number_of_slots_is_awaited_until_the_timeout(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A minute passes with every look."""
        now = iter(range(0, 100_000, 60))
        monkeypatch.setattr(
            cluster, "time", SimpleNamespace(monotonic=lambda: next(now), sleep=lambda _: None)
        )
        assert (
            SparkCluster(Context("yarn", [0, 0, 1, 1, 1, 1, 1, 1, 2], 1)).await_slots(2, 600.0) == 2
        )
        assert caplog.messages == [
            f"np=2 ranks need as many task slots, and yarn has {slots} on {executors}; waiting up to"
            " 600 s for executors (HOROVOD_SPARK_START_TIMEOUT)"
            for slots, executors in (("0 task slots", "0 executors"), ("1 task slot", "1 executor"))
        ]
        with pytest.raises(
            SettingsError,
            match=mentioning("1", "600 s", "task"),
        ):
            SparkCluster(Context("yarn", [1], 1)).await_slots(2, 600.0)

    def test_a_cluster_without_executors(self) -> None:
        with pytest.raises(SettingsError, match=mentioning("0", "task", "slots")) as caught:
            SparkCluster(Context("spark://h:1", [0], 0)).await_slots(2, 0.1)
        assert "np=0" not in str(caught.value)

    def test_all_of_them_means_those_that_come(self) -> None:
        launcher = SparkLauncher()
        launcher._cluster = SparkCluster(Context("yarn", [0, 0, 2], 2))
        assert launcher.all_slots() == 2

    def test_late_tasks_name_the_setting(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = SparkCluster(Context("yarn", [2], 2))
        stage = SimpleNamespace(ended=False, close=lambda seconds: None)
        monkeypatch.setattr(found, "submit", lambda *_: stage)
        monkeypatch.setattr(found, "addresses", lambda: ("127.0.0.1", ""))
        for options, says in (
            ({}, ("HOROVOD_SPARK_START_TIMEOUT", "0")),
            (
                {"setting": "the start_timeout parameter"},
                "start_timeout",
            ),
        ):
            launcher = SparkLauncher(start_timeout=0.0, **options)
            launcher._cluster = found
            allocation = launcher.allocate(JobRequest(2, "train"))
            with closing(allocation.listen(new_secret())), closing(allocation):
                allocation.start(["python"], {})
                with pytest.raises(RendezvousError, match=mentioning("Spark", says)):
                    allocation.slots()

    def test_a_longer_start_timeout_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen = []
        found = SparkCluster(Context("yarn", [2], 2))
        monkeypatch.setattr(found, "await_slots", lambda np, seconds: seen.append(seconds) or 2)
        for limit, setting in ((None, 30.0), (None, 900.0), (5.0, 30.0)):
            launcher = SparkLauncher(start_timeout=limit)
            launcher._cluster = found
            described = launcher.allocate(JobRequest(2, "train", start_timeout=setting)).describe()
            assert described == "2 Spark tasks for train; yarn has 2 task slots on 2 executors"
        assert seen == [600.0, 900.0, 5.0]

    def test_too_few_slots_of_a_fixed_cluster_fail_immediately(self) -> None:
        two = SparkCluster(
            Context("yarn", [4], 2, spark__executor__instances="2", spark__executor__cores="2")
        )
        with pytest.raises(SettingsError) as caught:
            two.await_slots(5, 60.0)
        now = "spark.executor.instances=2, spark.executor.cores=2"
        values = ("np=5", "5 task slots", "4 task slots", "2 executors", "np=4", now)
        assert mentions(str(caught.value), *values)

    @pytest.mark.parametrize(
        ("master", "conf"),
        [
            # one task each, and a core to spare
            ("local-cluster[2,3,512]", {"spark__task__cpus": "2"}),
            ("spark://h:1", {"spark__cores__max": "2"}),
            (
                "yarn",
                {
                    "spark__executor__instances": "2",
                    "spark__executor__cores": "8",
                    "spark__executor__resource__gpu__amount": "1",
                    "spark__task__resource__gpu__amount": "1",
                },
            ),
            ("local[2]", {}),
        ],
    )
    def test_other_sizes_that_are_known(self, master: str, conf: dict[str, str]) -> None:
        with pytest.raises(SettingsError, match=mentioning("np=3", "task")):
            SparkCluster(Context(master, [2], 1, **conf)).await_slots(3, 60.0)

    def test_dynamic_allocation(self) -> None:
        found = SparkCluster(Context("yarn", [4], 2, spark__dynamicAllocation__enabled="true"))
        with pytest.raises(SettingsError, match=r"spark\.dynamicAllocation\.enabled=false"):
            found.await_slots(2, 60.0)
        found.check_size(1000)  # an elastic job requests executors

    def test_an_elastic_job_that_never_fits(self) -> None:
        with pytest.raises(SettingsError, match=mentioning("np=3", "2")):
            SparkCluster(Context("local[2]", [2], 0)).check_size(3)

    def test_where_the_driver_listens(self) -> None:
        assert SparkCluster(Context("local[4]", [4], 0)).addresses() == ("127.0.0.1", "")
        assert SparkCluster(Context("yarn", [4], 1, spark__driver__host="h")).addresses() == (
            "h",
            "h",
        )
        found = Context(
            "k8s://x", [4], 1, spark__driver__host="svc", spark__driver__bindAddress="10.1.1.1"
        )
        assert SparkCluster(found).addresses() == ("10.1.1.1", "svc")


class TestWithoutASession:
    def test_a_function_that_was_called(self) -> None:
        with pytest.raises(
            SettingsError,
            match=mentioning("3", "train()", "function"),
        ):
            HorovodRunner(np=1).run(3)  # type: ignore[arg-type]

    def test_run_without_a_context_raises_horovods_message(self) -> None:
        with pytest.raises(SettingsError, match=mentioning("SparkContext")):
            run(print, num_proc=2)

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"use_mpi": True, "use_gloo": True}, ("one", "True")),
            ({"args": "ab"}, "tuple"),
            ({"env": {"A": 1}}, "text"),
            ({"num_proc": 0}, ("np=0", "1")),
        ],
    )
    def test_arguments_that_cannot_be(
        self, options: dict[str, Any], says: str | tuple[str, ...]
    ) -> None:
        with pytest.raises(SettingsError, match=mentioning(says)):
            run(print, **options)

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({}, "SparkContext"),
            ({"args": "ab"}, "tuple"),
            ({"num_proc": 0}, ("np=0", "1")),
            ({"num_proc": 2, "min_num_proc": 3}, ("np=2", "min_np=3")),
            ({"num_proc": 2, "max_np": 1}, ("max_np=1",)),
            ({"min_np": 1, "min_num_proc": 2}, ("min_np=1", "min_num_proc=2")),
            ({"elastic_timeout": -1.0}, "--elastic-timeout=-1.0"),
        ],
    )
    def test_elastic_arguments_that_cannot_be(
        self, options: dict[str, Any], says: str | tuple[str, ...]
    ) -> None:
        with pytest.raises(SettingsError, match=mentioning(says)):
            run_elastic(print, **{"num_proc": 2, **options})

    def test_a_message_without_a_job_is_printed(self, capsys: pytest.CaptureFixture[str]) -> None:
        log_to_driver("x" * 5000)
        log_to_driver(5)
        assert capsys.readouterr().out == "x" * messages.LONGEST + "\n5\n"
        assert messages.LONGEST == 4000


def test_large_values_in_a_function_are_named() -> None:
    images, few = bytes(12_000_000), [1, 2, 3]

    def train(lr: float) -> int:
        return len(images) + len(few)

    text = pickling.weigh((train, (), {"lr": 0.1}), "the function 'train'", 12_000_500)
    assert "is 12.0 MB pickled" in text
    assert mentions(text, "'images'", "12.0", "MB")
    assert "few" not in text


def test_a_loop_reports(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def loop(**options: bool) -> list[str]:
        log = LoopLog(**options)
        log.epoch_begin(0)
        log.batch_end(0, loss=0.51234)
        log.epoch_end(0, loss=0.25, note="good")
        return capsys.readouterr().out.splitlines()

    begin, batch, end = loop(per_batch_log=True)
    assert (begin, batch) == ("Epoch 0 begins", "Epoch 0 batch 0, loss=0.5123")
    assert end.startswith("Epoch 0 ended after ")
    assert "loss=0.25, note=good, " in end
    assert len(loop()) == 2
    monkeypatch.setenv("HOROVOD_RANK", "1")
    monkeypatch.setenv("HOROVOD_SIZE", "2")
    assert loop(per_batch_log=True) == []


def test_local_processes(capsys: pytest.CaptureFixture[str]) -> None:
    def train(scale: float) -> float:
        log_to_driver(f"rank {os.environ['HOROVOD_RANK']}")
        print("printed")
        return scale * int(os.environ["HOROVOD_SIZE"])

    assert HorovodRunner(np=-2).run(train, scale=1.5) == 3.0
    lines = sorted(capsys.readouterr().out.splitlines())
    assert lines == ["[0]<stdout>:printed", "[1]<stdout>:printed", "rank 0", "rank 1"]
