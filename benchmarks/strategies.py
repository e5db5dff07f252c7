"""Strategies and codecs where something is slow: one of the ranks, or the link between hosts. Runs
on every rank.

A net learns scikit-learn's digits. A slow rank sleeps in each step, as long as a computation
elsewhere would take; so do the others, for a third of the time. It is always the last rank that is
slow, or each for one step of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

import farandole.torch as hvd
from benchmarks.crew import Plan, tell
from benchmarks.problems import USUAL, accuracy, digits, net, setting_of
from benchmarks.samples import Run, parts
from benchmarks.steps.torch import Team
from farandole.strategies.specs import ALLREDUCE, strategy_of

RANK = (ALLREDUCE, "ps", "ps:1,backup=1", "ps_async", "ssp:3", "gossip_async")
LINK = (ALLREDUCE, "int8", "local_sgd:8", "diloco:8", "topk:0.02", "onebit", "powersgd:2")
STEP, SLOWER = 0.04, 3  # seconds of a step, and how many times as many where it is slow
SECONDS, STEPS = 10.0, 555  # of a run with a slow rank, and with a slow link
RANK_WIDTH, LINK_WIDTH = 256, 640  # of the net: its gradients are 0.2 and 1 MiB
BATCH = USUAL.batch  # rows of all ranks
WARM_UP, KEEP, TELL = 3, 5, 5.0  # steps, steps between weights that are kept, seconds between lines
STAYS, MOVES = "the last rank is three times slower", "each rank in turn is three times slower"


def cases(team: Team, plan: Plan) -> Iterator[Run]:
    if plan.hosts > 1:
        name = f"{plan.hosts} hosts, links of {plan.rate}"
        for spec in chosen(plan, LINK):
            yield over_a_link(name, spec, 10 if plan.quick else STEPS)
        return
    for name in (STAYS, MOVES):
        for spec in chosen(plan, RANK):
            yield beside_a_slow_rank(name, spec, 0.3 if plan.quick else SECONDS)


def chosen(plan: Plan, usual: Sequence[str]) -> list[str]:
    """All-reduce first, which the others are compared with."""
    return list(dict.fromkeys((ALLREDUCE, *plan.only))) if plan.only else list(usual)


class Trainer:
    """A rank's net, with which it takes steps; rank 0 keeps weights of the way."""

    def __init__(self, name: str, spec: str, width: int) -> None:
        strategy, codec = parts(spec)
        self.name, self.spec, self.setting = name, spec, setting_of(spec)
        self.data, self.strategy = digits(0), strategy_of(strategy)
        self.model = net(self.data.x.shape[1], 0, width)
        optimizer = self.setting.optimizer(self.model.parameters())
        self.optimizer: Any = hvd.DistributedOptimizer(
            optimizer, self.model.named_parameters(), strategy=self.strategy, codec=codec
        )
        self._generator = torch.Generator().manual_seed(1 + hvd.rank())
        self._kept: list[tuple[float, Any]] = []
        for _ in range(WARM_UP):
            self._train()
        self._ignored = self._dropped()
        # not a barrier: who was left out of a step pushes once more, and would wait for the others
        hvd.join()
        self.steps, self._begin, self._told = 0, time.monotonic(), 0.0
        self._keep()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begin

    def step(self, share: float) -> None:
        """``share``: of the run, so far."""
        self._train()
        self.steps += 1
        if hvd.rank() == 0 and self.steps % KEEP == 0:
            self._keep()
        if hvd.rank() == 0 and self.seconds >= self._told + TELL:
            self._told = self.seconds
            tell(f"{self.name}, {self.spec}: {share:.0%}, {self.steps} steps")

    def run(self, seconds: float) -> Run:
        """What it came to, in so many seconds. Collective."""
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


def beside_a_slow_rank(name: str, spec: str, seconds: float) -> Run:
    """Every rank takes as many steps as it can."""
    trainer = Trainer(name, spec, RANK_WIDTH)
    while trainer.seconds < seconds:
        time.sleep(STEP * (SLOWER if is_slow(name, trainer.seconds) else 1))
        trainer.step(trainer.seconds / seconds)
    took = trainer.seconds
    hvd.join()
    return trainer.run(took)


def is_slow(name: str, seconds: float) -> bool:
    turn = int(seconds / (STEP * SLOWER)) if name == MOVES else -1
    return turn % hvd.size() == hvd.rank()


def over_a_link(name: str, spec: str, steps: int) -> Run:
    """All ranks take so many steps, as fast as they can; the learning rate falls to 0."""
    trainer = Trainer(name, spec, LINK_WIDTH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(trainer.optimizer, steps)
    for step in range(steps):
        trainer.step(step / steps)
        schedule.step()
    return trainer.run(trainer.seconds)
