"""Decisions of a parameter server, from random schedules and replayed events: no connection, no
thread.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest

from farandole.core.ps.centre import Centre
from farandole.core.ps.clocks import Clocks, Fate, PushDecision, Rule
from farandole.core.ps.layout import PIECE, spread
from farandole.errors import WireError


def test_no_rank_is_ahead_by_more_than_the_bound() -> None:
    for seed in range(1000):
        chance = random.Random(seed)
        ranks, bound, steps = chance.randint(2, 6), chance.randint(0, 4), 12
        clocks, pulled, waiting = Clocks(range(ranks), Rule(bound=bound)), [0] * ranks, set[int]()
        left = [steps] * ranks
        weights = [chance.random() + 0.01 for _ in range(ranks)]  # some are slow
        while running := [rank for rank in range(ranks) if left[rank] and rank not in waiting]:
            rank = chance.choices(running, [weights[rank] for rank in running])[0]
            clocks.push(rank, clocks.clocks[rank] + 1, pulled[rank])
            left[rank] -= 1
            waiting.add(rank)
            if not left[rank]:
                clocks.leave(rank, for_good=True)
            for other in [other for other in waiting if clocks.ready(other)]:
                waiting.discard(other)
                pulled[other] = clocks.version
            computing = [other for other in range(ranks) if left[other] and other not in waiting]
            assert all(clocks.clocks[other] - clocks.slowest() <= bound for other in computing), (
                seed
            )
        assert left == [0] * ranks, (seed, "somebody waits for ever")


def synchronous(backup: int) -> Clocks:
    return Clocks(range(3), Rule(sync=True, backup=backup))


def test_a_step_waits_for_all_but_the_backups() -> None:
    clocks = synchronous(backup=1)
    assert clocks.push(2, 1, 0) == PushDecision(Fate.COLLECT)
    assert not clocks.ready(2)
    assert clocks.awaited(2) == [0, 1]
    assert clocks.push(0, 1, 0) == PushDecision(Fate.COLLECT, complete=2)
    assert (clocks.ready(2), clocks.version) == (True, 1)
    assert clocks.push(1, 1, 0) == PushDecision(Fate.DROP, staleness=1, dropped=True)
    assert clocks.ready(1), "it goes on from the centre that is there"
    assert clocks.push(1, 1, 0) == PushDecision(Fate.AGAIN, staleness=1, dropped=True), (
        "the answer of the first time"
    )
    assert clocks.push(1, 2, 1) == PushDecision(Fate.COLLECT)
    assert clocks.push(1, 2, 1) == PushDecision(Fate.AGAIN)


def test_ranks_that_join_or_leave_do_not_hold_the_others() -> None:
    clocks = synchronous(backup=0)
    clocks.push(0, 1, 0)
    clocks.push(1, 1, 0)
    assert clocks.leave(2, for_good=False) == 2
    assert (clocks.ready(0), clocks.version) == (True, 1)
    clocks.push(0, 2, 1)
    assert clocks.leave(1, for_good=True) == 1, "with what has come"
    bounded = Clocks(range(3), Rule(bound=0))
    bounded.push(0, 1, 0)
    assert bounded.awaited(0) == [1, 2]
    bounded.leave(1, for_good=True)
    bounded.leave(2, for_good=False)
    assert bounded.ready(0)


@pytest.mark.parametrize(
    ("rule", "shows"),
    [
        (Rule(sync=True), 1),
        (Rule(sync=True, backup=1), 1),
        (Rule(bound=0), 1),
        (Rule(bound=2), 3),
        (Rule(), 0),
    ],
)
def test_a_rank_strays_that_another_has_moved_before(rule: Rule, shows: int) -> None:
    """``shows``: the number of further pushes after which it shows; 0: only when the rank is late,
    or at a flush.
    """
    clocks = Clocks(range(2), rule)
    for rank in range(2):
        clocks.push(rank, 1, 0)
    clocks.moved.add(1)
    clocks.leave(1, for_good=True)
    assert clocks.stray(late=True) is None
    for number in range(1, 5):
        clocks.push(0, 1 + number, clocks.version)
        assert clocks.ready(0), "nobody waits for one that has moved"
        assert clocks.stray() == ((0, 1) if 0 < shows <= number else None)
        assert clocks.stray(late=True) == (0, 1)
    clocks.settled.add(0)
    assert clocks.stray() == (0, 1)


def test_ranks_may_move_after_a_flush_with_fewer_steps() -> None:
    clocks = synchronous(backup=0)
    for rank in range(3):
        clocks.push(rank, 1, 0)
    clocks.leave(1, for_good=False)  # it has joined
    for rank in (0, 2):
        clocks.push(rank, 2, 1)
    for rank in range(3):
        clocks.settled.add(rank)
        clocks.leave(rank, for_good=False)
    clocks.moved.add(1)
    clocks.leave(1, for_good=True)
    assert clocks.stray(late=True) is None
    clocks.push(0, 3, 2)
    assert clocks.stray() == (0, 1), "rank 0 has not moved"


def test_the_first_push_after_a_join_brings_all_back() -> None:
    clocks = synchronous(backup=0)
    for rank in (2, 1):
        clocks.leave(rank, for_good=False)
    clocks.push(0, 1, 0)
    clocks.leave(0, for_good=False)
    assert clocks.push(1, 1, 1) == PushDecision(Fate.COLLECT), "the others are expected again"
    assert clocks.awaited(1) == [0, 2]
    assert set(clocks.clocks.values()) == {1, 2}, (
        "nobody is waited for because of what it has missed"
    )


@pytest.mark.parametrize("event", [(1, 3, 0), (1, 1, 1), (1, 1, -1)])
def test_events_that_cannot_be(event: tuple[int, int, int]) -> None:
    with pytest.raises(WireError):
        Clocks(range(2), Rule()).push(*event)


@pytest.mark.parametrize(
    "rule", [[], ["x"] * 7, [False, 0, -1, False, "sgdd", 1.0, 0.9], {"a": 1}, 7]
)
def test_malformed_rules_are_refused(rule: Any) -> None:
    with pytest.raises(WireError, match="rule"):
        Rule.of(rule if rule else 7)


def test_staleness_counts_updates_since_the_pull() -> None:
    for damp, end in ((False, 8.0), (True, 7.0)):
        centre = Centre(Clocks(range(3), Rule(damp=damp)), [np.zeros(2)])
        seen = [
            centre.push(rank, number, pulled, [np.full(2, 2.0)]).staleness
            for rank, number, pulled in [(0, 1, 0), (1, 1, 0), (2, 1, 0), (0, 2, 3)]
        ]
        assert seen == [0, 1, 2, 0]
        assert centre.values[0].tolist() == [end] * 2  # 2 + 2 + 2 / 2 + 2


def test_a_synchronous_step_is_the_mean_of_pushes_and_statistics() -> None:
    centre = Centre(
        Clocks(range(3), Rule(sync=True, backup=1)), [np.zeros(1), np.full(1, 9.0)], statistics=1
    )
    centre.push(0, 1, 0, [np.array([1.0]), np.array([3.0])])
    centre.push(2, 1, 0, [np.array([3.0]), np.array([5.0])])
    assert [value.tolist() for value in centre.values] == [[2.0], [4.0]]
    centre.push(1, 1, 0, [np.array([99.0]), np.array([99.0])])
    assert [value.tolist() for value in centre.values] == [[2.0], [4.0]], "it came too late"
    centre.push(0, 2, 1, [np.array([1.0]), np.array([6.0])])
    centre.leave(1, for_good=True)
    assert [value.tolist() for value in centre.values] == [[3.0], [6.0]]


@pytest.mark.parametrize("backup", [0, 1])
def test_pushes_of_a_step_are_added_in_rank_order(backup: int) -> None:
    values = [1e16, 1.0, -1e16]  # any other order gives another sum
    for order in itertools.permutations(range(3)):
        centre = Centre(Clocks(range(4), Rule(sync=True, backup=backup)), [np.zeros(1)])
        for rank in order:
            assert centre.values[0] == 0
            centre.push(rank, 1, 0, [np.array([values[rank]])])
        if not backup:
            centre.push(3, 1, 0, [np.zeros(1)])
        assert centre.values[0] == (values[0] + values[1] + values[2]) / (4 - backup)
        centre.push(0, 2, 1, [np.ones(1)])
        centre.push(3, 1 if backup else 2, 1, [np.ones(1)])
        centre.leave(1, for_good=True)
        centre.leave(2, for_good=True)
        assert centre.values[0] == 1, "the next step begins with no sum"


def _stepped(optimizer: str, value: Any, gradient: Any, kept: dict[str, Any], step: int) -> Any:
    """Take a step by the formulas of the papers."""
    lr, m = 0.1, 0.9
    if optimizer == "momentum":
        kept["v"] = m * kept.get("v", 0) + gradient
        return value - lr * kept["v"]
    if optimizer == "adagrad":
        kept["s"] = kept.get("s", 0) + gradient**2
        return value - lr * gradient / (np.sqrt(kept["s"]) + 1e-8)
    if optimizer == "adam":
        kept["m"] = m * kept.get("m", 0) + (1 - m) * gradient
        kept["s"] = 0.999 * kept.get("s", 0) + 0.001 * gradient**2
        return value - lr * (kept["m"] / (1 - m**step)) / (
            np.sqrt(kept["s"] / (1 - 0.999**step)) + 1e-8
        )
    return value - (lr if optimizer == "sgd" else 1.0) * gradient


@pytest.mark.parametrize("optimizer", ["add", "sgd", "momentum", "adagrad", "adam"])
def test_the_optimizer_of_the_servers(optimizer: str) -> None:
    centre = Centre(Clocks(range(1), Rule(optimizer=optimizer, lr=0.1)), [np.ones(3)])
    value, kept = np.ones(3), dict[str, Any]()
    for step in range(1, 6):
        gradient = np.random.default_rng(step).standard_normal(3)
        value = _stepped(optimizer, value, gradient, kept, step)
        centre.push(0, step, step - 1, [-gradient])
        np.testing.assert_allclose(centre.values[0], value, rtol=1e-6)


def test_tensors_are_spread_by_size_in_pieces_if_large() -> None:
    sizes = [10, 0, 3 * PIECE + 5, 700, 1]
    found = spread(sizes, 3)
    assert found == spread(sizes, 3)
    loads = [sum(end - begin for _, begin, end in own) for own in found]
    assert sum(loads) == sum(sizes)
    assert max(loads) - min(loads) < 1000
    for tensor, size in enumerate(sizes):
        places = sorted(
            (begin, end) for own in found for which, begin, end in own if which == tensor
        )
        assert [number for begin, end in places for number in (begin, end)][1:-1:2] == [
            b for b, _ in places[1:]
        ]
        assert (places[-1][1] if places else 0) == size


def test_a_replica_takes_over_at_any_point() -> None:
    """The primary sends an event to the replica, executes it, and answers: it is killed before,
    between, and after.
    """
    events = [(rank, number) for number in range(1, 5) for rank in range(2)]
    for crash in range(len(events)):
        for is_replicated, answered in ((False, False), (True, False), (True, True)):
            for rule in (Rule(), Rule(sync=True), Rule(bound=1), Rule(optimizer="momentum")):
                primary, replica = (Centre(Clocks(range(2), rule), [np.zeros(1)]) for _ in range(2))
                alone = Centre(Clocks(range(2), rule), [np.zeros(1)])
                now, versions, expected = primary, [0, 0], [0, 0]
                for place, (rank, number) in enumerate(events):
                    change = [np.array([10.0**rank * number])]
                    pulled = versions[rank]
                    if now is primary and (place < crash or is_replicated):
                        replica.push(rank, number, pulled, [change[0].copy()])
                    if now is primary and place <= crash:
                        primary.push(rank, number, pulled, [change[0].copy()])
                    if place == crash:
                        now = replica
                    if now is replica and not (place == crash and answered):
                        # asked again, if it got no answer
                        now.push(rank, number, pulled, [change[0].copy()])
                    alone.push(rank, number, expected[rank], [change[0].copy()])
                    for other in range(2):
                        if now.clocks.ready(other):
                            versions[other] = expected[other] = now.clocks.version
                    assert now.clocks.version == alone.clocks.version
                assert now.values[0].tolist() == alone.values[0].tolist()


@pytest.mark.parametrize("optimizer", ["add", "momentum", "adagrad", "adam"])
def test_flushes_are_added_and_are_no_optimizer_step(
    optimizer: str,
) -> None:
    """``average_weights`` before each evaluation: the centre stays if no rank has moved."""
    centre = Centre(Clocks(range(2), Rule(optimizer=optimizer, lr=0.1)), [np.ones(2)])
    centre.push(0, 1, 0, [np.array([1.0, -2.0])])
    value, kept = centre.values[0].copy(), [array.copy() for (array,) in centre._kept]
    for rank, number in ((0, 2), (1, 1)):
        centre.flush(rank, number, [np.zeros(2)])
    np.testing.assert_array_equal(centre.values[0], value)
    centre.flush(1, 2, [np.array([1.0, 3.0])])
    lr = 1.0 if optimizer == "add" else 0.1
    np.testing.assert_allclose(centre.values[0], value + lr * np.array([1.0, 3.0]))
    for (array,), before in zip(centre._kept, kept, strict=True):
        np.testing.assert_array_equal(array, before)
