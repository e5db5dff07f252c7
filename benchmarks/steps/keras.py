"""Keras 3 on PyTorch, compared with torch's DistributedDataParallel on Gloo around the same Keras
model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import farandole.keras as hvd
from benchmarks.samples import ALONE, DDP, OURS, TOGETHER
from benchmarks.steps import BATCH, CLASSES, LEARNING_RATE, MOMENTUM

if TYPE_CHECKING:
    from benchmarks.crew import Plan

layers = keras.layers
SHAPES = {"mlp": (BATCH, 1024), "conv_net": (BATCH, 28, 28, 1)}


def network(model: str) -> Any:
    if model == "mlp":
        inner = [layers.Dense(2048, activation="relu"), layers.Dense(1024, activation="relu")]
    else:
        inner = [
            layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
        ]
    return keras.Sequential([layers.Input(SHAPES[model][1:]), *inner, layers.Dense(CLASSES)])


class Team:
    """See ``steps.Team``."""

    def turns(self, model: str) -> dict[str, Callable[[], object]]:
        keras.utils.set_random_seed(0)
        images, labels = torch.randn(SHAPES[model]), torch.randint(CLASSES, (BATCH,))
        return {
            name: trainer(network(model), images, labels, name)
            for name in (ALONE, TOGETHER, OURS, DDP)
        }

    def close(self) -> None:
        hvd.shutdown()
        dist.destroy_process_group()


def connect(rank: int, plan: Plan) -> Team:
    torch.set_num_threads(1)
    hvd.init()
    dist.init_process_group(
        "gloo", init_method=f"file://{plan.rendezvous}", rank=rank, world_size=plan.size
    )
    return Team()


def trainer(
    model: Any, images: torch.Tensor, labels: torch.Tensor, name: str
) -> Callable[[], object]:
    """Return a function that takes one step, as a custom loop does."""
    optimizer: Any = keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM)
    if name == OURS:
        optimizer = hvd.DistributedOptimizer(optimizer)
    optimizer.build(model.trainable_variables)
    forward = DistributedDataParallel(model, gradient_as_bucket_view=True) if name == DDP else model
    variables = model.trainable_variables

    def step() -> None:
        model.zero_grad()
        torch.nn.functional.cross_entropy(forward(images), labels).backward()
        with torch.no_grad():
            optimizer.apply([variable.value.grad for variable in variables], variables)

    return step
