"""PyTorch, compared with DistributedDataParallel on Gloo."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import farandole.torch as hvd
from benchmarks.peers import DeepSpeed, Gloo, Mpi, Ours, deepspeed_installed
from benchmarks.samples import ALONE, DDP, DDP_NCCL, OURS, TOGETHER
from benchmarks.steps import BATCH, CLASSES, LEARNING_RATE, MOMENTUM

if TYPE_CHECKING:
    from benchmarks.crew import Plan


def mlp() -> nn.Module:
    """Return an MLP with 4.2 million parameters."""
    return nn.Sequential(
        nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )


def conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(9216, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (BATCH, 1024)),
    "conv_net": (conv_net, (BATCH, 1, 28, 28)),
}


class Team:
    """See ``steps.Team``."""

    def __init__(self, peers: list[Any]) -> None:
        self.peers = peers  # connected: sufficient for DDP

    def turns(self, model: str) -> dict[str, Callable[[], object]]:
        make, shape = MODELS[model]
        torch.manual_seed(0)
        net, images, labels = make(), torch.randn(shape), torch.randint(CLASSES, shape[:1])
        return {
            name: trainer(copy.deepcopy(net), images, labels, name)
            for name in (ALONE, TOGETHER, OURS, DDP)
        }

    def close(self) -> None:
        for peer in reversed(self.peers):
            peer.close()


def connect(rank: int, plan: Plan) -> Team:
    torch.set_num_threads(1)
    hvd.init()
    if plan.driver:
        return Team([Ours()])
    peers: list[Any] = [Ours(), Gloo(rank, plan.size, plan.rendezvous)]
    if plan.mpi:
        peers.append(Mpi())
    if plan.hosts == 1 and deepspeed_installed():
        peers.append(DeepSpeed(rank, plan.size, plan.rendezvous))
    return Team(peers)


def trainer(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, name: str, group: Any = None
) -> Callable[[], None]:
    """Return a function that takes one step. ``group``: the group of DDP; default: all ranks."""
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    if name == OURS:
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    elif name in (DDP, DDP_NCCL):
        model = DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step
