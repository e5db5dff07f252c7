"""Several optimizers, of which each rank may use different ones in a step: missing gradients count
as zeros.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from tests.kits.messages import mentioning
from tests.run_job import job

torch = pytest.importorskip("torch", reason="torch is not installed")

# by step and rank: the models that the rank computes with, one backward pass for each string
PLANS: dict[str, list[list[Sequence[str]]]] = {
    "one each": [
        [["a"], ["b"], ["c"]],
        [["ab"], ["b"], ["c"]],
        [["a"], ["a"], []],
        [["abc"], ["abc"], ["abc"]],
    ],
    "other orders": [
        [["a", "b"], ["b", "a"], ["ba", "c"]],
        [["ab", "c"], ["c", "ab"], ["a", "b", "c"]],
    ],
}


def models() -> dict[str, Any]:
    """Return two models; ``a`` and ``b`` have one shape, as two critics do."""
    torch.manual_seed(3)
    return {"a": torch.nn.Linear(3, 2), "b": torch.nn.Linear(3, 2), "c": torch.nn.Linear(2, 1)}


def run_backward(nets: dict[str, Any], used: str, rank: int, step: int) -> None:
    total = 0.0
    for name in used:
        x = torch.arange(4.0 * nets[name].in_features).reshape(4, -1).sin() + rank + step
        total = total + (nets[name](x) ** 2).mean()
    total.backward()


def alone(plan: list[list[Sequence[str]]], n: int) -> list[Any]:
    """Return the gradients of one process that computes those of all ranks."""
    nets = models()
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9) for net in nets.values()]
    for step, of_rank in enumerate(plan):
        for optimizer in optimizers:
            optimizer.zero_grad()
        for rank, passes in enumerate(of_rank):
            for used in passes:
                run_backward(nets, used, rank, step)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.div_(n)
            optimizer.step()
    return [parameter.detach().clone() for net in nets.values() for parameter in net.parameters()]


@pytest.mark.parametrize("wire", ["shm", "tcp"])
@pytest.mark.parametrize("which", PLANS)
def test_ranks_use_other_optimizers_or_in_another_order(which: str, wire: str) -> None:
    plan = PLANS[which]

    def train(rank: int) -> Any:
        import farandole.torch as hvd

        nets = models()
        optimizers = [
            hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
            for net in nets.values()
        ]
        for step, of_rank in enumerate(plan):
            for optimizer in optimizers:
                optimizer.zero_grad()
            for used in of_rank[rank]:
                run_backward(nets, used, rank, step)
            for optimizer in optimizers:
                optimizer.step()
        return [
            parameter.detach().clone() for net in nets.values() for parameter in net.parameters()
        ]

    wanted = alone(plan, 3)
    for found in job(3, train, wire=wire):
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_overlapping_process_sets_in_another_order_per_rank() -> None:
    def train(rank: int) -> Any:
        import farandole.torch as hvd

        sets = [
            hvd.add_process_set([0, 1]),
            hvd.add_process_set([1, 2]),
            hvd.add_process_set([0, 2]),
        ]
        mine = [one for one in sets if one.included()]
        nets = [torch.nn.Linear(2, 1, bias=False) for _ in mine]
        optimizers = [
            hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=1.0), process_set=one)
            for net, one in zip(nets, mine, strict=True)
        ]
        for turn in range(2):
            for optimizer in optimizers:
                optimizer.zero_grad()
            x = torch.full((1, 2), float(rank))
            chain = x
            # the last one's gradient comes first
            for net in nets if (rank > 0) == (turn == 0) else nets[::-1]:
                chain = net(chain).repeat(1, 2)
            chain.sum().backward()
            found = [net.weight.grad.clone() for net in nets]
            for optimizer in optimizers:
                optimizer.step()
        return {tuple(one.ranks): grad for one, grad in zip(mine, found, strict=True)}

    weights = job(3, train, dynamic_process_sets=True)
    for one in ((0, 1), (1, 2), (0, 2)):
        assert torch.equal(weights[one[0]][one], weights[one[1]][one])


def test_an_error_in_one_process_set_leaves_another_alone() -> None:
    def train(rank: int) -> Any:
        import farandole.torch as hvd

        sets = [hvd.add_process_set([0, 1]), hvd.add_process_set([0, 2])]
        nets = [torch.nn.Linear(2, 1 + (rank == 1), bias=False), torch.nn.Linear(2, 1, bias=False)]
        mine = [(net, one) for net, one in zip(nets, sets, strict=True) if one.included()]
        made = [
            hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=1.0), process_set=one)
            for net, one in mine
        ]
        total = sum(net(torch.full((1, 2), 1.0 + rank)).sum() for net, _ in mine)
        if rank == 2:
            total.backward()
        else:
            with pytest.raises(ValueError, match="rank 1"):
                total.backward()
        hvd.barrier()
        return len(made), nets[1].weight.grad

    first, _, third = job(3, train, dynamic_process_sets=True)
    for found in (first[1], third[1]):
        torch.testing.assert_close(found, torch.full((1, 2), 2.0))


def test_numbers_are_those_of_the_making_also_on_another_engine() -> None:
    """Twins with equal names are not confused, in any order of first use."""

    def train(rank: int) -> Any:
        import farandole.torch as hvd

        nets = models()
        twins = [
            hvd.DistributedOptimizer(
                torch.optim.SGD(nets[name].parameters(), lr=0.1), nets[name].named_parameters()
            )
            for name in "ab"
        ]
        run_backward(nets, "ab"[rank], 0, 0)
        for optimizer in twins:
            optimizer.step()
        return [nets[name].weight.grad.clone() for name in "ab"]

    first, second = job(2, train)
    nets = models()
    run_backward(nets, "ab", 0, 0)
    for name, one, other in zip("ab", first, second, strict=True):
        assert torch.equal(one, other)
        torch.testing.assert_close(one, nets[name].weight.grad / 2)


def test_a_rank_that_steps_waits_for_the_gradients_of_all() -> None:
    """Also if another rank computes them later than others; and no gradient is silently dropped."""

    def train(rank: int) -> Any:
        import farandole.torch as hvd

        nets = models()
        made = {
            name: hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
            for name, net in nets.items()
        }
        for step in range(2):
            for optimizer in made.values():
                optimizer.zero_grad()
            for todo in (["b", "c", "a", "A", "B", "C"], ["a", "A", "b", "c", "B", "C"])[rank]:
                if todo in nets:
                    run_backward(nets, todo, rank, step)
                else:
                    made[todo.lower()].step()
        found = [
            parameter.detach().clone() for net in nets.values() for parameter in net.parameters()
        ]
        for optimizer in made.values():
            optimizer.zero_grad()
        run_backward(nets, "ab"[rank], rank, 0)
        with pytest.raises(AssertionError, match=mentioning("loss.backward")):
            made["ba"[rank]].zero_grad()
        nets["ba"[rank]].zero_grad()  # which the optimizer does not see
        with pytest.raises(AssertionError, match=mentioning("loss.backward")):
            run_backward(nets, "ba"[rank], rank, 0)
        return found

    wanted = alone([[["b", "c", "a"], ["a", "b", "c"]]] * 2, 2)
    for found in job(2, train):
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


AGAIN = """
import gc
import torch
import farandole.torch as hvd

def made(value):
    weight = torch.nn.Parameter(torch.full((2,), value))
    return weight, hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("weight", weight)], op=hvd.Sum)

def step(weight, optimizer):
    optimizer.zero_grad()
    (weight * (hvd.rank() + 1.0)).sum().backward()
    optimizer.step()

hvd.init()
gc.disable()
dropped = made(0.0)
step(*dropped)
dropped = None
if hvd.rank() == 1:
    gc.collect()
old = made(0.0)
unused = made(0.0)
step(*old)
hvd.shutdown()
hvd.init()
new = made(0.0)
for each in (new, old, unused, new):
    step(*each)
print(*(int(weight[0]) for weight, _ in (old, unused, new)))
"""


def test_after_another_init_it_does_not_matter_which_are_garbage() -> None:
    """Ranks collect garbage at different times."""
    command = [sys.executable, "-m", "farandole", "run", "-np", "2", sys.executable, "-c", AGAIN]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    found = sorted(done.stdout.splitlines())
    assert (done.returncode, found) == (
        0,
        [f"[{rank}]<stdout>:-6 -3 -6" for rank in range(2)],
    ), done.stderr
