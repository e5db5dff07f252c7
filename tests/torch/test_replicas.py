"""Replicas of a PyTorch state: parameters and optimizer states, while they are equal."""

from __future__ import annotations

from typing import Any

import torch

from tests.kits.replicas import check_state
from tests.run_job import job


def _train(strategy: str, steps: int) -> Any:
    import farandole.torch as hvd

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), strategy=strategy
    )
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()
    return hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)


def _with_allreduce(_: int) -> None:
    state = _train("allreduce", 1)
    check_state(state, ["model.0.weight", "model.1.bias", "optimizer.momentum_buffer.0"])
    assert not [name for name in state.replicas() if "running" in name]


def _with_local_sgd(_: int) -> list[int]:
    return [len(_train("local_sgd:2", steps).replicas()) for steps in range(5)]


def test_parameters_and_momenta_are_repaired() -> None:
    job(1, _with_allreduce)


def test_local_sgd_has_replicas_after_an_average_only() -> None:
    assert job(2, _with_local_sgd) == [[0, 0, 4, 0, 4]] * 2
