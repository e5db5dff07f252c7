"""Metrics that are recorded without a line of code."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import farandole
from farandole.base.contracts import Waiting
from farandole.job.runs.folder import RUN_VARIABLE, RunFolder
from farandole.job.runs.journal import records
from farandole.job.tracking import sampler
from farandole.job.tracking.gpu import Gpu
from farandole.job.tracking.sampler import CpuShare, ExchangeTimes, Speed, memory


def test_speed_is_the_change_since_the_last_sample() -> None:
    speed = Speed()
    assert speed.sample(time.monotonic(), 0, 0.0, 0.0, 0.0, 0) == {}
    began = time.monotonic()
    speed.sample(began, 10, 0.0, 1.0, 0.5, 100)
    assert speed.sample(began + 2.0, 14, 8.0, 1.4, 0.7, 500) == {
        "training/steps_per_second": 2.0,
        "training/rows_per_second": 16.0,
        "training/exchange_seconds_per_step": pytest.approx(0.1),
        "training/wait_seconds_per_step": pytest.approx(0.05),
        "training/exchange_bytes_per_step": 100.0,
    }
    assert speed.sample(began + 3.0, 14, 8.0, 1.4, 0.7, 500) == {}
    assert speed.sample(began + 4.0, 3, 0.0, 1.4, 0.7, 500) == {}  # another optimizer
    assert speed.sample(began + 6.0, 4, 0.0, 1.4, 0.7, 500)["training/steps_per_second"] == 0.5


def test_memory_and_processor_are_those_of_this_process() -> None:
    found = memory()
    assert 1 << 20 < found["system/memory_bytes"] < 1 << 40
    assert found["system/host_memory_available_bytes"] > 0
    share = CpuShare()
    began = time.monotonic()
    while time.monotonic() < began + 0.05:
        pass
    found = share.sample(time.monotonic())
    assert found["system/cpu_cores"] > 0
    assert found["system/host_cpu_cores"] > 0


class Library:
    """NVIDIA's library with two GPUs."""

    def __init__(self, **values: Any) -> None:
        self.asked: list[Any] = []
        self.values = values

    def nvmlInit(self) -> None:
        if "error" in self.values:
            raise RuntimeError(self.values["error"])

    def nvmlShutdown(self) -> None:
        self.asked.append("shutdown")

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        self.asked.append(index)
        return index

    def nvmlDeviceGetHandleByUUID(self, name: str) -> str:
        self.asked.append(name)
        return name

    def nvmlDeviceGetUtilizationRates(self, _: Any) -> Any:
        return SimpleNamespace(gpu=75)

    def nvmlDeviceGetMemoryInfo(self, _: Any) -> Any:
        return SimpleNamespace(used=1 << 30)

    def nvmlDeviceGetPowerUsage(self, _: Any) -> int:
        raise RuntimeError("not supported")


