"""Elastic training with MXNet: the state, and a job that loses a rank and gets another."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import farandole

mx = pytest.importorskip("mxnet", reason="mxnet is not installed")

STEPS = 12


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_a_restored_state_repeats_its_steps(name: str) -> None:
    import farandole.mxnet as hvd
    from tests.mxnet.networks import OPTIMIZERS, backward, network, rows, weights

    hvd.init()
    try:
        net = network()
        trainer = hvd.DistributedTrainer(net.collect_params(), *OPTIMIZERS[name])

        def step(number: int) -> list[Any]:
            backward(net, *rows(number, 0, 1))
            trainer.step(12)
            return weights(net)

        step(0)
        state = hvd.elastic.MXNetState(net, trainer, number=1)
        first = step(1), step(2)
        state.number = 3
        state.restore()
        assert state.number == 1
        for before, after in zip(first, (step(1), step(2)), strict=True):
            for one, other in zip(before, after, strict=True):
                np.testing.assert_array_equal(one, other)
    finally:
        hvd.shutdown()


def test_a_network_without_parameters_is_refused() -> None:
    from farandole.mxnet.elastic import MXNetState

    net = mx.gluon.nn.Dense(2)
    net.initialize()
    with pytest.raises(ValueError, match=net.weight.name):
        MXNetState(net)


def trained(folder: Path) -> tuple[int, list[float], int, float]:
    import os

    import mxnet as mx

    import farandole.mxnet as hvd

    hvd.init()
    process = int(os.environ["FARANDOLE_MEMBER"])
    (folder / str(process)).touch()
    net = mx.gluon.nn.Dense(1, in_units=2, use_bias=False)
    net.initialize(mx.init.Zero() if process < 3 else mx.init.One())
    rates = {"learning_rate": 1.0, "momentum": 0.5}
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", rates)
    sizes: list[int] = []

    @hvd.elastic.run
    def train(state: Any) -> None:
        while state.step < STEPS:
            if process == 1 and state.step == 3:
                os._exit(1)
            if state.step >= 5 and hvd.size() == 2:
                deadline = time.monotonic() + 60
                while not (folder / "3").exists() and time.monotonic() < deadline:
                    time.sleep(0.02)
                time.sleep(0.3)
            with mx.autograd.record():
                loss = -net(mx.nd.ones((2, 2)))
            loss.backward()
            trainer.step(2)
            state.step += 1
            sizes.append(hvd.size())
            state.commit()

    state = hvd.elastic.MXNetState(net, trainer, step=0)
    train(state)
    return process, net.weight.data().asnumpy().reshape(-1).tolist(), sizes[-1], sizes[0]


@pytest.mark.slow
def test_ranks_are_lost_and_join(tmp_path: Path) -> None:
    results = farandole.run(trained, (tmp_path,), np=3, min_np=2, max_np=3)
    # one step of SGD with momentum 0.5 and a gradient of -1, whatever the number of ranks is
    weight, velocity = 0.0, 0.0
    for _ in range(STEPS):
        velocity = 0.5 * velocity + 1.0
        weight += velocity
    assert sorted(process for process, *_ in results) == [0, 2, 3]
    for _, found, last, _ in results:
        assert found == pytest.approx([weight, weight])
        assert last == 3
