"""Names of objects that are equal on ranks that stay and ranks that start later."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from farandole.job.context import membership, session
from farandole.job.context.membership import ObjectNames


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
