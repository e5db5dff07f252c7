"""Unnamed calls in a different order on a rank are distinguished from branches, by their lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from farandole.checks.call_order import CallReport, swapped_calls
from farandole.checks.call_sites import CallRecorder
from farandole.checks.catalogue import CALL_ORDER
from tests.kits.messages import mentions


def called(order: str, begin: int = 1, exclusive: Sequence[Sequence[str]] = ()) -> CallReport:
    """Return the CallReport of calls at the places of ``order``, one letter each."""
    places = sorted(set(order))
    calls = {number: places.index(place) for number, place in enumerate(order, begin)}
    return CallReport(
        places,
        calls,
        [[places.index(each) for each in pair] for pair in exclusive],
        begin + len(order) - 1,
    )


def test_another_call_order_is_reported_with_lines_and_ranks() -> None:
    found = swapped_calls([called("abab"), called("abba"), None, called("abab")])
    assert found is not None
    assert found.code == CALL_ORDER.code
    assert found.where == "a and b"
    assert mentions(found.text, "call 3", "ranks 0, 3", "rank 1")
    assert "hvd.allreduce(loss, name='loss')" in found.text
    assert "call 3 " in getattr(
        swapped_calls([called("ab", 2**40 + 3), called("ba", 2**40 + 3)]), "text", ""
    )


@pytest.mark.parametrize(
    "reports",
    [
        [called("aba"), called("aba"), None],
        [called("xax"), called("yay")],  # a line of its own: a branch by rank
        # by turns, in one function
        [called("abab", exclusive=["ab"]), called("baba", exclusive=["ab"])],
        [called("aab"), called("b", 3)],  # what is not known of a rank
        [called("aab"), called("aabaab")],  # more calls, still under way
        [CallReport(), CallReport()],
    ],
)
def test_equal_orders_and_missing_reports_are_not_swaps(reports: list[CallReport | None]) -> None:
    assert swapped_calls(reports) is None


def noted(program: Callable[[Callable[[], None]], None], after: int = 0) -> CallReport:
    calls = CallRecorder()

    def add() -> None:
        made()

    def made() -> None:
        calls.add(len(calls._kept) + 1)

    program(add)
    assert calls.digest(after) == calls.digest(after)
    return calls.report(after)


def test_places_of_one_function_that_exclude_each_other() -> None:
    def branches(add: Callable[[], None]) -> None:
        for turn in range(4):
            if turn % 2:
                add()
            else:
                add()

    def one_after_the_other(add: Callable[[], None]) -> None:
        for turn in range(2):
            add()
            if turn:
                continue
            add()

    branch, straight = noted(branches), noted(one_after_the_other)
    assert [len(branch.places), len(straight.places)] == [2, 2]
    assert [branch.calls, straight.calls] == [{1: 0, 2: 1, 3: 0, 4: 1}, {1: 0, 2: 1, 3: 0}]
    assert [branch.exclusive, straight.exclusive] == [[[0, 1]], []]
    assert all(place.startswith(f"{__file__}:") for place in (*branch.places, *straight.places))
    assert noted(branches, 3).calls == {4: 0}
    assert (branch.last, noted(branches, 9)) == (4, CallReport([], {}, [], 4))


def test_the_digest_is_that_of_the_order() -> None:
    def program(order: str) -> int:
        calls = CallRecorder()

        def one() -> None:
            add()

        def other() -> None:
            add()

        def add() -> None:
            made()

        def made() -> None:
            calls.add(len(calls._kept) + 1)

        for letter in order:
            (one if letter == "a" else other)()
        return calls.digest(1)

    assert program("aab") == program("bab") != program("aba")
