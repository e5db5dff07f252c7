"""States that continue from the commits of an earlier job, on any number of ranks."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farandole.core.api import elastic
from farandole.core.api.commits import keeper
from farandole.core.api.commits.commit_file import Commit
from farandole.core.api.commits.keeper import _in_one_line
from farandole.core.api.commits.store import CommitFolder
from farandole.core.api.state import ObjectState
from farandole.errors import CommitDirError
from farandole.job import context
from tests.kits.messages import mentioning, mentions
from tests.run_job import job


def train(ranks: int, folder: Path, steps: int) -> tuple[list[Any], str]:
    """Return each rank's state at the beginning and at the end of ``steps`` more commits, and rank
    0's messages.
    """

    def body(rank: int) -> Any:
        shown: list[str] = []

        @elastic.run
        def loop(state: Any) -> Any:
            begin = state.step
            for _ in range(steps):
                state.step += 1
                state.weights = state.weights + 1
                state.commit()
            return begin, state.step, float(state.weights[0])

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(keeper.messages, "log", shown.append)
            patch.setattr(keeper.logger, "warning", lambda text, *args: shown.append(text % args))
            return loop(ObjectState(step=0, weights=np.zeros(3), own=rank)), "\n".join(shown)

    found = job(ranks, body, commit_dir=str(folder), commit_dir_seconds=1000.0)
    assert not any(shown for _, shown in found[1:])
    return [values for values, _ in found], found[0][1]


def test_a_job_continues_from_the_last_commit(tmp_path: Path) -> None:
    assert train(2, tmp_path, 5)[0] == [(0, 5, 5.0)] * 2
    values, shown = train(3, tmp_path, 4)
    assert values == [(5, 9, 9.0)] * 3
    assert mentions(shown, str(tmp_path), "commit 5")


def test_a_damaged_commit_is_replaced_by_the_one_before(tmp_path: Path) -> None:
    train(1, tmp_path, 5)
    train(1, tmp_path, 2)
    newest = CommitFolder(str(tmp_path))._names()[-1]
    (tmp_path / newest).write_bytes(b"damaged")
    values, shown = train(1, tmp_path, 1)
    assert values == [(6, 7, 7.0)]
    assert mentions(shown, newest)
    assert mentions(shown, "commit 6")


def test_a_commit_of_another_state_is_refused_on_all_ranks(tmp_path: Path) -> None:
    train(1, tmp_path, 1)

    def other() -> ObjectState:
        return ObjectState(step=0, epoch=0)

    def body(rank: int) -> str:
        with pytest.raises(
            CommitDirError, match=mentioning(str(tmp_path), "weights", "epoch")
        ) as why:
            elastic.run(lambda state: None)(other())
        return str(why.value)

    first, second = job(2, body, commit_dir=str(tmp_path))
    assert first == second


def refusal(folder: Path, *values: str, **settings: Any) -> None:
    """Check that both ranks refuse ``folder`` with one message that has ``values``."""

    def body(rank: int) -> str:
        with pytest.raises(CommitDirError, match=mentioning(str(folder), *values)) as why:
            elastic.run(lambda state: None)(ObjectState(step=0, weights=np.zeros(3), own=rank))
        return str(why.value)

    first, second = job(2, body, commit_dir=str(folder), **settings)
    assert first == second
    assert "\n" not in first


def test_a_folder_without_a_usable_commit_is_refused(tmp_path: Path) -> None:
    train(1, tmp_path, 1)
    (name,) = CommitFolder(str(tmp_path))._names()
    (tmp_path / name).write_bytes(b"damaged")
    refusal(tmp_path, name)
    assert (tmp_path / name).read_bytes() == b"damaged"


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refusal(tmp_path / "file" / "x", "NotADirectoryError")


def test_a_commit_of_another_global_batch_is_refused(tmp_path: Path) -> None:
    CommitFolder(str(tmp_path)).write(Commit(7, 1.5, "ObjectState", b"", shares=3))
    refusal(tmp_path, "commit 7", "3 shares", "--max-np 3", fixed_global_batch=True)


def test_a_long_reason_is_shortened_to_one_line() -> None:
    text = _in_one_line(RuntimeError("size mismatch:\n\t" + "0.weight " * 200))
    assert mentions(text, "RuntimeError", "size mismatch", "0.weight")
    assert len(text) < 400
    assert "\n" not in text


def test_a_lost_state_without_a_commit_ends_the_job(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(context, "lost_commit", lambda: 37)
            with pytest.raises(CommitDirError, match=mentioning("37", str(tmp_path))):
                elastic.run(lambda state: None)(ObjectState(step=0))

    job(2, body, commit_dir=str(tmp_path))


def test_a_commit_is_written_on_notice(tmp_path: Path) -> None:
    def body(rank: int) -> bool:
        @elastic.run
        def loop(state: Any) -> bool:
            before = keeper.write_now()
            for state.step in (1, 2, 3):
                state.commit()
            written = keeper.write_now()
            found = CommitFolder(str(tmp_path)).newest(pytest.fail)
            return not before and (written, found and found.number) == (rank == 0, 3)

        return bool(loop(ObjectState(step=0)))

    assert job(1, body, commit_dir=str(tmp_path), commit_dir_seconds=1000.0) == [True]
    assert not keeper.write_now()


def test_each_rank_continues_with_its_own_values(tmp_path: Path) -> None:
    """Ranks that differ only in registered values write these, not the whole state."""

    def body(rank: int) -> Any:
        gc.collect()  # optimizers of earlier tests in this process have values of their own

        @elastic.run
        def loop(state: Any) -> Any:
            begin = state.step, state.own
            state.step += 1
            state.own += 10
            state.commit()
            return begin

        state = ObjectState(step=0, weights=np.zeros(10_000), own=rank)
        state.register_per_rank("own")
        return loop(state)

    def run(ranks: int) -> list[Any]:
        return job(ranks, body, commit_dir=str(tmp_path), commit_dir_seconds=1000.0)

    assert run(2) == [(0, 0), (0, 1)]
    assert run(2) == [(1, 10), (1, 11)]
    assert run(3) == [(2, 20), (2, 1), (2, 2)]
    sizes = [each.stat().st_size for each in tmp_path.glob("rank*")]
    assert sizes
    assert max(sizes) < 1000


def test_states_that_servers_do_not_send_are_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def lost(number: int) -> Any:
        raise ConnectionResetError(f"server of commit {number}")

    monkeypatch.setattr(context, "server_states", lost)
    assert keeper._packed_server_states(7) == b""
    (record,) = caplog.records
    assert mentions(record.getMessage(), "commit 7", "ConnectionResetError")
    monkeypatch.setattr(context, "server_states", lambda number: [])
    packed = keeper._packed_server_states(7)
    assert keeper._server_states(Commit(7, 1.5, "ObjectState", b"", servers=packed)) == []
    assert keeper._server_states(Commit(7, 1.5, "ObjectState", b"")) is None
