"""Runs whose ranks are tasks of a standalone Spark cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from farandole.job.runs.home import RunsHome
from farandole.job.runs.spec import Resources, RunSpec
from farandole.jobs.metrics import series
from farandole.jobs.submission import Submission, submit
from farandole.jobs.targets import node_counts, save_target
from farandole.jobs.targets.contract import TargetSpec
from tests.kits.jobs import runs_home, wait_for_end
from tests.spark.standalone import SECRET, Cluster

PROGRAM = """
import os
import numpy as np
import farandole
import farandole.numpy as hvd

hvd.init()
total = hvd.allreduce(np.ones(1, np.float32), op=hvd.Sum)
farandole.log_metric("total", float(total[0]))
print(hvd.rank(), hvd.size(), os.environ["NODE_RANK"], total.tolist(), flush=True)
open(f"outputs/rank{hvd.rank()}", "w").write(os.environ["SPARK_ENV_LOADED"])
"""


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)  # of the executors
    cluster = Cluster(tmp_path)
    try:
        cluster.start_master()
        cluster.start_workers(["", ""])
        yield cluster
    finally:
        cluster.stop()


@pytest.mark.slow
def test_a_run_on_a_standalone_cluster(machines: Cluster, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.py").write_text(PROGRAM)
    conf = {
        "spark.authenticate": "true",
        "spark.authenticate.secret": SECRET,
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
    }
    with runs_home(tmp_path) as home:
        save_target(
            home, TargetSpec("big", "spark", options={"master": machines.url, "conf": conf})
        )
        spec = RunSpec("e", ("python", "train.py"), target="big", resources=Resources(nodes=2))
        folder = submit(Submission(spec, str(source)), home)
        end = wait_for_end(folder, 120)
        assert end["state"] == "completed", (
            end,
            Path(folder.file("logs", "runner.txt")).read_text(),
        )
        assert [Path(folder.log_of(rank)).read_text() for rank in (0, 1)] == [
            "0 2 0 [2.0]\n",
            "1 2 1 [2.0]\n",
        ]
        assert [series(folder, "total", rank)[2].tolist() for rank in (0, 1)] == [[2.0], [2.0]]
        # the workers of the cluster set this variable for what they start
        assert [Path(folder.file("outputs", f"rank{rank}")).read_text() for rank in (0, 1)] == [
            "1",
            "1",
        ]
        assert node_counts(RunsHome(home.path), "big") is None
