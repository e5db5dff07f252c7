"""Programs whose ranks train different replicas, with ``--check-replicas-every``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from farandole.checks.finding import findings
from farandole.errors import RanksDifferError
from tests.kits.messages import mentioning, mentions
from tests.run_job import job

torch = pytest.importorskip("torch", reason="torch is not installed")


def train(mistake: str, steps: int = 6) -> Any:
    """Train a model with momentum. Returns the codes and texts of the findings, and whether the
    weights of all ranks are equal at the end.
    """
    import farandole.torch as hvd

    before = len(findings())
    torch.manual_seed(hvd.rank() if mistake == "seed" else 0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh())
    rate = 0.1 * (1 + (hvd.rank() == 1) * (mistake == "rate"))
    sgd = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters())
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)
    weight: Any = model[0].weight
    generator = torch.Generator().manual_seed(hvd.rank())
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 6, generator=generator)).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            if mistake == "clamp" and hvd.rank() == 0:
                weight[:4].clamp_(-0.1, 0.1)
            if mistake == "bit" and (hvd.rank(), step) in ((2, 0), (1, 3)):
                weight.numpy().reshape(-1).view(np.uint32)[9] ^= np.uint32(1 << 20)
        state.step += 1
        state.commit()
    all_weights = hvd.allgather_object([each.tolist() for each in model.parameters()])
    found = [(each.code, each.text) for each in findings()[before:]]
    return found, all(each == all_weights[0] for each in all_weights)


def several(rank: int) -> Any:
    return [train(mistake) for mistake in ("", "bit", "rate", "clamp")]


def test_mistakes_are_distinguished_from_damage() -> None:
    found = job(3, several, check_replicas_every=1, check="off")
    right, bit, rate, clamp = found[0]
    assert right == ([], True)
    assert [code for code, _ in bit[0]] == ["FAR032", "FAR032"]
    assert mentions(bit[0][0][1], "rank 2", "model.0.weight")
    assert mentions(bit[0][1][1], "rank 1", "model.0.weight")
    assert [code for code, _ in rate[0]] == ["FAR033"]
    assert mentions(rate[0][0][1], "rank 1", "model.0.weight", "hvd.broadcast_parameters")
    assert [code for code, _ in clamp[0]] == ["FAR033"]
    assert mentions(clamp[0][0][1], "rank 0", "model.0.weight")
    assert all(is_equal for each in found for _, is_equal in each)


def test_ranks_that_begin_with_different_weights_end() -> None:
    def check(rank: int) -> Any:
        with pytest.raises(RanksDifferError, match=mentioning("FAR033", "model.0.weight")):
            train("seed")
        return True

    for size in (2, 3):
        assert job(size, check, check_replicas_every=1, check="off") == [True] * size


def test_a_mistake_ends_the_job_if_demanded() -> None:
    def check(rank: int) -> Any:
        with pytest.raises(RanksDifferError, match=mentioning("FAR033", "rank 0")):
            train("clamp")
        return True

    assert job(3, check, check_replicas_every=1, check="raise") == [True] * 3
