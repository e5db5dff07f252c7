"""Quorums: which ranks take part, from the times of their arrivals."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.core.gossip.quorum import Quorum, window


@pytest.mark.parametrize(
    ("quorum", "size", "needed"),
    [
        (0.5, 4, 2),
        (0.5, 5, 3),
        (0.1, 4, 1),
        (0.3, 10, 3),
        (0.99, 4, 4),
        (1, 4, 1),
        (3, 4, 3),
        (9, 4, 4),
    ],
)
def test_a_share_is_rounded_up_and_limited(quorum: float, size: int, needed: int) -> None:
    assert Quorum(quorum, 1.0).needed(size) == needed


@pytest.mark.parametrize(
    ("events", "closes_at"),
    [
        ([], inf),
        (["+0"], inf),
        (["+0", "+1"], 1 + 2.5),  # events happen at 0, 1, 2 ...
        (["+0", "+1", "+2"], 1 + 2.5),
        (["+0", "+1", "+2", "+3"], -inf),
        (["+0", "+1", "-2", "-3"], -inf),
        (["-1", "-2", "-3", "+0"], -inf),
        (["-1", "-2", "+0"], inf),
        (["-1", "-2", "-3", "-0"], inf),
        (["+0", "+1", "-1"], 1 + 2.5),  # a rank that dies after it has arrived takes part
        (["+0", "-1", "+1", "+2"], 2 + 2.5),
    ],
)
def test_a_window_closes_after_quorum_and_grace(events: list[str], closes_at: float) -> None:
    found = window(Quorum(0.5, 2.5), range(4))
    for now, event in enumerate(events):
        change = found.arrive if event[0] == "+" else found.leave
        found = change(int(event[1]), float(now))
    assert found.closes_at == closes_at
    assert found.arrived == {int(event[1]) for event in events if event[0] == "+"}


@given(
    size=st.integers(1, 6),
    quorum=st.one_of(st.floats(0.01, 0.99), st.integers(1, 7)),
    grace=st.floats(0.0, 10.0),
    events=st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.floats(0.0, 5.0)), max_size=20),
)
def test_any_events_end_with_an_average(
    size: int, quorum: float, grace: float, events: list[tuple[bool, int, float]]
) -> None:
    rule, now = Quorum(quorum, grace), 0.0
    found, last = window(rule, range(size)), -inf
    for arrives, rank, pause in events:
        now += pause
        rank %= size
        found = found.arrive(rank, now) if arrives else found.leave(rank, now)
        if found.closes_at <= now:
            taking_part = len(found.arrived)
            present = len(found.present | found.arrived)
            assert taking_part >= min(rule.needed(size), present) or not found.missing
            assert found.closes_at == -inf or now >= found.complete_at + grace
            found = found.next()
            assert found.closes_at == inf
        last = now
    for rank in range(size):
        found = found.arrive(rank, last)
    assert found.closes_at == -inf, "all ranks have arrived"
