"""Failures that occur again after each return to the last commit."""

from __future__ import annotations

import pytest

from farandole.core.api.repetitions import MOST, Repetitions
from farandole.errors import HorovodInternalError, RepeatedFailureError
from tests.kits.messages import mentioning


def count(*failures: tuple[str, int]) -> int:
    found = Repetitions()
    for text, commits in failures:
        found.add(HorovodInternalError(text), commits)
    return found.count


def test_equal_failures_without_progress_are_counted() -> None:
    assert count(("a", 5), ("a", 5), ("a", 5)) == 3
    assert count(("a", 5), ("a", 6), ("a", 7)) == 3  # one commit at each beginning
    assert count(("a", 5), ("a", 15), ("a", 25)) == 1
    assert count(("a", 5), ("b", 5), ("a", 5)) == 1
    assert count() == 0


def test_the_job_ends_with_the_reason() -> None:
    found = Repetitions()
    found.check(MOST - 1)
    for _ in range(MOST):
        found.add(HorovodInternalError("rank 1 is in step 7"), 4)
    with pytest.raises(RepeatedFailureError, match=mentioning("rank 1", "step 7", str(MOST))):
        found.check(MOST)
    with pytest.raises(RepeatedFailureError, match=str(MOST)):
        Repetitions().check(MOST)  # another rank has failed
