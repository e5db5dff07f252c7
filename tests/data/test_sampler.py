"""Samplers: the same order for any number of ranks, also after resuming, with uneven ends."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.data import DistributedSampler, ElasticSampler
from farandole.errors import NotInitializedError, SettingsError
from farandole.job import context
from farandole.job.config import Placement
from farandole.job.context import session
from tests.kits.messages import mentioning


def dealt(size: int, length: int, **how: object) -> list[list[int]]:
    return [list(DistributedSampler(length, size, rank, **how)) for rank in range(size)]  # type: ignore[arg-type]


def woven(parts: list[list[int]]) -> list[int]:
    """Return the global order that the ranks took together."""
    return [index for row in zip(*parts, strict=True) for index in row]


@given(st.integers(0, 200), st.integers(1, 7), st.booleans())
def test_ranks_together_take_the_order_of_one(length: int, size: int, shuffle: bool) -> None:
    (alone,) = dealt(1, length, shuffle=shuffle, seed=3)
    assert sorted(alone) == list(range(length))
    padded = woven(dealt(size, length, shuffle=shuffle, seed=3))
    assert padded[:length] == alone
    assert len(padded) == -(-length // size) * size
    extra = len(padded) - length
    assert padded[length:] == (alone * size)[:extra] if length else not padded
    dropped = woven(dealt(size, length, shuffle=shuffle, seed=3, drop_last=True))
    assert dropped == alone[: length // size * size]


@given(st.integers(1, 120), st.integers(1, 5), st.integers(1, 5), st.integers(1, 9), st.data())
def test_resuming_with_other_ranks_loses_and_repeats_nothing(
    length: int, before: int, after: int, batch: int, data: st.DataObject
) -> None:
    samplers = [DistributedSampler(length, before, rank, seed=1) for rank in range(before)]
    parts = [list(sampler) for sampler in samplers]
    batches = -(-len(parts[0]) // batch)
    done = data.draw(st.integers(0, batches))
    for sampler in samplers:
        for number in range(done):
            sampler.record_batch(number, batch)
    states = [sampler.state_dict() for sampler in samplers]
    assert all(state == states[0] for state in states)
    seen = woven([part[: done * batch] for part in parts])[:length]
    assert states[0] == {"epoch": 0, "processed_num": len(seen)}
    resumed = [DistributedSampler(length, after, rank, seed=1) for rank in range(after)]
    for sampler in resumed:
        sampler.load_state_dict(states[0])
    rest = woven([list(sampler) for sampler in resumed])[: length - len(seen)]
    assert sorted(seen + rest) == list(range(length))
    assert seen + rest == dealt(1, length, seed=1)[0]


@given(st.integers(1, 100), st.integers(1, 5), st.integers(1, 8))
def test_weighted_averages_over_ranks_are_those_of_one_process(
    length: int, size: int, batch: int
) -> None:
    values = np.random.default_rng(0).normal(size=length)
    (alone,) = dealt(1, length)
    samplers = [DistributedSampler(length, size, rank, even="weights") for rank in range(size)]
    parts = [list(sampler) for sampler in samplers]
    for number in range(-(-len(parts[0]) // batch)):
        own = slice(number * batch, (number + 1) * batch)
        weights = [sampler.weights(number, batch) for sampler in samplers]
        assert all(
            len(weight) == len(part[own]) for weight, part in zip(weights, parts, strict=True)
        )
        averaged = np.mean(
            [weight @ values[part[own]] for weight, part in zip(weights, parts, strict=True)]
        )
        whole = values[alone[number * batch * size : (number + 1) * batch * size]]
        assert np.isclose(averaged, whole.mean(), rtol=1e-5)


def test_weights_of_a_padded_sampler_are_those_of_a_plain_mean() -> None:
    sampler = DistributedSampler(5, 2, 1)
    assert sampler.weights(0, 2).tolist() == [0.5, 0.5]
    assert sampler.weights(1, 2).tolist() == [1.0]
    assert sampler.weights(2, 2).tolist() == []


def test_epochs_differ_and_come_back() -> None:
    sampler = DistributedSampler(50, 1, 0)
    first = list(sampler)
    assert list(sampler) == first  # the default
    sampler.set_epoch(1)
    assert list(sampler) != first
    sampler.set_epoch(0)
    assert list(sampler) == first
    assert list(DistributedSampler(50, 1, 0, seed=9)) != first
    assert list(DistributedSampler(range(50), 1, 0, shuffle=False)) == list(range(50))


def test_set_epoch_resumes_a_half_done_epoch_at_its_beginning() -> None:
    sampler = DistributedSampler(10, 2, 0)
    sampler.load_state_dict({"epoch": 4, "processed_num": 6})
    sampler.set_epoch(4)
    assert len(sampler) == len(list(sampler)) == 2
    sampler.set_epoch(5)
    assert len(sampler) == 5


def test_the_elastic_sampler_restarts_at_set_epoch(one_of_two: list[tuple[int, int]]) -> None:
    sampler = ElasticSampler(range(10))
    sampler.record_batch(0, 3)
    assert sampler.state_dict() == {"epoch": 0, "processed_num": 6}
    sampler.set_epoch(0)
    assert sampler.state_dict() == {"epoch": 0, "processed_num": 0}
    assert len(list(sampler)) == 5


def test_the_elastic_sampler_counts_batches_by_any_number(
    one_of_two: list[tuple[int, int]],
) -> None:
    """After resuming, some programs count on and others from 0."""
    sampler = ElasticSampler(range(15))
    assert (sampler.rank, sampler.num_replicas, sampler.num_samples, sampler.total_size) == (
        0,
        2,
        8,
        16,
    )
    sampler.record_batch(0, 3)
    state = sampler.state_dict()
    sampler.record_batch(1, 3)
    sampler.load_state_dict(state)
    assert (sampler.processed_num, sampler.num_samples, sampler.total_size) == (6, 5, 10)
    sampler.record_batch(1, 3)
    assert sampler.processed_num == 12
    sampler.record_batch(2, 3)  # a short one
    assert sampler.processed_num == 15


def test_a_short_last_batch_counts_for_what_it_is() -> None:
    sampler = DistributedSampler(10, 2, 0)
    for number in range(2):
        sampler.record_batch(number, 4)
        sampler.record_batch(number, 4)  # twice is not more
    assert sampler.position == 10
    assert DistributedSampler(9, 2, 0).position == 0


def test_indices_can_be_recorded_as_they_come() -> None:
    sampler = DistributedSampler(10, 2, 0)
    mine = list(sampler)
    sampler.record_indices(mine[:2])
    sampler.record_indices(mine[2:3])
    assert sampler.position == 6
    sampler.reset()
    assert list(sampler) == mine[3:]


@pytest.fixture
def one_of_two(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The rank and size of this process; a test may change them."""
    who = [(0, 2)]
    place = lambda: Placement(rank=who[0][0], size=who[0][1])  # noqa: E731
    monkeypatch.setattr(session, "placement", place)
    return who


