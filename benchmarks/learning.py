"""Accuracy, sent bytes and time of each strategy and codec, on scikit-learn's digits or MNIST. Runs
on every rank.

Each result is the mean of several seeds (three by default), compared with an all-reduce of the same
number of epochs and the same seeds, with the standard error of the difference.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import farandole.torch as hvd
from benchmarks.crew import Plan, emit
from benchmarks.problems import (
    BASELINES,
    ROWS,
    TRAINED,
    Data,
    Setting,
    accuracy,
    digits,
    mnist,
    net,
    setting_of,
)
from benchmarks.samples import Learned, parts
from benchmarks.steps.torch import Team
from farandole.base.contracts import Codec, Observer, Part, Transport
from farandole.base.types import Buffer, DType, Kind
from farandole.job import context
from farandole.strategies.codecs import codec
from farandole.strategies.gossip.references import NeighbourReference
from farandole.strategies.specs import ALLREDUCE, strategy_of

WIDTH, MNIST_WIDTH = 256, 64  # of the network: about 50,000 weights for either
SPECS = (
    ALLREDUCE,
    "adasum",
    "local_sgd:8",
    "local_sgd:8+int8",
    "local_sgd:epoch",
    "bmuf:8",
    "diloco:8,momentum=0.5",
    "diloco:8,momentum=0.5+int8",
    "easgd:4",
    "gossip",
    "gossip:ring",
    "gossip+int8",
    "gossip:ring+topk:0.05",
    "gossip:ring+onebit",
    "gossip_async",
    "ps",
    "ps_async",
    "ssp:3",
    "fp16",
    "bf16",
    "int8",
    "topk:0.05",
    "threshold:0.01",
    "powersgd:2",
    "onebit",
    "randomk:0.1",
    "sign:0.9",
)
# Of a normalized network, which shows whether the settings of the plain one carry over.
NORMALISED_SPECS = (
    ALLREDUCE,
    "adasum",
    "local_sgd:8",
    "local_sgd:8+int8",
    "local_sgd:epoch",
    "diloco:8,momentum=0.5",
    "easgd:4",
    "gossip",
    "gossip_async",
    "ps_async",
    "fp16",
    "bf16",
    "int8",
    "topk:0.05",
    "threshold:0.01",
    "powersgd:2",
    "onebit",
    "randomk:0.1",
    "sign:0.9",
)


class Result(NamedTuple):
    accuracy: float  # percent
    mebibytes: float  # bytes sent by rank 0
    seconds: float
    staleness: float


class Sent(Observer):
    """Counts the bytes that this rank's engine would send in a ring."""

    def __init__(self) -> None:
        self.nbytes = 0.0

    def started(self, kind: Kind, names: Sequence[str], nbytes: int) -> None:
        share = 2 * (hvd.size() - 1) / hvd.size() if kind is Kind.ALLREDUCE else 1.0
        self.nbytes += share * nbytes


def cases(team: Team, plan: Plan) -> Iterator[Learned]:
    name = (
        f"MNIST, {TRAINED:,} images, {ROWS} rows a step" if plan.data else "scikit-learn's digits"
    )
    if plan.model != "plain":
        name += f", {plan.model}"
    seeds, plain = range(1 if plan.quick else plan.seeds), dict[Setting, list[Result]]()

    def of_this(setting: Setting) -> Setting:
        setting = setting.for_mnist() if plan.data else setting
        setting = setting if plan.model == "plain" else setting.for_normalised()
        return setting.quick() if plan.quick else setting

    def measured(spec: str, setting: Setting) -> list[Result]:
        results = []
        for seed in seeds:
            data = mnist(Path(plan.data), seed) if plan.data else digits(seed)
            results.append(trained(spec, data, seed, setting, plan.model))
            if hvd.rank() == 0:
                emit(
                    f"{name}, {spec}, {setting.kind}, seed {seed}: accuracy"
                    f" {results[-1].accuracy:.1f} %"
                )
        return results

    for spec in plan.only or (SPECS if plan.model == "plain" else NORMALISED_SPECS):
        setting = of_this(setting_of(spec))
        other = of_this(BASELINES.get(setting_of(spec), setting_of(spec)))
        if other not in plain:
            plain[other] = measured(ALLREDUCE, other)
        results = plain[other] if spec == ALLREDUCE else measured(spec, setting)
        found, baseline = mean(results), mean(plain[other])
        cost = round(milliseconds(parts(spec)[1]), 1) if hvd.rank() == 0 else 0.0
        yield Learned(
            "learning",
            name,
            spec,
            str(setting),
            found.accuracy,
            baseline.accuracy,
            found.mebibytes,
            found.seconds,
            found.staleness,
            cost,
            len(seeds),
            error(results, plain[other]),
        )


