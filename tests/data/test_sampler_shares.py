"""The order of samples with a fixed global batch, for any number of ranks."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farandole.data import DistributedSampler, ElasticSampler
from farandole.errors import SettingsError
from farandole.job import context
from farandole.job.config import Placement
from farandole.job.context import session
from tests.kits.messages import mentioning

Place = Callable[[int, int], None]


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    """A function that makes this process a rank of a job with 4 shares."""
    return placed(monkeypatch, 4)


def placed(patch: pytest.MonkeyPatch, shares: int) -> Place:
    now = [Placement()]

    def at(rank: int, size: int) -> None:
        now[0] = Placement(rank=rank, size=size)

    patch.setattr(session, "placement", lambda: now[0])
    patch.setattr(context, "shares", lambda: shares)
    return at


def batches(sampler: ElasticSampler, size: int) -> list[list[int]]:
    found = list(sampler)
    assert len(found) == len(sampler)
    return [found[begin : begin + size] for begin in range(0, len(found), size)]


def test_share_i_has_the_samples_of_rank_i(place: Place) -> None:
    alone = [DistributedSampler(32, 4, rank, seed=5) for rank in range(4)]
    expected = [list(sampler) for sampler in alone]
    for size in (1, 2, 3, 4):
        found: list[list[list[int]]] = [[], []]  # by global batch
        for rank in range(size):
            place(rank, size)
            own = batches(ElasticSampler(32, seed=5, batch_size=4), 4)
            half = len(own) // 2
            found[0] += own[:half]
            found[1] += own[half:]
        assert found[0] == [samples[:4] for samples in expected]
        assert found[1] == [samples[4:] for samples in expected]


@pytest.mark.parametrize(("even", "batch_count"), [("pad", 3), ("drop", 2)])
def test_the_last_batch_is_full_or_left_out(place: Place, even: str, batch_count: int) -> None:
    place(0, 1)
    sampler = ElasticSampler(20, shuffle=False, even=even, batch_size=2)
    found = batches(sampler, 2)
    assert len(found) == batch_count * 4
    seen = sorted(index for batch in found for index in batch)
    assert seen == ([*range(16)] if even == "drop" else sorted([*range(20), *range(4)]))


@settings(max_examples=60, deadline=None)
@given(
    length=st.integers(1, 70),
    shares=st.integers(1, 8),
    size=st.integers(1, 4),
    data=st.data(),
)
def test_any_history_has_the_order_of_the_undisturbed_run(
    length: int, shares: int, size: int, data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        at = placed(patch, shares)
        at(0, 1)
        undisturbed = batches(ElasticSampler(length, seed=1, batch_size=size), size)
        state: Any = ElasticSampler(length).state_dict()
        seen: list[list[int]] = []
        for number in range(len(undisturbed) + 1):
            patch.setattr(context, "session_id", lambda number=number: f"{number}.1")
            ranks = data.draw(st.integers(1, shares))
            left = (len(undisturbed) - len(seen)) // shares
            done = data.draw(st.integers(0, left))
            parts, states = [], []
            for rank in range(ranks):
                at(rank, ranks)
                sampler = ElasticSampler(length, seed=1, batch_size=size)
                sampler.load_state_dict(state)
                own = batches(sampler, size)
                held = len(own) // left if left else 0
                parts.append([own[step * held : (step + 1) * held] for step in range(done)])
                for _ in range(done * held):
                    sampler.record_batch(0, size)
                if done < left and held > 1 and data.draw(st.booleans()):
                    sampler.record_batch(0, size)  # an incomplete global batch does not count
                states.append(sampler.state_dict())
            assert states == [states[0]] * ranks
            state = states[0]
            for step in range(done):
                seen += [batch for part in parts for batch in part[step]]
        assert seen == undisturbed[: len(seen)]


def test_generators_are_seeded_before_each_share(place: Place) -> None:
    def draws(rank: int, size: int) -> dict[tuple[int, ...], tuple[float, float]]:
        place(rank, size)
        sampler = ElasticSampler(16, batch_size=2)
        indices, found = iter(sampler), {}
        for _ in range(len(sampler) // 2):
            first = next(indices)
            drawn = random.random(), float(np.random.rand())
            found[first, next(indices)] = drawn
        return found

    expected = draws(0, 1)
    assert len(set(expected.values())) == 8
    state, numbers = random.getstate(), np.random.get_state()
    try:
        assert {**draws(0, 3), **draws(1, 3), **draws(2, 3)} == expected
    finally:
        random.setstate(state)
        np.random.set_state(numbers)


def test_each_sample_has_its_own_seed(place: Place) -> None:
    place(0, 1)
    sampler = ElasticSampler(16, batch_size=2)
    expected = dict(sampler.streams())
    assert [*expected] == list(sampler)
    assert len(set(expected.values())) == 16
    place(1, 2)
    second = dict(ElasticSampler(16, batch_size=2).streams())
    assert second.items() <= expected.items()
    sampler.set_epoch(1)
    assert set(dict(sampler.streams()).values()).isdisjoint(expected.values())


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ElasticSampler(8), ("batch_size=None", "--fixed-global-batch")),
        (lambda: ElasticSampler(8, batch_size=2, even="weights"), ("weights", "pad", "drop")),
        (lambda: DistributedSampler(8), ("DistributedSampler", "ElasticSampler")),
    ],
)
def test_samplers_without_shares_are_refused(
    place: Place,
    make: Callable[[], Any],
    says: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place(0, 2)
    monkeypatch.setattr(context, "is_elastic", lambda: True)
    with pytest.raises(SettingsError, match=mentioning(*says)):
        list(make())
