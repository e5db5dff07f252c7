"""PyTorch with parameter servers in elastic jobs: a rank and the primary are killed."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import numpy as np
import pytest

import farandole
from farandole.job import context
from farandole.job.report import keys

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.slow

STEPS, RATE, MOMENTUM = 30, 0.2, 0.5
GOAL = np.arange(1.0, 5.0)


def trained(spec: str) -> tuple[int, list[float], list[float]]:
    """Walk to the goal; return the size of the job, the rank's weights, and the server's."""
    import farandole.torch as hvd

    hvd.init()
    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 1, bias=False, dtype=torch.float64)
    torch.nn.init.zeros_(model.weight)
    inner = torch.optim.SGD(model.parameters(), lr=RATE)
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters(), strategy=spec)
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0, killed=False)

    @hvd.elastic.run
    def train(state: Any) -> None:
        while state.step < STEPS:
            if state.step == 5 and os.environ["FARANDOLE_MEMBER"] == "1":
                os.kill(os.getpid(), signal.SIGKILL)
            if state.step == 10 and hvd.rank() == 0 and not state.killed:
                state.killed = True
                store = context.store()
                assert store is not None
                primary = json.loads(json.loads(store.get(keys.chain(0), 60.0))[0])
                os.kill(primary["pid"], signal.SIGKILL)
            optimizer.zero_grad()
            (0.5 * (model.weight - torch.tensor(GOAL)).square().sum()).backward()
            optimizer.step()
            state.step += 1
            state.commit()
        weights = model.weight.detach().clone()
        optimizer.average_weights()
        state.found = weights.flatten().tolist(), model.weight.detach().flatten().tolist()

    state.found = None
    train(state)
    return hvd.size(), *state.found


def run(spec: str) -> list[Any]:
    found: list[Any] = farandole.run(trained, (spec,), np=3, min_np=2, max_np=3)
    return found


def test_synchronous_ranks_and_servers_return_to_a_commit() -> None:
    weights, velocity = np.zeros(4), np.zeros(4)
    for _ in range(STEPS):
        velocity = MOMENTUM * velocity - RATE * (weights - GOAL)
        weights = weights + velocity
    found = run(f"ps:1,optimizer=momentum,momentum={MOMENTUM}")
    assert len(found) >= 2
    for _, own, centre in found:
        np.testing.assert_allclose(own, weights, rtol=1e-12)
        assert own == centre


def test_asynchronous_ranks_continue_from_the_servers() -> None:
    found = run("ssp:2")
    assert len(found) >= 2
    for _, _, centre in found:
        np.testing.assert_allclose(centre, GOAL, rtol=1e-3)
        assert centre == found[0][2]
