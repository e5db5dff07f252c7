"""Strategies that exchange weights in elastic jobs: ranks are killed and join, and all models still
reach the optimum that is known.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

import farandole

torch = pytest.importorskip("torch", reason="torch is not installed")

STEPS, GATE = 100, 60  # at the gate, ranks wait for the one that joins
KILLS = {(1, 22), (0, 41)}  # processes and steps: rank 0 has the values of the averages by quorum
IN_STEP = (
    "local_sgd:4",
    "local_sgd:4|topk:0.5",
    "local_sgd:4,outer=nesterov,lr=0.5,momentum=0.5|int8",
    "diloco:4,momentum=0.5",
    "bmuf:4",
    "easgd:4",
    "easgd:4|int8",
    "gossip:ring",
    "gossip:exponential,every=2|int8",
)
APART = (  # ranks commit without each other
    "local_sgd:4,quorum=2,grace=0.01",
    "diloco:4,momentum=0.5,quorum=0.5,grace=0",
    "gossip_async:ring",
    "gossip_async:complete",
)


class Found(NamedTuple):
    """The findings of a rank: distances from the optimum, and facts at the begin of each
    membership: its size, the step, whether all ranks have the same slots, and which strategies have
    momentum.
    """

    distances: list[float]
    begins: list[tuple[int, int, list[bool], list[bool]]]


def slots_of(optimizer: Any) -> list[list[list[Any]]]:
    state = optimizer.state_dict()["farandole"]
    return [[array.tolist() for array in slot] for slot in state["slots"]]


def trained(specs: Sequence[str]) -> Found:
    """Fit one model for each strategy to data that all of them fit exactly."""
    import farandole.torch as hvd

    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    process = int(os.environ["FARANDOLE_MEMBER"])
    goal = torch.arange(1.0, 6.0)
    models = [torch.nn.Linear(5, 1, bias=False) for _ in specs]
    optimizers = []
    for model, spec in zip(models, specs, strict=True):
        strategy, _, codec = spec.partition("|")
        inner = torch.optim.SGD(model.parameters(), lr=0.05)
        optimizers.append(
            hvd.DistributedOptimizer(
                inner, model.named_parameters(), strategy=strategy, codec=codec or None
            )
        )
    named = {f"model{place}": model for place, model in enumerate(models)}
    named |= {f"optimizer{place}": one for place, one in enumerate(optimizers)}
    state = hvd.elastic.TorchState(step=0, begins=[], **named)

    @hvd.elastic.run
    def train(state: Any) -> None:
        mine = [slots_of(one) for one in optimizers]
        everyone = hvd.allgather_object(mine)
        same = [all(each[place] == mine[place] for each in everyone) for place in range(len(mine))]
        momentum = [len(slots) > 1 and any(map(any, slots[1][0])) for slots in mine]
        state.begins.append((hvd.size(), state.step, same, momentum))
        while state.step < STEPS:
            if (process, state.step) in KILLS:
                os.kill(os.getpid(), signal.SIGKILL)
            while state.step == GATE and hvd.size() < 3:
                time.sleep(0.01)
                state.commit()
            random = torch.Generator().manual_seed(1000 * state.step + process)
            x = torch.randn(8, 5, generator=random)
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(model(x)[:, 0], x @ goal).backward()
                optimizer.step()
            state.step += 1
            state.commit()

    train(state)
    for optimizer in optimizers:
        optimizer.average_weights()
    return Found([(model.weight[0] - goal).abs().max().item() for model in models], state.begins)


@pytest.mark.slow
@pytest.mark.parametrize("specs", [IN_STEP, APART], ids=["in step", "apart"])
def test_after_kills_and_joins_all_reach_the_optimum(specs: Sequence[str]) -> None:
    results = farandole.run(trained, (specs,), np=3, min_np=2, max_np=3)
    assert len(results) == 3
    for found in results:
        assert max(found.distances) < 0.02, dict(zip(specs, found.distances, strict=True))
        sizes = [size for size, *_ in found.begins]
        assert (sizes[0], sizes[-1]) == (3, 3)
        assert len(sizes) >= 3, "two losses"
        for _, step, same, momentum in found.begins:
            shared = [not spec.startswith("gossip_async") for spec in specs]
            assert all(equal for equal, one in zip(same, shared, strict=True) if one), step
            wanted = [step > 4 and ("outer" in one or one[0] in "db") for one in specs]
            assert momentum == wanted, step
