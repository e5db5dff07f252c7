"""A small network, and its training by one rank and by several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

mx = pytest.importorskip("mxnet", reason="mxnet is not installed")

BATCH, STEPS = 12, 4
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("sgd", {"learning_rate": 0.1, "wd": 0.01}),
    "momentum": ("sgd", {"learning_rate": 0.05, "momentum": 0.9}),
    "adam": ("adam", {"learning_rate": 0.01, "epsilon": 1e-3}),
}


def network(seed: int = 0) -> Any:
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(9, activation="tanh", in_units=6), mx.gluon.nn.Dense(2, in_units=9))
    net.initialize()
    fill(net, seed)
    return net


def fill(net: Any, seed: int) -> None:
    """Fill with the same numbers in every process."""
    generator = np.random.default_rng(seed)
    for _, parameter in sorted(net._collect_params_with_prefix().items()):
        parameter.set_data(mx.nd.array(generator.standard_normal(parameter.shape)))


def rows(step: int, rank: int, n: int) -> tuple[Any, Any]:
    generator = np.random.default_rng(1000 + step)
    x, y = generator.standard_normal((BATCH, 6)), generator.standard_normal((BATCH, 2))
    return tuple(mx.nd.array(np.split(each, n)[rank]) for each in (x, y))


def backward(net: Any, x: Any, y: Any) -> None:
    with mx.autograd.record():
        loss = mx.gluon.loss.L2Loss()(net(x), y)
    loss.backward()


def weights(net: Any) -> list[Any]:
    return [
        parameter.data().asnumpy()
        for _, parameter in sorted(net._collect_params_with_prefix().items())
    ]


def trained(net: Any, step: Callable[[int], None], rank: int, n: int) -> list[list[Any]]:
    """Return the weights after each step."""
    found = []
    for number in range(STEPS):
        backward(net, *rows(number, rank, n))
        step(BATCH // n)
        found.append(weights(net))
    return found


def alone(kind: str) -> list[list[Any]]:
    net, (name, options) = network(), OPTIMIZERS[kind]
    return trained(net, mx.gluon.Trainer(net.collect_params(), name, dict(options)).step, 0, 1)


def assert_alike(
    results: list[list[list[Any]]], wanted: list[list[Any]], tolerance: float = 1e-5
) -> None:
    for steps in zip(*results, strict=True):
        for result in steps:
            assert all(
                np.array_equal(one, same) for one, same in zip(result, steps[0], strict=True)
            ), "the same bits"
    for step, expected in zip(results[0], wanted, strict=True):
        for one, other in zip(step, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def half_steps(rank: int, n: int, make: Callable[[Any], Any]) -> list[list[Any]]:
    """Train a float16 parameter, whose updates keep a float32 copy. (Dense has no float16 on CPUs.)"""
    used = mx.gluon.ParameterDict()
    weight = used.get("weight", shape=(6,), dtype="float16", init="ones")
    used.initialize()
    trainer, found = make(used), []
    for number in range(STEPS):
        x, y = (each.astype("float16") for each in rows(number, rank, n))
        with mx.autograd.record():
            loss = ((x * weight.data()).sum(axis=1) - y[:, 0]) ** 2
        loss.backward()
        trainer.step(BATCH // n)
        found.append([weight.data().asnumpy().astype("float32")])
    return found
