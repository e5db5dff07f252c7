"""A process that joins a running elastic job: its expected place, and its final one."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from farandole.job import context
from farandole.job.config import Connection, Placement, Settings
from farandole.job.context import session


@pytest.fixture
def joining() -> Iterator[list[str]]:
    """The process expects to be rank 2 of 3, and becomes rank 1 of 2. The list has its joins."""
    joins: list[str] = []
    sets = SimpleNamespace(ranks=lambda number: (0, 1))
    joined: Any = SimpleNamespace(placement=Placement(rank=1, size=2), sets=sets)

    def join() -> None:
        joins.append("joined")
        session.begin(joined)

    expected = Placement(rank=2, size=3)
    session.begin_joining(session.Joining(expected, Connection(), Settings(), join))
    yield joins
    session.end()


def test_sees_its_expected_place_without_joining(joining: list[str]) -> None:
    assert context.is_initialized()
    assert context.takes_part()
    assert (context.rank(), context.size()) == (2, 3)
    assert context.settings() == Settings()
    assert joining == []


def test_joins_once_when_it_has_to_exchange(joining: list[str]) -> None:
    session.current()
    session.current()
    assert joining == ["joined"]
    assert (context.rank(), context.size()) == (1, 2)


def test_a_set_knows_its_final_rank(joining: list[str]) -> None:
    assert context.global_process_set.included()
    assert context.global_process_set.rank() == 1


def test_is_not_alone_after_joining(joining: list[str]) -> None:
    assert not context.stays_alone()
