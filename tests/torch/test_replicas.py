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


def _with_own_weights(rank: int) -> list[list[str]]:
    import farandole.torch as hvd

    def names_with(model: torch.nn.Module, optimizer: Any) -> list[str]:
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        return sorted(hvd.elastic.TorchState(model=model, optimizer=optimizer).replicas())

    found = []
    pair = hvd.add_process_set([0, 1])
    model = torch.nn.Linear(3, 2)
    if rank < 2:  # the experts of two ranks
        sgd: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters(), process_set=pair)
        found.append(names_with(model, optimizer))
    sharded = torch.nn.Linear(3, 2)
    sharded.weight._fsdp_flattened = True
    adam = torch.optim.SGD(sharded.parameters(), lr=0.1, momentum=0.9)
    found.append(names_with(sharded, adam))

    class ZeroRedundancyOptimizer(torch.optim.SGD):
        """An optimizer with the name of the one in torch.distributed."""

    plain = torch.nn.Linear(3, 2)
    found.append(names_with(plain, ZeroRedundancyOptimizer(plain.parameters(), lr=0.1)))
    return found


def test_weights_of_one_rank_are_no_replicas() -> None:
    found = job(3, _with_own_weights, dynamic_process_sets=True)
    sharded = ["model.bias", "optimizer.momentum_buffer.1"]
    plain = ["model.bias", "model.weight"]
    assert found == [[[], sharded, plain], [[], sharded, plain], [sharded, plain]]
