from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from farandole.job.config.rank_variables import STATUS
from farandole.job.launch.status import described
from farandole.job.report import training_progress
from farandole.job.report.training_progress import TrainingProgress
from farandole.net.handshake import new_secret
from farandole.net.store import StoreServer


def test_a_report_without_progress_is_empty() -> None:
    assert TrainingProgress().report(1.0) == {"step": 0, "rate": 0.0}
    idle = TrainingProgress()
    idle.report(1.0)
    assert idle.report(2.0) == {}


def test_rate_of_the_busiest_optimizer() -> None:
    progress = TrainingProgress()
    busy, lazy = progress.counter(), progress.counter()
    progress.report(10.0)
    busy.steps += 30
    lazy.steps += 2
    assert progress.report(12.0) == {"step": 30, "rate": 15.0}
    del busy
    lazy.steps += 2
    assert progress.report(13.0)["step"] == 4, "optimizers that are gone do not count"


def test_an_optimizer_that_is_gone_takes_nothing_back() -> None:
    found = TrainingProgress()
    first = found.counter()
    first.steps = 500
    found.report(1.0)
    del first
    assert found.report(2.0) == {}
    second = found.counter()
    second.steps = 20
    assert found.report(3.0) == {"step": 20, "rate": 0.0}
    second.steps = 50
    assert found.report(5.0) == {"step": 50, "rate": 15.0}


def test_the_rate_is_that_of_the_last_seconds() -> None:
    progress = TrainingProgress()
    counter = progress.counter()
    for second in range(30):
        counter.steps += 1 if second < 15 else 100
        found = progress.report(float(second))
    assert found["rate"] == 100.0


def test_time_left() -> None:
    progress = TrainingProgress()
    counter = progress.counter()
    counter.steps = 500  # of an earlier training
    progress.epoch(2, 3, 100)
    progress.report(0.0)
    counter.steps += 40
    found = progress.report(4.0)
    assert found == {"step": 40, "rate": 10.0, "epoch": 2, "epochs": 3, "steps": 100, "left": 16.0}
    assert described(found) == ["epoch 2/3", "step 40/100", "10 steps/s", "16 s left"]


def test_rows_and_the_loss_of_the_epoch_before() -> None:
    progress = TrainingProgress()
    counter = progress.counter()
    progress.epoch(2, 3, 100, rows=256, loss=0.12345)
    progress.report(0.0)
    counter.steps += 40
    assert described(progress.report(4.0)) == [
        "epoch 2/3",
        "step 40/100",
        "loss 0.1235",
        "2,560 rows/s",
        "16 s left",
    ]


def test_epochs_of_unknown_length() -> None:
    progress = TrainingProgress()
    progress.epoch(1, 3, 0)
    counter = progress.counter()
    progress.report(0.0)
    counter.steps += 5
    assert described(progress.report(2.0)) == ["epoch 1/3", "step 5", "2.5 steps/s"]


@pytest.mark.parametrize(("watched", "rank"), [("", "0"), ("1", "1")])
def test_no_thread_runs_without_a_reader(
    monkeypatch: pytest.MonkeyPatch, watched: str, rank: str
) -> None:
    monkeypatch.setattr(training_progress, "_thread", None)
    monkeypatch.setenv(STATUS, watched)
    monkeypatch.setenv("FARANDOLE_RANK", rank)
    training_progress.counter().steps += 1
    assert training_progress._thread is None


def test_the_last_step_is_reported_at_the_end() -> None:
    secret = new_secret()
    store = StoreServer(secret)
    found: list[bytes] = []
    store.hooks.append(lambda key, value: found.append(bytes(value)))
    env = {
        STATUS: "1",
        "FARANDOLE_STORE": store.address,
        "FARANDOLE_SECRET": secret,
        "FARANDOLE_RANK": "0",
        "FARANDOLE_SIZE": "2",
    }
    code = (
        "from farandole.job.report import training_progress\n"
        "training_progress.counter().steps += 53"
    )
    try:
        subprocess.run([sys.executable, "-c", code], env={**os.environ, **env}, check=True)
    finally:
        store.close()
    assert [json.loads(value)["step"] for value in found] == [53]
