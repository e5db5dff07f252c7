"""Decisions about further attempts, as a pure function."""

from __future__ import annotations

import pytest

from farandole.jobs.retries import (
    INFRASTRUCTURE,
    MOST_PREEMPTIONS,
    WORKLOAD,
    AttemptEnd,
    decide,
    root,
)

TRACE = 'Traceback\n  File "train.py", line 7, in main\n{}: bad'
VALUE = AttemptEnd(TRACE.format("ValueError"), WORKLOAD, exit_code=1)
LOST = AttemptEnd("its host was lost", INFRASTRUCTURE)


def again(retries: int, *history: AttemptEnd) -> bool:
    return decide(retries, history).again


def test_the_first_failure_is_retried_if_allowed() -> None:
    assert not again(0, VALUE)
    assert again(1, VALUE)


def test_the_same_failure_without_progress_is_not_retried() -> None:
    assert not again(5, VALUE, VALUE)
    assert again(5, VALUE, VALUE._replace(progress=7))
    assert not again(5, VALUE._replace(progress=7), VALUE._replace(progress=7))
    assert again(5, VALUE, AttemptEnd(TRACE.format("OSError"), WORKLOAD, exit_code=1))


@pytest.mark.parametrize("kind", ["SyntaxError", "ModuleNotFoundError", "NameError"])
def test_a_mistake_in_the_program_is_not_retried(kind: str) -> None:
    decision = decide(5, [AttemptEnd(TRACE.format(kind), WORKLOAD)])
    assert not decision.again
    assert kind in decision.reason


@pytest.mark.parametrize("code", [126, 127])
def test_a_command_that_cannot_start_is_not_retried(code: int) -> None:
    assert not again(5, AttemptEnd("no such program", WORKLOAD, exit_code=code))


def test_a_lost_host_does_not_count() -> None:
    assert again(0, LOST)
    assert again(1, LOST, LOST, VALUE)
    assert not again(0, LOST, VALUE)
    assert not again(0, *[LOST] * (MOST_PREEMPTIONS + 1))


def test_all_retries_are_used() -> None:
    ends = [
        AttemptEnd(TRACE.format("OSError"), WORKLOAD, progress=step, exit_code=1)
        for step in (1, 2, 3)
    ]
    assert again(3, *ends)
    assert not again(2, *ends)


def test_a_failure_is_known_by_its_error_and_its_place() -> None:
    assert root(VALUE) == ("ValueError", "train.py:7", 1)