def test_the_sampler_reads_the_rank_when_iteration_begins(
    one_of_two: list[tuple[int, int]],
) -> None:
    sampler = ElasticSampler(12, shuffle=False)
    assert list(sampler) == [0, 2, 4, 6, 8, 10]
    sampler.record_batch(0, 2)  # 0 1 2 3
    one_of_two[0] = (2, 4)
    assert len(sampler) == 2
    assert list(sampler) == [6, 10]


def test_a_new_session_of_equal_size_continues_the_epoch(
    one_of_two: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reset after hosts were only removed skips the sync, and the program reads the epoch from
    its beginning.
    """
    sampler = ElasticSampler(12, shuffle=False)
    assert list(sampler) == [0, 2, 4, 6, 8, 10]
    sampler.record_batch(0, 2)  # 0 1 2 3
    assert (len(sampler), list(sampler)) == (6, [0, 2, 4, 6, 8, 10])
    monkeypatch.setattr(context, "session_id", lambda: "0.2")
    assert (len(sampler), list(sampler)) == (4, [4, 6, 8, 10])
    sampler.record_batch(0, 2)
    assert sampler.processed_num == 8


class Membership(NamedTuple):
    """The ranks of a job, and the batches that they commit before it changes."""

    size: int
    batches: int


@given(
    st.integers(1, 90),
    st.integers(1, 4),
    st.lists(st.builds(Membership, st.integers(1, 5), st.integers(0, 4)), max_size=5),
)
def test_the_order_of_samples_does_not_depend_on_the_memberships(
    length: int, batch: int, history: list[Membership]
) -> None:
    (alone,) = dealt(1, length, seed=2)
    seen: list[int] = []
    committed = {"epoch": 0, "processed_num": 0}
    with pytest.MonkeyPatch.context() as patch:
        for number, membership in enumerate([*history, Membership(1, length)]):
            patch.setattr(context, "session_id", lambda number=number: f"{number}.1")
            samplers, parts = [], []
            for rank in range(membership.size):
                place = Placement(rank=rank, size=membership.size)
                patch.setattr(session, "placement", lambda place=place: place)
                samplers.append(ElasticSampler(length, seed=2))
                samplers[-1].load_state_dict(committed)
                parts.append(list(samplers[-1]))
                for done in range(membership.batches):
                    samplers[-1].record_batch(done, batch)
            committed = samplers[0].state_dict()
            assert all(each.state_dict() == committed for each in samplers)
            taken = [part[: membership.batches * batch] for part in parts]
            seen += woven(taken)[: length - len(seen)]
            assert len(seen) == committed["processed_num"]
    assert seen == alone


def test_before_init_there_is_no_rank() -> None:
    sampler = ElasticSampler(12)  # may be made before init()
    with pytest.raises(NotInitializedError):
        list(sampler)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: DistributedSampler(3, 2), ("num_replicas=2", "rank=None")),
        (lambda: DistributedSampler(3, 2, 2), ("rank=2", "0", "num_replicas", "1")),
        (lambda: DistributedSampler(-3, 2, 1), ("dataset", "length")),
        (lambda: ElasticSampler(3, even="odd"), ("pad", "drop", "weights")),
        (
            lambda: ElasticSampler(3).load_state_dict({"epoch": 0, "processed_num": 4}),
            ("3", "samples"),
        ),
    ],
)
def test_invalid_sampler_arguments_are_refused(make: object, says: str | tuple[str, ...]) -> None:
    with pytest.raises(SettingsError, match=mentioning(says)):
        make()  # type: ignore[operator]


def test_a_torch_data_loader_takes_it() -> None:
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.arange(23))
    samplers = [DistributedSampler(data, 2, rank) for rank in range(2)]
    loaders = [
        torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler) for sampler in samplers
    ]
    assert [len(loader) for loader in loaders] == [3, 3]
    taken = [[int(value) for (batch,) in loader for value in batch] for loader in loaders]
    assert taken == [list(sampler) for sampler in samplers]


def test_a_large_dataset_starts_without_delay() -> None:
    sampler = DistributedSampler(1 << 40, 1 << 10, 3)
    first = next(iter(sampler))  # would take hours if the order were made in advance
    assert 0 <= first < 1 << 40
