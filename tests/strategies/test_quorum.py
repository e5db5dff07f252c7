"""Local SGD by quorum in a job: ranks that are slow, late or at other collectives."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from farandole.strategies.modes.local_sgd import BMUF, DiLoCo, LocalSGD
from farandole.strategies.options import GradientOptions, gradient_options
from farandole.strategies.specs import strategy_of
from farandole.strategies.weights import WeightExchange
from tests.kits.messages import mentioning
from tests.run_job import job


@pytest.mark.parametrize(
    ("given", "spec"),
    [
        ("local_sgd:4,quorum=0.5", "local_sgd:4,quorum=0.5,grace=1"),
        ("diloco:4,quorum=3,grace=0", "diloco:4,lr=0.7,momentum=0.9,quorum=3,grace=0"),
        (BMUF(2, quorum=0.25, grace="2.5"), "bmuf:2,lr=1,momentum=0.5,quorum=0.25,grace=2.5"),
        (DiLoCo(4), "diloco:4,lr=0.7,momentum=0.9"),
    ],
)
def test_a_spec_contains_the_whole_rule(given: Any, spec: str) -> None:
    found: Any = strategy_of(given)
    assert found.spec == spec
    assert strategy_of(spec).spec == spec  # type: ignore[union-attr]
    assert pickle.loads(pickle.dumps(found)).spec == spec


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"quorum": 0}, ("quorum", "0", "share")),
        ({"quorum": 1.5}, ("quorum", "1.5", "whole")),
        ({"quorum": 2, "grace": -1}, ("grace", "-1")),
        ({"grace": 1}, ("grace", "quorum")),
        ({"quorum": 2, "every": "epoch"}, ("quorum", "every")),
    ],
)
def test_rules_that_cannot_be_are_refused(given: Any, words: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=mentioning("local_sgd", *words)):
        LocalSGD(**given)


def test_a_codec_needs_all_ranks() -> None:
    with pytest.raises(ValueError, match=mentioning("int8", "quorum")):
        gradient_options(strategy="local_sgd:4,quorum=2", codec="int8")


def exchanging(strategy: LocalSGD, weights: list[Any]) -> Any:
    """A function that exchanges ``weights`` after a step."""
    exchange = WeightExchange("test", GradientOptions(), strategy)
    slots = exchange.slots(weights)
    exchange(weights, slots, 4)  # the first exchange is collective

    def after(step: int) -> None:
        exchange(weights, slots, step)

    after.average = lambda: exchange.average(weights, slots)  # type: ignore[attr-defined]
    return after


def test_a_rank_that_waits_elsewhere_holds_up_none() -> None:
    """Rank 2 is behind by several averages while the others wait for it in a collective; rank 0,
    which convenes, is behind in its turn.
    """

    def check(rank: int) -> list[float]:
        import farandole.numpy as hvd

        weights = [np.zeros(2)]
        after = exchanging(LocalSGD(4, quorum=2, grace=0.0), weights)
        for slow in (2, 0):
            for step in range(5, 25):
                if rank != slow:
                    weights[0] += 1.0
                    if step % 4 == 0:
                        after(step)
            hvd.barrier()
            if rank == slow:  # the same steps, when the others have ended theirs
                for step in range(5, 25):
                    weights[0] += 1.0
                    if step % 4 == 0:
                        after(step)
            hvd.barrier()
        after.average()
        return weights[0].tolist()

    results = job(3, check, store=True)
    assert results[0] == results[1] == results[2]
    assert results[0][0] > 20


def test_outer_state_is_equal_after_late_arrivals() -> None:
    def check(rank: int) -> Any:
        import farandole.numpy as hvd

        weights = [np.zeros(3), np.zeros((), np.float32)]
        strategy = DiLoCo(4, lr=0.7, momentum=0.5, quorum=2, grace=0.0)
        exchange = WeightExchange("test", GradientOptions(), strategy)
        slots = exchange.slots(weights)
        turns = [4, 8, 12, 16] if rank < 2 else [4]
        exchange(weights, slots, 4)
        for step in turns[1:]:
            for weight in weights:
                weight += 1.0
            exchange(weights, slots, step)
        hvd.barrier()
        if rank == 2:
            for weight in weights:
                weight += 5.0
            exchange(weights, slots, 8)
        hvd.barrier()
        return [array.tolist() for slot in (weights, *slots) for array in slot]

    first, second, late = job(3, check, store=True)
    assert first == second == late


def test_with_all_ranks_in_time_it_is_the_plain_strategy() -> None:
    def check(rank: int) -> Any:
        found = []
        for rule in ({}, {"quorum": 2, "grace": 60}):
            weights = [np.zeros(3), np.zeros((), np.float32)]
            strategy = DiLoCo(4, lr=0.7, momentum=0.5, **rule)
            exchange = WeightExchange("test", GradientOptions(), strategy)
            slots = exchange.slots(weights)
            for step in (4, 8, 12):
                for weight in weights:
                    weight += 1.0 + rank
                exchange(weights, slots, step)
            found.append([array.tolist() for slot in (weights, *slots) for array in slot])
        return found

    for plain, by_quorum in job(2, check, store=True):
        for one, other in zip(plain, by_quorum, strict=True):
            assert one == pytest.approx(other, rel=1e-6)
        assert plain[0] != [0.0] * 3


def test_all_ranks_end_with_a_known_optimum() -> None:
    """Least squares with one solution for all ranks; rank 1 takes a fifth of the steps."""

    def check(rank: int) -> float:
        random = np.random.default_rng(rank)
        goal = np.arange(1.0, 6.0)
        weights = [np.zeros(5)]
        after = exchanging(LocalSGD(4, quorum=2, grace=0.001), weights)
        for step in range(5, 405):
            if rank == 1 and step % 5:
                continue
            x = random.standard_normal((8, 5))
            weights[0] -= 0.02 * x.T @ (x @ (weights[0] - goal)) / 8
            if step % (20 if rank == 1 else 4) == 0:
                after(step)
        after.average()
        return float(np.abs(weights[0] - goal).max())

    found = job(3, check, store=True)
    assert found[0] == found[1] == found[2] < 1e-2
