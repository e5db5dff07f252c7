"""Strategies and codecs with a slow rank, or with a slow link between hosts. Runs on every rank.

A network learns scikit-learn's digits. Ranks sleep in each step in place of a longer computation,
and a slow rank sleeps three times as long. The slow rank is always the last one, or each rank in
turn for one step.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import farandole.torch as hvd
from benchmarks.crew import Plan, emit
from benchmarks.problems import USUAL, accuracy, digits, net, setting_of
from benchmarks.samples import Run, parts
from benchmarks.steps.torch import Team
from farandole.strategies.specs import ALLREDUCE, strategy_of

RANK = (ALLREDUCE, "ps", "ps:1,backup=1", "ps_async", "ssp:3", "gossip_async")
LINK = (ALLREDUCE, "int8", "local_sgd:8", "diloco:8", "topk:0.02", "onebit", "powersgd:2")
STEP, SLOWER = 0.04, 3  # seconds of a step, and the factor of a slow rank
SECONDS, STEPS = 10.0, 555  # of a run with a slow rank, and with a slow link
RANK_WIDTH, LINK_WIDTH = 256, 640  # of the network: its gradients are 0.2 and 1 MiB
BATCH = USUAL.batch  # rows of all ranks
WARM_UP, KEEP, REPORT = 3, 5, 5.0  # steps, steps between kept weights, seconds between reports
STAYS, MOVES = "the last rank is three times slower", "each rank in turn is three times slower"


def cases(team: Team, plan: Plan) -> Iterator[Run]:
    seeds = range(1 if plan.quick else plan.seeds)
    if plan.hosts > 1:
        name = f"{plan.hosts} hosts, links of {plan.rate}"
        steps = 10 if plan.quick else STEPS
        for spec in chosen(plan, LINK):
            yield median([over_a_link(name, spec, steps, seed) for seed in seeds])
        return
    duration = 0.3 if plan.quick else SECONDS
    for name in (STAYS, MOVES):
        for spec in chosen(plan, RANK):
            yield median([with_a_slow_rank(name, spec, duration, seed) for seed in seeds])


def chosen(plan: Plan, usual: Sequence[str]) -> list[str]:
    """Return the specs, beginning with all-reduce, the baseline."""
    return list(dict.fromkeys((ALLREDUCE, *plan.only))) if plan.only else list(usual)


def median(runs: Sequence[Run]) -> Run:
    """Return the run whose rate, staleness, dropped share and accuracy at each time are medians
    over the runs of several seeds. Accuracies between two measured times are interpolated.
    """
    if len(runs) == 1:
        return runs[0]
    end = statistics.median(run.curve[-1][0] for run in runs)
    times = np.linspace(0.0, end, max(len(run.curve) for run in runs))
    accuracies = [np.interp(times / end, *_normalized(run.curve)) for run in runs]
    return replace(
        runs[0],
        rate=statistics.median(run.rate for run in runs),
        staleness=statistics.median(run.staleness for run in runs),
        dropped=statistics.median(run.dropped for run in runs),
        curve=[
            (round(float(time), 2), round(float(value), 2))
            for time, value in zip(times, np.median(accuracies, axis=0), strict=True)
        ],
        curves=[run.curve for run in runs],
    )


def _normalized(curve: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Return times as shares of the run's duration, and accuracies: all seeds end together."""
    end = curve[-1][0]
    return [seconds / end for seconds, _ in curve], [accuracy for _, accuracy in curve]


