"""A standalone master and two workers, as on a cluster: authenticated and encrypted, with GPUs from
Spark's resource API, and with executors whose Python has no Farandole, or another one.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farandole.errors import JobFailedError
from farandole.spark import HorovodRunner, get_available_devices, run
from tests.job.launch.tools import read_pids
from tests.kits.messages import mentioning, mentions
from tests.spark import tools
from tests.spark.standalone import SECRET, Cluster


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("standalone")
    cluster = Cluster(folder)
    try:
        cluster.start_master()
        properties = []
        for index in range(2):
            discover = folder / f"gpu{index}.sh"
            discover.write_text(
                f'#!/bin/sh\necho \'{{"name": "gpu", "addresses": ["{5 - index}"]}}\'\n'
            )
            discover.chmod(0o755)
            properties.append(
                "spark.worker.resource.gpu.amount 1\nspark.worker.resource.gpu.discoveryScript"
                f" {discover}\n"
            )
        cluster.start_workers(properties)
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def python(machines: Cluster) -> str:
    """The executors' interpreter: that of this environment. The second machine's has packages of
    another version.
    """
    old = machines.folder / "old"
    for name in ("farandole", "cloudpickle"):
        (old / name).mkdir(parents=True)
        (old / name / "__init__.py").write_text("raise ImportError('too old')\n")
    script = machines.folder / "python"
    script.write_text(
        f'#!/bin/sh\ncase "$PWD" in */work1/*) export PYTHONPATH="{old}:$PYTHONPATH";; esac\n'
        f'exec {sys.executable} "$@"\n'
    )
    script.chmod(0o755)
    return str(script)


@pytest.fixture(scope="module")
def spark(machines: Cluster, python: str) -> Iterator[Any]:
    conf = {
        "spark.authenticate": "true",
        "spark.authenticate.secret": SECRET,
        "spark.network.crypto.enabled": "true",
        "spark.io.encryption.enabled": "true",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.resource.gpu.amount": "1",
        "spark.task.resource.gpu.amount": "1",
    }
    with tools.session(machines.url, python, **conf) as found:
        yield found


def who() -> tuple[int, str, list[str], list[str | None]]:
    import cloudpickle

    import farandole
    from farandole.job import context

    context.init()
    files = [farandole.__file__, cloudpickle.__file__]
    return context.rank(), os.environ["CUDA_VISIBLE_DEVICES"], get_available_devices(), files


def test_gpus_and_packages_that_are_sent_along(
    spark: Any, machines: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    script = "import importlib.util as util; print(util.find_spec('farandole'))"
    assert (
        subprocess.run(
            [sys.executable, "-c", script],
            env=machines.env,
            cwd="/",
            capture_output=True,
            text=True,
        ).stdout
        == "None\n"
    ), "the executors' Python has no Farandole of its own"
    with tools.Clean(spark):
        results = run(who, num_proc=2)
    assert [rank for rank, *_ in results] == [0, 1]
    visible = results[0][1].split(",")
    assert sorted(visible) == ["4", "5"]
    assert all(each[1].split(",") == visible for each in results)
    assert [each[2] for each in results] == [["0"], ["1"]]
    for *_, files in results:
        for file in files:
            assert file is not None
            assert "/farandole-" in file, "the driver's, unpacked in a folder of Spark's"
    [said] = [each for each in caplog.messages if "different" in each]
    assert mentions(said, socket.gethostname(), str(machines.folder / "old" / "farandole"))


def test_a_second_job_finds_them_unpacked(spark: Any) -> None:
    first, second = ({tuple(files) for *_, files in run(who, num_proc=2)} for _ in range(2))
    assert first == second


def test_the_drivers_modules_are_not_the_executors(spark: Any) -> None:
    with (
        tools.Clean(spark),
        pytest.raises(JobFailedError, match=mentioning("'only_here'", "module")),
    ):
        HorovodRunner(np=2).run(lambda: __import__("only_here"))


def test_a_function_of_a_file_that_was_added(spark: Any, tmp_path: Path) -> None:
    module = tmp_path / "added_module.py"
    module.write_text("def double(x):\n    return 2 * x\n")
    spark.sparkContext.addPyFile(str(module))
    sys.modules.pop("added_module", None)

    def work() -> int:
        import added_module  # type: ignore[import-not-found]

        return int(added_module.double(4))

    assert HorovodRunner(np=2).run(work) == 8


def test_a_model_is_trained_and_predicts(spark: Any, tmp_path: Path) -> None:
    """Executors get Farandole for both."""
    torch, _ = pytest.importorskip("torch"), pytest.importorskip("pyarrow")
    from farandole.data import Store
    from tests.estimators.tools import ROWS, frame
    from tests.estimators.torch_tools import estimator

    rows = frame(spark)
    with tools.Clean(spark):
        model = estimator(num_proc=2, store=Store.create(str(tmp_path))).fit(rows)
    found = model.transform(rows.repartition(2)).select("x", "y__output").collect()
    with torch.no_grad():
        expected = model.getModel()(torch.tensor([row.x for row in found])).flatten().tolist()
    assert [row.y__output for row in found] == pytest.approx(expected, rel=1e-5)
    assert len(found) == ROWS


def test_a_killed_spark_executor_is_replaced(spark: Any, tmp_path: Path) -> None:
    def work(folder: str) -> None:
        import time

        if os.environ["FARANDOLE_RANK"] == "1":
            pid = os.getppid()
            while Path(f"/proc/{pid}/comm").read_text().strip() != "java":
                pid = parent(pid)
            os.kill(pid, 9)
        time.sleep(1000)

    with (
        tools.Clean(spark),
        pytest.raises(JobFailedError, match=mentioning("Rank 1", "Spark")),
    ):
        HorovodRunner(np=2).run(work, folder=str(tmp_path))
    with tools.Clean(spark):
        assert HorovodRunner(np=2).run(who)[0] == 0


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_the_session_is_stopped_meanwhile(spark: Any, tmp_path: Path) -> None:
    """(The last test of this session.)"""

    def wait(folder: str) -> None:
        import time

        path = Path(folder) / f"{os.environ['FARANDOLE_RANK']}.tmp"
        path.write_text(f"{os.getpid()}\n")
        path.rename(path.with_suffix(".pid"))
        time.sleep(1000)

    thread = threading.Thread(target=lambda: (read_pids(tmp_path, 2, 100.0), spark.stop()))
    thread.start()
    with (
        tools.Clean(spark),
        pytest.raises(JobFailedError, match=mentioning("Spark", "task")),
    ):
        HorovodRunner(np=2).run(wait, folder=str(tmp_path))
    thread.join()
