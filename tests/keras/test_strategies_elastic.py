"""Strategies that exchange weights in elastic jobs with Keras: a new process gets the strategy's
state, and the models reach the optimum that is known.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

import farandole

pytest.importorskip("keras", reason="Keras is not installed")

SPECS = ("diloco:4,momentum=0.5", "easgd:2", "gossip:ring")
STEPS, KILLED = 60, (1, 14)  # a process and its step, between two exchanges


def slots_of(model: Any) -> list[Any]:
    slots = model.optimizer.state_dict().get("slots", [])
    return [[array.tolist() for array in slot] for slot in slots]


def trained(version: int) -> Any:
    """Distances from the optimum, and for each membership whether the slots are the same on all
    ranks, and whether there is momentum.
    """
    hvd: Any
    keras: Any
    if version == 2:
        os.environ["TF_USE_LEGACY_KERAS"] = "1"
        import tf_keras as keras

        import farandole.tensorflow.keras as hvd
    else:
        import keras

        import farandole.keras as hvd
    from farandole.core.api.objects import allgather_object
    from farandole.core.api.state import ObjectState

    hvd.init()
    process = int(os.environ["FARANDOLE_MEMBER"])
    goal = np.arange(1.0, 6.0, dtype=np.float32)
    models, states = [], []
    for spec in SPECS:
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        model = keras.Sequential([keras.layers.InputLayer((5,)), layer])
        inner = keras.optimizers.SGD(0.05)
        model.compile(optimizer=hvd.DistributedOptimizer(inner, strategy=spec), loss="mse")
        models.append(model)
        states.append(hvd.elastic.KerasState(model))

    class Together(ObjectState):
        def save(self) -> None:
            for each in states:
                each.save()
            super().save()

        def restore(self) -> None:
            for each in states:
                each.restore()
            super().restore()

        def sync(self) -> None:
            for each in states:
                each.sync()
            super().sync()

    @hvd.elastic.run
    def train(state: Any) -> None:
        mine = [slots_of(model) for model in models[:2]]  # gossip has none
        same = all(each == mine for each in allgather_object(mine))
        momentum = len(mine[0]) == 2 and bool(np.any(mine[0][1][0]))
        state.begins.append((state.step, same, momentum))
        while state.step < STEPS:
            if (process, state.step) == KILLED:
                os.kill(os.getpid(), signal.SIGKILL)
            random = np.random.default_rng(1000 * state.step + process)
            x = random.standard_normal((8, 5)).astype(np.float32)
            for model in models:
                model.train_on_batch(x, (x @ goal)[:, None])
            state.step += 1
            state.commit()

    state = Together(step=0, begins=[])
    train(state)
    for model in models:
        model.optimizer.average_weights()
    found = [float(np.abs(model.get_weights()[0][:, 0] - goal).max()) for model in models]
    return found, state.begins


@pytest.mark.slow
@pytest.mark.parametrize("version", [3, 2])
def test_a_new_process_gets_the_state_of_strategies(version: int) -> None:
    if version == 2:
        pytest.importorskip("tf_keras", reason="Keras 2 is not installed")
    results = farandole.run(trained, (version,), np=2, min_np=2, max_np=2)
    for distances, begins in results:
        assert begins == [(0, True, False), (KILLED[1], True, True)]
        assert max(distances) < 0.2, distances
