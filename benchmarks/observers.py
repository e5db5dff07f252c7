"""The cost of observers: a training step of Farandole under each observer, and with the sizes
chosen by autotune.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

import farandole.torch as hvd
from benchmarks.crew import Plan
from benchmarks.samples import OURS, TIMELINE, TUNED, UNWATCHED, Case, interleave
from benchmarks.steps import CLASSES, MODELS, Team
from benchmarks.steps.torch import MODELS as NETS
from benchmarks.steps.torch import trainer
from farandole.core.observe.autotune import Tuner
from farandole.job import context
from farandole.job.config import Settings

WARM_UP = 3
MOST_STEPS = 5000  # steps within which autotune must have chosen

Changes = Mapping[str, Any]  # of settings


def cases(team: Team, plan: Plan) -> Iterator[Case]:
    steps, repetitions = (1, 3) if plan.quick else (10, 41)
    with tempfile.TemporaryDirectory(prefix="farandole-bench-") as folder:
        for title, model in MODELS:
            sizes = {} if plan.quick else choice(model)
            changes: dict[str, Changes] = {
                OURS: {},
                UNWATCHED: {"stall_check_disable": True},
                TIMELINE: {"timeline": str(Path(folder, "timeline.json"))},
                TUNED: sizes,
            }
            crew = {name: Watched(model, settings) for name, settings in changes.items()}
            samples = interleave(
                {name: watched.step for name, watched in crew.items()},
                repetitions=repetitions,
                per_sample=steps,
                prepare={name: watched.begin for name, watched in crew.items()},
                before=lambda: hvd.barrier(),
            )
            join({})
            yield Case("observers", f"{title}{described(sizes)}", samples, steps)


class Watched:
    """A training with changed settings; ``begin`` joins the job again."""

    def __init__(self, model: str, changes: Changes) -> None:
        self.model, self.changes = model, changes
        self._run: Callable[[], object] = lambda: None

    def begin(self) -> None:
        join(self.changes)
        self._run = training(self.model)
        for _ in range(WARM_UP):
            self._run()

    def step(self) -> None:
        self._run()


def training(model: str) -> Callable[[], object]:
    make, shape = NETS[model]
    torch.manual_seed(0)
    return trainer(make(), torch.randn(shape), torch.randint(CLASSES, shape[:1]), OURS)


def join(changes: Changes) -> None:
    """Leave the job, and join it again with these settings in addition to the job's own."""
    hvd.shutdown()
    ours = {
        name: value
        for name, value in Settings(**changes).to_env().items()
        if name.startswith("FARANDOLE_")
    }
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    hvd.init()
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


def choice(model: str) -> dict[str, int]:
    """Return the sizes that autotune settles on, on rank 0."""
    join({"autotune": True, "autotune_steps_per_sample": 2})
    step, engine = training(model), context.engine()
    tuners = [observer for observer in engine.observers.all if isinstance(observer, Tuner)]
    for _ in range(MOST_STEPS):
        step()
        if hvd.broadcast_object(all(tuner.done for tuner in tuners), root_rank=0):
            break
    sizes = {
        "fusion_threshold": engine.fusion_threshold,
        "bucket_bytes": engine.bucketed or engine.bucket_bytes,
    }
    return dict(hvd.broadcast_object(sizes, root_rank=0))


def described(sizes: Changes) -> str:
    return f" (autotune: buckets of {sizes['bucket_bytes'] / 2**20:g} MiB)" if sizes else ""