def mean(results: Sequence[Result]) -> Result:
    return Result(*(round(float(value), 2) for value in np.mean(results, axis=0)))


def error(results: Sequence[Result], others: Sequence[Result]) -> float:
    """Return the standard error of the mean difference in accuracy for the same seeds; 0 for one
    seed.
    """
    differences = [
        result.accuracy - other.accuracy for result, other in zip(results, others, strict=True)
    ]
    return (
        round(float(np.std(differences, ddof=1)) / len(differences) ** 0.5, 2)
        if len(differences) > 1
        else 0.0
    )


def trained(spec: str, data: Data, seed: int, setting: Setting, kind: str = "plain") -> Result:
    name, coding = parts(spec)
    inputs = data.x.shape[1]
    model = net(inputs, seed, WIDTH if inputs == 64 else MNIST_WIDTH, kind)
    made, strategy = codec(coding), strategy_of(name)
    optimizer = setting.optimizer(model.parameters())
    optimizer = hvd.DistributedOptimizer(
        optimizer, model.named_parameters(), strategy=strategy, codec=made or ""
    )
    sent, observers = Sent(), context.engine().observers
    hvd.barrier()
    observers.add(sent)
    begin = time.process_time()
    train(model, optimizer, data, setting, torch.Generator().manual_seed(seed))
    seconds = time.process_time() - begin
    observers.remove(sent)
    if hasattr(optimizer, "average_weights"):
        optimizer.average_weights()
    for each in model.buffers():  # running statistics of each rank's own rows
        if each.is_floating_point():
            hvd.allreduce_(each)
    seen = getattr(strategy, "staleness", None)
    pushed = seen.pushes * sum(weight.nbytes for weight in model.parameters()) if seen else 0
    reference = None if isinstance(strategy, str) else strategy.reference
    # messages between neighbours are counted in their encoded size
    counted = made is None or isinstance(reference, NeighbourReference)
    nbytes = sent.nbytes + pushed - (0 if counted else made.saved)
    return Result(accuracy(model, data), nbytes / 2**20, seconds, seen.mean if seen else 0.0)


def train(
    model: Any, optimizer: Any, data: Data, setting: Setting, generator: torch.Generator
) -> None:
    steps = len(data.x) // setting.batch
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, setting.epochs * steps)
    for _ in range(setting.epochs):
        order = torch.randperm(len(data.x), generator=generator)
        for step in range(steps):
            mine = order[step * setting.batch : (step + 1) * setting.batch][
                hvd.rank() :: hvd.size()
            ]
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(data.x[mine]), data.y[mine]).backward()
            optimizer.step()
            schedule.step()
        if hasattr(optimizer, "end_of_epoch"):
            optimizer.end_of_epoch()


class Still:
    """One of four ranks, whose messages take no time."""

    rank, size = 0, 4

    def allreduce(self, *_: Any) -> None: ...
    def broadcast(self, *_: Any) -> None: ...

    def allgather(self, send: Any, receive: Any, counts: Any) -> None:
        receive[: len(send)] = send
        receive[len(send) :] = 0

    def alltoall(self, send: Any, counts: Any, receive: Any, other: Any) -> None:
        receive[:] = np.tile(send[: counts[0]], self.size)


def milliseconds(spec: str) -> float:
    """Return the milliseconds of a core per MiB of float32, without the time for messages."""
    values = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32)
    made: Codec | None = codec(spec)
    out, still, best = np.empty_like(values), Still(), float("inf")
    if made is None:
        return 0.0
    transport: Transport = still  # type: ignore[assignment]  # codecs need nothing else
    for _ in range(7):
        begin = time.perf_counter()
        made.allreduce(
            [Part("t", (1024, 1024), Buffer(values, out, DType.FLOAT32))], 0.25, transport
        )
        best = min(best, time.perf_counter() - begin)
    return best * 1000 / 4