class Trainer:
    """A rank's network and its steps; rank 0 keeps intermediate weights."""

    def __init__(self, name: str, spec: str, width: int, seed: int) -> None:
        strategy, codec = parts(spec)
        self.name, self.spec, self.setting = name, spec, setting_of(spec)
        self.data, self.strategy = digits(seed), strategy_of(strategy)
        self.model = net(self.data.x.shape[1], seed, width)
        optimizer = self.setting.optimizer(self.model.parameters())
        self.optimizer: Any = hvd.DistributedOptimizer(
            optimizer, self.model.named_parameters(), strategy=self.strategy, codec=codec
        )
        self._generator = torch.Generator().manual_seed(1 + seed * hvd.size() + hvd.rank())
        self._kept: list[tuple[float, Any]] = []
        for _ in range(WARM_UP):
            self._train()
        self._ignored = self._dropped()
        # not a barrier: a rank left out of a step pushes once more, and would wait for the others
        hvd.join()
        self.steps, self._begin, self._reported = 0, time.monotonic(), 0.0
        self._keep()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begin

    def step(self, share: float) -> None:
        """Take a step. ``share``: the completed fraction of the run."""
        self._train()
        self.steps += 1
        if hvd.rank() == 0 and self.steps % KEEP == 0:
            self._keep()
        if hvd.rank() == 0 and self.seconds >= self._reported + REPORT:
            self._reported = self.seconds
            emit(f"{self.name}, {self.spec}: {share:.0%}, {self.steps} steps")

    def run(self, seconds: float) -> Run:
        """Return the results of a run of ``seconds``. Collective."""
        if not isinstance(self.strategy, str):
            self.optimizer.average_weights()
        self._kept.append((seconds, self._weights()))
        seen = getattr(self.strategy, "staleness", None)
        dropped = self._dropped() - self._ignored
        rows = (self.steps - dropped) * (BATCH // hvd.size())
        mine = [rows / seconds, seen.mean if seen else 0.0, dropped / max(self.steps, 1)]
        rate, staleness, late = hvd.allreduce(torch.tensor(mine), op=hvd.Sum).tolist()
        return Run(
            "strategies",
            self.name,
            self.spec,
            self.setting.kind,
            round(rate, 1),
            round(staleness / hvd.size(), 2),
            round(late / hvd.size(), 3),
            self._curve(),
        )

    def _train(self) -> None:
        rows = torch.randint(len(self.data.x), (BATCH // hvd.size(),), generator=self._generator)
        self.optimizer.zero_grad()
        torch.nn.functional.cross_entropy(
            self.model(self.data.x[rows]), self.data.y[rows]
        ).backward()
        self.optimizer.step()

    def _dropped(self) -> int:
        seen = getattr(self.strategy, "staleness", None)
        return seen.dropped if seen else 0

    def _keep(self) -> None:
        self._kept.append((self.seconds, self._weights()))

    def _weights(self) -> Any:
        return {name: value.clone() for name, value in self.model.state_dict().items()}

    def _curve(self) -> list[tuple[float, float]]:
        found = []
        for seconds, weights in self._kept:
            self.model.load_state_dict(weights)
            found.append((round(seconds, 2), round(accuracy(self.model, self.data), 2)))
        return found


def with_a_slow_rank(name: str, spec: str, seconds: float, seed: int) -> Run:
    """Train for ``seconds``: every rank takes as many steps as it can."""
    trainer = Trainer(name, spec, RANK_WIDTH, seed)
    while trainer.seconds < seconds:
        time.sleep(STEP * (SLOWER if is_slow(name, trainer.seconds) else 1))
        trainer.step(trainer.seconds / seconds)
    took = trainer.seconds
    hvd.join()
    return trainer.run(took)


def is_slow(name: str, seconds: float) -> bool:
    turn = int(seconds / (STEP * SLOWER)) if name == MOVES else -1
    return turn % hvd.size() == hvd.rank()


def over_a_link(name: str, spec: str, steps: int, seed: int) -> Run:
    """Train for ``steps``: all ranks take them as fast as they can; the learning rate decays to
    0.
    """
    trainer = Trainer(name, spec, LINK_WIDTH, seed)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(trainer.optimizer, steps)
    for step in range(steps):
        trainer.step(step / steps)
        schedule.step()
    return trainer.run(trainer.seconds)
