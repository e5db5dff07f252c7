"""Ranks that train different models with MXNet, or read the same data, are reported; others are
not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.kits.heard import heard
from tests.kits.messages import mentions

mx = pytest.importorskip("mxnet", reason="mxnet is not installed")


def network(seed: int) -> Any:
    net = mx.gluon.nn.HybridSequential(prefix="net_")
    net.add(mx.gluon.nn.Dense(9, activation="tanh", in_units=6), mx.gluon.nn.Dense(2, in_units=9))
    net.initialize()
    generator = np.random.default_rng(seed)
    for _, parameter in sorted(net._collect_params_with_prefix().items()):
        parameter.set_data(mx.nd.array(generator.standard_normal(parameter.shape)))
    return net


def alike(rank: int) -> Any:
    import farandole.mxnet as hvd

    net = network(rank)
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    return net


def train(
    rank: int,
    net: Any,
    steps: int,
    *,
    rate: float = 0.1,
    own_data: bool = True,
    before: Callable[[int], Any] = lambda step: None,
) -> None:
    import farandole.mxnet as hvd

    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": rate})
    for step in range(1, steps + 1):
        before(step)
        generator = np.random.default_rng(100 * step + rank * own_data)
        x, y = (mx.nd.array(generator.standard_normal((4, n))) for n in (6, 2))
        with mx.autograd.record():
            loss = mx.gluon.loss.L2Loss()(net(x), y)
        loss.backward()
        trainer.step(4)
    mx.nd.waitall()


def test_mistakes() -> None:
    def no_broadcast(rank: int) -> None:
        train(rank, network(rank), 2)

    def late_load(rank: int) -> None:
        net = alike(rank)
        bias = net[1].bias
        train(
            rank,
            net,
            9,
            before=lambda step: bias.set_data(bias.data() + 1) if (rank, step) == (0, 6) else None,
        )

    def rate(rank: int) -> None:
        train(rank, alike(rank), 3, rate=0.1 * (1 + rank))

    def same_data(rank: int) -> None:
        train(rank, alike(rank), 3, own_data=False)

    def well(rank: int) -> None:
        train(rank, alike(rank), 9)

    programs = no_broadcast, late_load, rate, same_data, well
    (start, drift, other_rate, data, nothing), other = heard(2, *programs)
    assert nothing == []
    assert other == [[]] * len(programs)
    assert [len(texts) for texts in (start, drift, other_rate, data)] == [1] * 4, (
        start,
        drift,
        other_rate,
        data,
    )
    assert mentions(start[0], "different weights")
    assert "in 4 of 4 parameters" in start[0]
    assert "hvd.broadcast_parameters(net.collect_params(), root_rank=0)" in start[0]
    assert "in 1 of 4 parameters, first in " in drift[0]
    assert mentions(drift[0], "step 4", "step 8")
    assert "learning_rate is 0.1 on rank 0, 0.2 on rank 1" in other_rate[0]
    assert mentions(data[0], "gradients")


def test_a_plain_trainer_is_found_at_20_steps() -> None:
    def plain(rank: int, *, by_hand: bool = False) -> None:
        import farandole.mxnet as hvd

        net = network(rank)
        trainer = mx.gluon.Trainer(net.collect_params(), "sgd", update_on_kvstore=False)
        for _ in range(25):
            with mx.autograd.record():
                loss = net(mx.nd.ones((4, 6))).square().mean()
            loss.backward()
            if by_hand:
                for parameter in net.collect_params().values():
                    hvd.allreduce_(parameter.grad())
            trainer.step(4)

    def reduced(rank: int) -> None:
        plain(rank, by_hand=True)

    said, others = heard(2, reduced, plain)
    assert others == [[], []]
    assert [len(texts) for texts in said] == [0, 1], said
    assert mentions(said[1][0], "20 steps", "Trainer", "2", "FAR012")
