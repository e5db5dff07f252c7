"""Hosts that are excluded because a rank there computes for longer than the others."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import pytest

import farandole.numpy as hvd
from farandole.core.api import elastic
from farandole.core.api.state import ObjectState
from tests.job.launch.elastic.test_damaged_replicas import run_job
from tests.kits.messages import mentions

pytestmark = pytest.mark.slow

HOSTS = {"localhost": 1, "127.0.0.1": 1}
SLOW = "127.0.0.1"


def dawdle() -> tuple[str, int]:
    """Train until the host of the slow process has been left. Returns the host and the steps."""
    hvd.init()
    host = os.environ["HOROVOD_HOSTNAME"]
    state = ObjectState(step=0, sizes=[])

    @elastic.run
    def steps(state: Any) -> None:
        while not state.sizes or state.sizes[-1] > 1:
            hvd.allreduce(np.ones(10), name="gradient")
            time.sleep(0.012 if host == SLOW else 0.001)
            state.step += 1
            state.sizes = [*state.sizes[-1:], hvd.size()]
            state.commit()

    steps(state)
    return host, state.step


def dawdle_in_epochs() -> tuple[str, int]:
    """Train until the host of the slow process has been left, with one commit per epoch. Returns
    the host and the epochs.
    """
    import torch

    import farandole.torch as hvd

    hvd.init()
    host = os.environ["HOROVOD_HOSTNAME"]
    model = torch.nn.Linear(4, 1)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, epoch=0)

    @hvd.elastic.run
    def epochs(state: Any) -> None:
        while hvd.size() > 1 or not state.epoch:
            for _ in range(40):
                optimizer.zero_grad()
                model(torch.ones(8, 4)).square().mean().backward()
                time.sleep(0.03 if host == SLOW else 0.002)
                optimizer.step()
            state.epoch += 1
            state.commit()

    epochs(state)
    return host, state.epoch


def test_a_host_with_a_straggler_is_left_out() -> None:
    results, said = run_job(dawdle, (), HOSTS, np=2, every=0, factor=3.0)
    ((host, steps),) = results
    assert host == "localhost"
    assert steps > 100
    assert mentions(said, SLOW, "rank 1")


def test_a_program_may_commit_at_the_ends_of_epochs() -> None:
    results, said = run_job(dawdle_in_epochs, (), HOSTS, np=2, every=0, factor=3.0)
    ((host, epochs),) = results
    assert host == "localhost"
    assert 2 <= epochs < 8
    assert mentions(said, SLOW, "rank 1")
