"""A whole training step: alone, and with the gradients of all ranks averaged by ours or by DDP on Gloo."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import farandole.torch as hvd
from benchmarks.samples import ALONE, DDP, OURS, TOGETHER, Case, interleave

STEPS = 5
REPETITIONS = 31


def mlp() -> nn.Module:
    """4.2 million parameters."""
    return nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1024), nn.ReLU(), nn.Linear(1024, 10))


def conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


# (name, model, shape of one batch)
MODELS: list[tuple[str, Callable[[], nn.Module], tuple[int, ...]]] = [
    ("MLP, 4.2 M parameters", mlp, (32, 1024)),
    ("conv net, 1.2 M parameters", conv_net, (32, 1, 28, 28)),
]


def cases(peers: object, quick: bool) -> Iterator[Case]:
    """``peers`` are connected already, which is all that DDP needs of them."""
    steps = 1 if quick else STEPS
    for name, make, shape in MODELS:
        torch.manual_seed(0)
        model, images, labels = make(), torch.randn(shape), torch.randint(10, shape[:1])
        turns = {
            ALONE: only_on_rank_0(trainer(copy.deepcopy(model), images, labels, "alone")),
            TOGETHER: trainer(copy.deepcopy(model), images, labels, "alone"),
            OURS: trainer(copy.deepcopy(model), images, labels, "ours"),
            DDP: trainer(copy.deepcopy(model), images, labels, "ddp"),
        }
        repetitions = 3 if quick else REPETITIONS
        samples = interleave(turns, repetitions=repetitions, per_sample=steps, before=hvd.barrier)
        yield Case("step", name, samples, steps)


def trainer(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, how: str) -> Callable[[], None]:
    """A function that takes one step."""
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    if how == "ours":
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    elif how == "ddp":
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def only_on_rank_0(run: Callable[[], None]) -> Callable[[], None]:
    return run if hvd.rank() == 0 else lambda: None
