"""The ranks that keep copies, and the ranks that take over from lost ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.core.api.commits.placement import Holding, heirs_of, holders_of, lost_among

HOSTS = st.lists(st.sampled_from("abcd"), min_size=1, max_size=9).map(sorted)


@pytest.mark.parametrize(
    ("hosts", "copies", "expected"),
    [
        ("aabb", 1, [[2], [3], [0], [1]]),
        ("abc", 2, [[1, 2], [2, 0], [0, 1]]),
        ("aab", 1, [[2], [2], [0]]),
        ("aaa", 1, [[1], [2], [0]]),
        ("aabb", 2, [[2, 3], [3, 2], [0, 1], [1, 0]]),
        ("a", 3, [[]]),
    ],
)
def test_keepers(hosts: str, copies: int, expected: list[list[int]]) -> None:
    assert [holders_of(rank, hosts, copies) for rank in range(len(hosts))] == expected


@given(HOSTS, st.integers(0, 4))
def test_as_many_hosts_as_copies_may_be_lost(hosts: list[str], copies: int) -> None:
    for rank, host in enumerate(hosts):
        found = holders_of(rank, hosts, copies)
        assert len(found) == len(set(found)) == min(copies, len(hosts) - 1)
        assert rank not in found
        others = {hosts[each] for each in found} - {host}
        assert len(others) == min(copies, len(set(hosts)) - 1)


def holding(
    process: int, held: dict[int, int], absorbed: tuple[int, ...] = (), is_new: bool = False
) -> Holding:
    found = {each: (number, frozenset[int]()) for each, number in held.items()}
    return Holding(process, "", is_new, frozenset(absorbed), found)


def test_the_newest_copy_of_a_lost_rank_is_used() -> None:
    ranks = [holding(0, {5: 3, 1: 9}), holding(1, {5: 4, 6: 2}), holding(2, {5: 4})]
    assert lost_among(ranks) == {5: 1, 6: 1}


def test_values_are_taken_over_once() -> None:
    assert lost_among([holding(0, {5: 3}, absorbed=(5,)), holding(1, {5: 3})]) == {}
    # Process 6 had taken over 5, and is lost, too.
    later = Holding(0, "", False, frozenset(), {5: (3, frozenset()), 6: (4, frozenset({5}))})
    assert lost_among([later]) == {6: 0}
    # The commit of 6 with the values of 5 was not copied yet.
    assert lost_among([holding(0, {5: 3, 6: 3})]) == {5: 0, 6: 0}


def test_new_ranks_take_over_first() -> None:
    ranks = [holding(0, {}), holding(7, {}, is_new=True), holding(8, {}, is_new=True)]
    assert heirs_of([3, 4, 5, 6], ranks) == {3: 1, 4: 2, 5: 0, 6: 1}
    assert heirs_of([3, 4], ranks[:1]) == {3: 0, 4: 0}