@pytest.mark.parametrize(
    ("env", "device"),
    [
        ({"FARANDOLE_LOCAL_RANK": "1"}, 1),
        ({"FARANDOLE_LOCAL_RANK": "3"}, 1),
        ({"FARANDOLE_LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "5,7"}, 7),
        ({"CUDA_VISIBLE_DEVICES": "GPU-aa"}, "GPU-aa"),
    ],
)
def test_the_gpu_of_the_rank_is_sampled(env: dict[str, str], device: Any) -> None:
    library = Library()
    gpu = Gpu(env, library)
    assert library.asked == [device]
    assert gpu.sample() == {"system/gpu_percent": 75.0, "system/gpu_memory_bytes": 1 << 30}
    gpu.close()
    assert library.asked == [device, "shutdown"]


@pytest.mark.parametrize(
    "gpu",
    [
        Gpu({"CUDA_VISIBLE_DEVICES": ""}, Library()),
        Gpu({"CUDA_VISIBLE_DEVICES": "-1"}, Library()),
        Gpu({}, Library(error="no driver")),
    ],
)
def test_there_may_be_no_gpu(gpu: Gpu) -> None:
    assert gpu.sample() == {}
    gpu.close()


def test_only_exchanges_off_the_fast_path_are_timed() -> None:
    times = ExchangeTimes()
    assert not times.every
    times.started(None, ["a"], 100)  # type: ignore[arg-type]
    times.finished(None, ["a"])  # type: ignore[arg-type]
    assert times.nbytes == 100
    assert times.seconds > 0


def train() -> None:
    import numpy as np

    import farandole.numpy as hvd
    from farandole.checks.finding import Finding, record
    from farandole.job.report import training_progress

    hvd.init()
    counter = training_progress.counter()
    training_progress.epoch(1, 2, steps=3, rows=16.0)
    for _ in range(3):
        if hvd.rank() == 1:
            time.sleep(0.05)
        hvd.allreduce(np.ones(1000, np.float32), name=f"step{counter.steps}")
        counter.steps += 1
    training_progress.epoch(2, 2, steps=3, rows=16.0, loss=0.75)
    record(Finding("F1", "warning", "a text", "a cure"))
    hvd.shutdown()


def test_ranks_of_a_run_record_samples(tmp_path: Path) -> None:
    run = RunFolder(str(tmp_path / "e_1_00000000"))
    farandole.run(train, np=2, env={RUN_VARIABLE: run.path})
    for rank in (0, 1):
        found = list(records(run.metrics_of(rank)))
        values: dict[str, Any] = {}
        for record in found:
            values |= record["values"] if record.get("kind") == "system" else {}
        assert values["system/memory_bytes"] > 1 << 20
        assert values["training/steps_per_second"] > 0
        assert values["training/rows_per_second"] > 0
        assert values["training/exchange_bytes_per_step"] >= 4000
        assert (values["training/wait_seconds_per_step"] > 0.01) is (rank == 0)
        assert [each["values"] for each in found if "kind" not in each] == [{"loss": 0.75}]
        assert [each["code"] for each in found if each.get("kind") == "finding"] == ["F1"]


def test_a_rank_without_a_run_has_no_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RUN_VARIABLE, raising=False)

    def job() -> bool:
        import sys

        import farandole.numpy as hvd

        hvd.init()
        return any(name.startswith("farandole.job.tracking") for name in sys.modules)

    assert farandole.run(job, np=1) == [False]


def test_the_sampler_ends_with_the_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_VARIABLE, str(tmp_path / "run"))
    monkeypatch.setattr(sampler, "LOOK", 0.01)
    monkeypatch.setattr(sampler, "EVERY", 1)
    sampler.tracker._forget()
    try:
        made = sampler.begin(0)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            if len(list(records(os.path.join(tmp_path, "run", "metrics", "rank-0.jsonl")))) > 3:
                break
            time.sleep(0.01)
        made.close()
        assert not made._thread.is_alive()
        found = len(list(records(str(tmp_path / "run" / "metrics" / "rank-0.jsonl"))))
        assert found > 4
    finally:
        sampler.tracker._forget()


def test_a_long_wait_is_recorded_once_with_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUN_VARIABLE, str(tmp_path / "run"))
    monkeypatch.setattr(sampler, "LOOK", 3600.0)
    sampler.tracker._forget()
    waits: list[Waiting] = [Waiting("short", 0.5, (2,))]
    try:
        made = sampler.begin(0, lambda: waits)
        made.poll()
        waits[:] = [Waiting("grads", 2.5, (3, 1)), Waiting("short", 0.5, (2,))]
        made.poll()
        made.poll()
        waits.clear()
        made.poll()
        made.close()
    finally:
        sampler.tracker._forget()
    found = [
        (each["ranks"], each["names"], each["seconds"])
        for each in records(str(tmp_path / "run" / "metrics" / "rank-0.jsonl"))
        if each.get("kind") == "waiting"
    ]
    assert found == [([1, 3], ["grads"], 2.5), ([], [], 0.0)]
