"""The place of a process in its job."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

import pytest

from farandole.errors import NotInitializedError
from farandole.job import context
from farandole.job.config import Connection, Placement
from farandole.job.context import session
from tests.kits.messages import mentions
from tests.run_job import job


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


@pytest.mark.parametrize("has_state", [True, False])
def test_a_program_without_commits_is_reported(
    has_state: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    keeper = "farandole.core.api.commits.keeper"
    monkeypatch.setenv("FARANDOLE_COMMIT_DIR", "/commits")
    monkeypatch.setitem(sys.modules, keeper, sys)
    if not has_state:
        monkeypatch.delitem(sys.modules, keeper)
    context.init()
    context.shutdown()
    assert mentions(capfd.readouterr().err, "/commits", "hvd.elastic.run") is not has_state


def test_each_session_has_an_id_that_all_ranks_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A rank that joins with a new membership has missed the earlier sessions."""
    monkeypatch.setattr(session, "_number", (0, 0))
    seen = []
    for generation in (0, 0, 3, 3):
        monkeypatch.setenv("FARANDOLE_GENERATION", str(generation))
        context.init()
        seen.append(context.session_id())
        context.shutdown()
    assert seen == ["0.1", "0.2", "3.1", "3.2"]


def test_a_process_that_was_forked_off_knows_whose_child_it_is() -> None:
    """Programs read the rank in the workers of a DataLoader, which read that rank's data. Workers
    are no ranks: collectives are an error in them.
    """

    def fn(rank: int) -> str:
        out, into = os.pipe()
        child = os.fork()
        if not child:
            try:
                context.engine()
                said = "an engine"
            except NotInitializedError as error:
                said = (
                    f"{context.rank()} of {context.size()}, {context.local_rank()} here,"
                    f" {context.is_initialized()}"
                )
                said += f", forked off: {'a fork of a rank' in str(error)}"
            context.shutdown()
            with contextlib.suppress(NotInitializedError):
                said = f"{context.rank()} after shutdown()"
            os.write(into, said.encode())
            os._exit(0)
        os.close(into)
        os.waitpid(child, 0)
        with os.fdopen(out) as pipe:
            return pipe.read()

    assert job(2, fn) == [
        "0 of 2, 0 here, True, forked off: True",
        "1 of 2, 1 here, True, forked off: True",
    ]
