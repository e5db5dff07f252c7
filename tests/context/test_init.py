"""Where a process finds its place in a job."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from farandole import context
from farandole.config import Connection, Placement
from farandole.errors import NotInitializedError


@pytest.fixture(autouse=True)
def _shut_down() -> Iterator[None]:
    yield
    context.shutdown()


def test_without_a_job_there_is_one_rank() -> None:
    with pytest.raises(NotInitializedError):
        context.placement()
    context.init()
    assert context.placement() == Placement()
    assert context.connection() == Connection()


def test_each_stay_in_a_job_has_a_name_of_its_own_which_all_its_ranks_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that comes with a new membership has not been through the stays before it."""
    monkeypatch.setattr(context, "_stay", (0, 0))
    seen = []
    for generation in (0, 0, 3, 3):
        monkeypatch.setenv("FARANDOLE_GENERATION", str(generation))
        context.init()
        seen.append(context.scope())
        context.shutdown()
    assert seen == ["0.1", "0.2", "3.1", "3.2"]
