"""Tensors and training steps on GPUs, compared with torch.distributed: on NCCL if every rank has a
GPU, on Gloo if ranks share one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import farandole.torch as hvd
from benchmarks.crew import Plan
from benchmarks.samples import DDP, DDP_NCCL, GLOO, NCCL, OURS, TOGETHER, Case, interleave
from benchmarks.steps import CLASSES, Team
from benchmarks.steps.torch import mlp, trainer

SIZES = [
    ("4 KiB", 4 << 10, 50),
    ("1 MiB", 1 << 20, 20),
    ("16 MiB", 16 << 20, 10),
    ("64 MiB", 64 << 20, 5),
]
TENSORS, ELEMENTS = 200, 10_000
BATCH = 256
REPETITIONS = 31


def cases(team: Team, plan: Plan) -> Iterator[Case]:
    """Yield the cases. The team's ranks take one GPU each, round-robin."""
    torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
    device = torch.device("cuda", torch.cuda.current_device())
    direct = hvd.local_size() <= torch.cuda.device_count()
    group = dist.new_group(backend="nccl" if direct else "gloo")
    repetitions = 3 if plan.quick else REPETITIONS
    theirs = NCCL if direct else GLOO
    for name, nbytes, per_sample in SIZES[:2] if plan.quick else SIZES:
        tensor = torch.zeros(nbytes // 4, device=device)
        turns = {OURS: partial(ours, [tensor]), theirs: partial(torchs, [tensor], group)}
        yield Case(
            "gpu", f"allreduce, {name}", timed(turns, repetitions, per_sample), per_sample, nbytes
        )
    tensors = [torch.zeros(ELEMENTS, device=device) for _ in range(TENSORS)]
    turns = {OURS: partial(ours, tensors), theirs: partial(torchs, tensors, group)}
    yield Case(
        "gpu",
        f"{TENSORS} x {ELEMENTS:,} floats",
        timed(turns, repetitions, 5),
        5,
        TENSORS * ELEMENTS * 4,
    )
    labels = torch.randint(CLASSES, (BATCH,), device=device)
    for title, net, shape in (
        ("MLP, 4.2 M parameters", mlp(), (1024,)),
        ("residual net, 9.4 M parameters", residual_net(), (3, 32, 32)),
    ):
        inputs = torch.randn(BATCH, *shape, device=device)
        turns = {
            name: trainer(copy.deepcopy(net).to(device), inputs, labels, name, group)
            for name in (TOGETHER, OURS, DDP_NCCL if direct else DDP)
        }
        yield Case("gpu", f"step, {title}", timed(turns, repetitions, 5), 5)


def timed(
    turns: dict[str, Callable[[], None]], repetitions: int, per_sample: int
) -> dict[str, list[float]]:
    """Time the contenders' turns, each until the GPU is done."""

    def done(run: Callable[[], None]) -> None:
        run()
        torch.cuda.synchronize()

    waiting = {name: partial(done, run) for name, run in turns.items()}
    return interleave(waiting, repetitions=repetitions, per_sample=per_sample, before=hvd.barrier)


def ours(tensors: list[Any]) -> None:
    handles = [
        hvd.allreduce_async_(each, op=hvd.Sum, name=f"gpu.{place}")
        for place, each in enumerate(tensors)
    ]
    for handle in handles:
        hvd.synchronize(handle)


def torchs(tensors: list[Any], group: Any) -> None:
    for work in [dist.all_reduce(each, group=group, async_op=True) for each in tensors]:
        work.wait()


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        parts = [
            [nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)]
            for _ in range(2)
        ]
        self.body = nn.Sequential(*parts[0], nn.ReLU(), *parts[1])

    def forward(self, x: Any) -> Any:
        return torch.relu(x + self.body(x))


def residual_net() -> nn.Module:
    """Return a network of seven blocks of two convolutions, for images of 32 x 32."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, padding=1)]
    for width in (64, 128, 256):
        layers += [Block(width), Block(width), nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)]
    layers += [Block(512), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES)]
    return nn.Sequential(*layers)
