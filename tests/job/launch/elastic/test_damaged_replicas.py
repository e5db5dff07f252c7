"""Bits that flip in the weights of a rank: a majority repairs them, two ranks compute again."""

from __future__ import annotations

import contextlib
import io
import os
import time
from typing import Any

import numpy as np
import pytest

import farandole.numpy as hvd
from farandole.core.api import elastic
from farandole.core.api.state import ObjectState
from farandole.errors import JobFailedError
from farandole.job.elastic.discovery import FixedHosts
from farandole.job.elastic.options import ElasticOptions
from farandole.job.elastic.plan import ElasticPlan
from farandole.job.launch import driver
from farandole.job.launch.display import Display
from farandole.job.launch.job import Job, settings_for
from tests.kits.messages import mentioning

pytestmark = pytest.mark.slow

STEPS = 12
Flips = list[tuple[int, int]]  # processes, and steps in which a bit of their weights flips


def flip(array: Any) -> None:
    """Flip one bit in the middle of an array of float32."""
    words = array.reshape(-1).view(np.uint32)
    words[words.size // 2] ^= np.uint32(1 << 20)


def train(flips: Flips, most: int = 1 << 20) -> tuple[int, bytes, str]:
    """Train on numpy arrays. ``most``: the greatest number of ranks for the last step; all ranks
    commit until the job has no more.

    Returns the number of steps computed, the bytes of the weights, and the host.
    """
    hvd.init()
    process, host = int(os.environ["FARANDOLE_MEMBER"]), os.environ["HOROVOD_HOSTNAME"]
    state = ObjectState(step=0, weights=np.ones(5000, np.float32), bias=np.zeros(3, np.float32))
    computed, left = 0, set(flips)

    @elastic.run
    def steps(state: Any) -> None:
        nonlocal computed
        while state.step < STEPS:
            noise = np.random.default_rng(state.step).standard_normal(5000).astype(np.float32)
            gradient = hvd.allreduce(state.weights * 0.1 + noise, op=hvd.Average, name="gradient")
            state.weights = state.weights - np.float32(0.1) * gradient
            if (process, state.step) in left:
                left.discard((process, state.step))
                flip(state.weights)
            state.step += 1
            computed += 1
            state.commit()
            while state.step == STEPS - 1 and hvd.size() > most:
                time.sleep(0.02)
                state.commit()

    steps(state)
    return computed, state.weights.tobytes(), host


def torch_train(flips: Flips) -> bytes:
    """Train a PyTorch model with momentum; a bit of a weight, then of the momentum flips.

    Returns the bytes of the weights.
    """
    import torch

    import farandole.torch as hvd

    hvd.init()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)
    process = int(os.environ["FARANDOLE_MEMBER"])

    @hvd.elastic.run
    def steps(state: Any) -> None:
        while state.step < STEPS:
            generator = torch.Generator().manual_seed(100 * state.step + hvd.rank())
            optimizer.zero_grad()
            model(torch.randn(6, 8, generator=generator)).square().mean().backward()
            optimizer.step()
            if (process, state.step) in flips:
                weight: Any = model[0].weight
                flip(weight.detach().numpy())
            if (process, state.step + 100) in flips:
                flip(optimizer.state[model[0].bias]["momentum_buffer"].numpy())
            state.step += 1
            state.commit()

    steps(state)
    parts = [each.detach().numpy().tobytes() for each in model.parameters()]
    return b"".join(parts)


def run_job(
    function: Any,
    args: tuple[Any, ...],
    hosts: dict[str, int],
    *,
    np: int,
    every: int,
    factor: float = 0.0,
) -> tuple[list[Any], str]:
    """Return the results, and the messages of the driver and the ranks."""
    said, errors = io.StringIO(), io.StringIO()
    job = Job(
        np=np,
        settings=settings_for(
            {},
            {
                "grace_seconds": 5.0,
                "check_replicas_every": every,
                "leave_out_stragglers": factor,
            },
        ),
        display=Display(say=said, err=errors),
        call=(function, args, {}),
        elastic=ElasticPlan(ElasticOptions(np=np, min_np=1, max_np=np), FixedHosts(hosts)),
    )
    with contextlib.redirect_stdout(io.StringIO()):
        return driver.run(job), said.getvalue() + errors.getvalue()


def undisturbed(size: int) -> bytes:
    results, _ = run_job(train, ([],), {"localhost": size}, np=size, every=0)
    weights: bytes = results[0][1]
    return weights


def test_three_ranks_repair_a_damaged_replica() -> None:
    results, said = run_job(train, ([(1, 5)],), {"localhost": 3}, np=3, every=1)
    assert [computed for computed, *_ in results] == [STEPS] * 3
    assert {weights for _, weights, _ in results} == {undisturbed(3)}
    for word in ("rank 1", "localhost", "weights", "FAR032"):
        assert word in said
    assert "bias" not in said


def test_two_ranks_compute_the_steps_again() -> None:
    """The bit flips two steps before the next comparison, and is in a commit by then."""
    results, said = run_job(train, ([(1, 5)],), {"localhost": 2}, np=2, every=4)
    assert [computed for computed, *_ in results] == [STEPS + 4] * 2  # since the fourth
    assert {weights for _, weights, _ in results} == {undisturbed(2)}
    assert "FAR032" in said


def test_a_host_with_two_damages_is_left_out() -> None:
    hosts = {"localhost": 2, "127.0.0.1": 1}
    results, said = run_job(train, ([(2, 3), (2, 6)], 2), hosts, np=3, every=1)
    assert [host for *_, host in results] == ["localhost", "localhost"]
    assert len({weights for _, weights, _ in results}) == 1
    assert said.count("rank 2 on 127.0.0.1") == 2


def test_ranks_that_differ_again_end_the_job() -> None:
    flips = [(1, step) for step in range(STEPS)]
    with pytest.raises(JobFailedError, match=mentioning("FAR032", "weights")):
        run_job(always, (flips,), {"localhost": 2}, np=2, every=1)


def always(flips: Flips) -> None:
    """Train with a program that changes the weights of one rank in every step."""
    hvd.init()
    state = ObjectState(step=0, weights=np.ones(5000, np.float32))

    @elastic.run
    def steps(state: Any) -> None:
        while state.step < STEPS:
            if (hvd.rank(), state.step) in flips:
                flip(state.weights)
            state.step += 1
            state.commit()

    steps(state)


def test_a_torch_model_and_its_momentum_are_repaired() -> None:
    hosts = {"localhost": 3}
    results, said = run_job(torch_train, ([(2, 3), (0, 106)],), hosts, np=3, every=1)
    assert len(set(results)) == 1  # rank 1 was never damaged
    for word in ("model.0.weight", "optimizer.momentum_buffer.1", "rank 2", "rank 0"):
        assert word in said
