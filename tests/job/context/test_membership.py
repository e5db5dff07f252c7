"""A rank's view of its memberships: names of objects, commits, and changes to wait for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from farandole.job.context import membership, session
from farandole.job.context.membership import ObjectNames
from farandole.job.report import keys


def test_new_ranks_name_their_objects_like_ranks_that_stay() -> None:
    stayed, started = ObjectNames(), ObjectNames()
    before = [stayed.next(), stayed.next()]
    for _ in range(3):  # three memberships
        with stayed.within():
            stayed.next()
    assert [started.next(), started.next()] == before == ["1", "2"]
    with stayed.within(), started.within():
        assert [stayed.next(), stayed.next()] == [started.next(), started.next()]
    assert stayed.next() == started.next() == "3"


@pytest.mark.parametrize(("most", "expected"), [(7, 7), (0, 1)])
def test_commits_are_adopted_when_the_state_has_arrived(
    most: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(entries: Any) -> None:
        entries[0].buffer.data[:] = [1, most, 0]

    joined = SimpleNamespace(engine=SimpleNamespace(run=run))
    monkeypatch.setattr(session, "current", lambda: joined)
    monkeypatch.setattr(membership, "_participation", membership._Participation())
    assert membership.agree(False) is False
    assert membership._participation.commits == 0
    membership.count_sync()
    assert membership._participation.commits == expected


class Store:
    """A store whose keys appear after numbers of queries."""

    def __init__(self, after: Mapping[str, int]) -> None:
        self.after, self.queries = after, 0

    def try_get(self, key: str) -> bytes | None:
        self.queries += 1
        return b"" if self.queries > self.after.get(key, math.inf) else None


@pytest.mark.parametrize(
    ("after", "patience", "expected"),
    [
        ({}, 60.0, False),
        ({keys.notice(3): 0}, 60.0, True),
        ({keys.broken(3): 0}, 60.0, True),
        ({keys.notice(2): 0, keys.newcomers(2): 0}, 60.0, False),
        ({keys.newcomers(3): 0, keys.notice(3): 10}, 60.0, True),
        ({keys.newcomers(3): 0, keys.broken(3): 10}, 60.0, True),
        ({keys.newcomers(3): 0}, 0.01, False),
    ],
)
def test_a_rank_waits_for_processes_that_start(
    after: Mapping[str, int], patience: float, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(after)
    monkeypatch.setattr(session, "store", lambda: store)
    monkeypatch.setattr(session, "placement", lambda: SimpleNamespace(generation=3))
    monkeypatch.setattr(membership, "is_elastic", lambda: True)
    monkeypatch.setattr(membership, "NOTICE_SECONDS", 0.001)
    monkeypatch.setattr(membership, "NEWCOMERS", patience)
    assert membership.await_notice() == expected
    assert store.queries > max(after.values(), default=0)
