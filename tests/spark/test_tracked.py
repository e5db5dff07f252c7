"""Runs of HorovodRunner."""

from __future__ import annotations

from pathlib import Path

import pytest

from farandole.job.runs.states import RunState
from farandole.jobs import metrics
from farandole.spark import HorovodRunner
from tests.kits.jobs import runs_home


def train(rate: float) -> int:
    import farandole
    import farandole.numpy as hvd

    hvd.init()
    farandole.log_metric("rate", rate)
    return hvd.size()


def test_horovod_runner_leaves_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARANDOLE_TRACK", "1")
    with runs_home(tmp_path) as home:
        assert HorovodRunner(np=-2).run(train, rate=0.5) == 2
        (run,) = home.all_runs()
        assert run.state() is RunState.COMPLETED
        assert run.spec().experiment == "train"
        assert [metrics.last_values(run, rank) for rank in (0, 1)] == [{"rate": 0.5}] * 2
