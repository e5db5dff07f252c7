"""Codecs that apply the optimizer's momentum, against models of the optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from farandole.base.contracts import Momentum, Rescaling, Retractable, Transport
from farandole.base.types import DType
from farandole.strategies.codecs import codec
from tests.kits.codec import gradients, step
from tests.pool import ranks

SHAPES = ((7,), (600,), (40, 50))
KEYS = [f"t{place}" for place in range(len(SHAPES))]
STEPS = 30

Array = np.ndarray[Any, Any]


class Sgd:
    """SGD with momentum, as in PyTorch: the velocity, and the sum of all steps."""

    def __init__(self, momentum: Momentum) -> None:
        self._momentum = momentum
        self.velocity = [np.zeros(int(np.prod(shape))) for shape in SHAPES]
        self.moved = [np.zeros_like(each) for each in self.velocity]

    def step(self, given: list[Array]) -> None:
        value = self._momentum.value
        for place, gradient in enumerate(given):
            self.velocity[place] = value * self.velocity[place] + gradient
            step = self.velocity[place]
            if self._momentum.nesterov:
                step = gradient + value * step
            self.moved[place] += step


def run(spec: str, momentum: Momentum, transport: Transport, follow: bool) -> tuple[Sgd, Any]:
    made: Any = codec(spec)
    if follow:
        made.follow(dict.fromkeys(KEYS, momentum))
    optimizer = Sgd(momentum)
    for number in range(STEPS):
        given = gradients(transport.rank, number, SHAPES)
        optimizer.step(step(made, given, transport, DType.FLOAT64, shapes=SHAPES, scale=0.5))
    return optimizer, made


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(
    ("spec", "most"), [("onebit", 5.0), ("randomk:0.1", 5.0), ("randomk:0.02", 2.0)]
)
def test_momentum_becomes_the_rate_that_it_amounts_to(
    spec: str, most: float, nesterov: bool
) -> None:
    momentum = Momentum(0.9, nesterov)

    def fn(transport: Transport) -> None:
        optimizer, made = run(spec, momentum, transport, follow=True)
        plain: Any = codec(spec)
        wanted = [np.zeros_like(each) for each in optimizer.moved]
        for number in range(STEPS):
            given = gradients(transport.rank, number, SHAPES)
            results = step(plain, given, transport, DType.FLOAT64, shapes=SHAPES, scale=0.5)
            gain = min((1 - 0.9 ** (number + 1)) / 0.1, most)
            for total, result in zip(wanted, results, strict=True):
                total += gain * result
        for found, total in zip(optimizer.moved, wanted, strict=True):
            np.testing.assert_allclose(found, total, rtol=1e-9, atol=1e-9)
        state = made.state_dict()
        for key, velocity in zip(KEYS, optimizer.velocity, strict=True):
            np.testing.assert_allclose(state[f"applied/{key}"], velocity, rtol=1e-9, atol=1e-9)

    ranks(2, fn)


@pytest.mark.parametrize("nesterov", [False, True])
def test_topk_corrects_and_masks_momentum(nesterov: bool) -> None:
    """Algorithm 1 of Lin et al. 2018, written out for all ranks."""
    share, size = 0.05, 2
    count = sum(int(np.prod(shape)) for shape in SHAPES)
    residual = np.zeros((size, count))
    velocity = np.zeros((size, count))
    wanted = np.zeros(count)
    for number in range(STEPS):
        for rank in range(size):
            gradient = np.concatenate(gradients(rank, number, SHAPES))
            velocity[rank] = 0.9 * velocity[rank] + gradient
            residual[rank] += gradient + 0.9 * velocity[rank] if nesterov else velocity[rank]
            sent = np.argsort(-np.abs(residual[rank]))[: int(np.ceil(share * count))]
            wanted[sent] += residual[rank][sent] / size
            residual[rank][sent] = velocity[rank][sent] = 0

    def fn(transport: Transport) -> Array:
        optimizer, _ = run(f"topk:{share}", Momentum(0.9, nesterov), transport, follow=True)
        return np.concatenate(optimizer.moved)

    for found in ranks(size, fn):
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("spec", ["onebit", "topk:0.1", "randomk:0.1", "net:onebit"])
def test_without_momentum_nothing_changes(spec: str) -> None:
    def fn(transport: Transport) -> None:
        with_none, made = run(spec, Momentum(), transport, follow=True)
        plain, other = run(spec, Momentum(), transport, follow=False)
        assert all(map(np.array_equal, with_none.moved, plain.moved))
        assert made.state_dict().keys() == other.state_dict().keys()

    ranks(2, fn)


def stepped(made: Any, transport: Transport, number: int, **options: Any) -> list[Array]:
    given = gradients(transport.rank, number, SHAPES)
    return step(made, given, transport, DType.FLOAT64, shapes=SHAPES, **options)


@pytest.mark.parametrize("spec", ["onebit", "topk:0.1"])
def test_tensors_that_no_rank_has_keep_their_velocity(spec: str) -> None:
    def fn(transport: Transport) -> None:
        made: Any = codec(spec)
        assert isinstance(made, Retractable)
        made.follow(dict.fromkeys(KEYS, Momentum(0.9)))
        stepped(made, transport, 0)
        before = made.state_dict()
        given = [np.zeros(int(np.prod(shape))) for shape in SHAPES]
        step(made, given, transport, DType.FLOAT64, shapes=SHAPES, absent=range(len(SHAPES)))
        made.retract(KEYS)
        after = made.state_dict()
        assert [name for name in before if not np.array_equal(before[name], after[name])] == []
        assert before["applied/t1"].any()

    ranks(2, fn)


@pytest.mark.parametrize("spec", ["onebit", "topk:0.1"])
def test_a_step_that_is_not_finite_is_not_taken(spec: str) -> None:
    """A GradScaler skips it, and the optimizer's velocity stays."""

    def fn(transport: Transport) -> None:
        made: Any = codec(spec)
        made.follow(dict.fromkeys(KEYS, Momentum(0.9)))
        stepped(made, transport, 0)
        before = made.state_dict()
        given = gradients(transport.rank, 1, SHAPES)
        if transport.rank:
            given[1][3] = np.inf
        results = step(made, given, transport, DType.FLOAT64, shapes=SHAPES)
        assert not np.isfinite(results[1]).all()
        assert np.array_equal(made.state_dict()["applied/t1"], before["applied/t1"])
        assert all(np.isfinite(array).all() for array in made.state_dict().values())

    ranks(2, fn)


@pytest.mark.parametrize("spec", ["onebit", "topk:0.1"])
def test_velocities_follow_the_loss_scale_and_checkpoints(spec: str) -> None:
    def scaled(factor: float) -> Callable[[Transport], Array]:
        def fn(transport: Transport) -> Array:
            made: Any = codec(spec)
            optimizer = Sgd(Momentum(0.9))
            for number in range(10):
                made.follow(dict.fromkeys(KEYS, Momentum(0.9)))
                scale = factor if number > 4 else 1.0
                if number == 5:
                    state, made = made.state_dict(), codec(spec)
                    made.load_state_dict(state)
                    made.follow(dict.fromkeys(KEYS, Momentum(0.9)))
                    assert isinstance(made, Rescaling)
                    made.rescale(KEYS, factor)
                given = [scale * each for each in gradients(transport.rank, number, SHAPES)]
                results = step(made, given, transport, DType.FLOAT64, shapes=SHAPES)
                optimizer.step([each / scale for each in results])
            return np.concatenate(optimizer.moved)

        return fn

    for one, other in zip(ranks(2, scaled(1.0)), ranks(2, scaled(1024.0)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
