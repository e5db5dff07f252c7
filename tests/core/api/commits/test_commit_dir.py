"""Commits in folders: the file, the folder, and the thread that writes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from farandole.core.api.commits.commit_file import Commit
from farandole.core.api.commits.store import CommitFolder
from farandole.core.api.commits.writer import CommitWriter
from tests.kits.messages import mentions
from tests.kits.worlds import until

COMMIT = Commit(7, 12.5, "ObjectState", b"content\nwith lines")


@pytest.fixture(params=["path", "file", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder that does not exist yet: a path, the URL of a path, and a URL of fsspec."""
    if request.param == "path":
        return str(tmp_path / "a" / "b")
    if request.param == "file":
        return f"file://{tmp_path}/c"
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    return f"memory://{tmp_path.name}/{request.node.name}"


def test_a_commit_is_read_as_it_was_written() -> None:
    assert Commit.from_bytes(COMMIT.to_bytes()) == COMMIT


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda data: data[:-1], ("17", "18")),
        (lambda data: data[:-1] + b"x", ("digest",)),
        (lambda data: data[20:], ("first line",)),
        (lambda data: b"", ("first line",)),
        (lambda data: data.replace(b"commit 1", b"commit 9"), ("commit 9",)),
    ],
)
def test_damage_is_found(damage: Any, why: tuple[str, ...]) -> None:
    with pytest.raises(ValueError) as caught:
        Commit.from_bytes(damage(COMMIT.to_bytes()))
    assert mentions(str(caught.value), *why)


def test_the_newest_commits_are_kept(folder: str) -> None:
    store, reports = CommitFolder(folder), list[str]()
    assert store.newest(reports.append) is None
    for number in (5, 6, 1):  # a training that has begun again
        store.write(COMMIT._replace(number=number))
    found = CommitFolder(folder).newest(reports.append)
    assert found is not None
    assert (found.number, reports) == (1, [])
    store._files.write("commit-000000000003", b"damaged")
    found = store.newest(reports.append)
    assert found is not None
    assert found.number == 6
    assert mentions(reports[0], "commit-000000000003")
    assert len(store._names()) == 2


def test_an_interrupted_write_leaves_no_commit(tmp_path: Path) -> None:
    store = CommitFolder(str(tmp_path))
    store.write(COMMIT)
    (tmp_path / ".partial").write_bytes(COMMIT.to_bytes()[:10])
    (tmp_path / "readme").write_text("mine")
    store.write(COMMIT._replace(number=8))
    found = store.newest(pytest.fail)
    assert found is not None
    assert found.number == 8
    assert (tmp_path / "readme").exists()


class Bytes:
    """A state whose values are bytes. ``gate`` holds up the packing."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.packed: list[bytes] = []

    def to_bytes(self, saved: bytes) -> bytes:
        assert self.gate.wait(20.0)
        self.packed.append(saved)
        return saved


def newest(folder: Path) -> tuple[int, bytes] | None:
    found = CommitFolder(str(folder)).newest(pytest.fail)
    return None if found is None else (found.number, found.content)


def test_commits_are_written_in_the_background_when_due(tmp_path: Path) -> None:
    state, writer = Bytes(), CommitWriter(CommitFolder(str(tmp_path)), seconds=1000.0)
    writer.offer(state, 1, b"one")
    assert newest(tmp_path) is None
    writer.offer(state, 2, b"two")
    state.gate.set()
    until(lambda: newest(tmp_path) is not None, "the first write")
    writer.offer(state, 3, b"three")  # not due
    assert writer.write_now()
    assert newest(tmp_path) == (3, b"three")
    assert writer.write_now()
    assert state.packed.count(b"three") == 1


def test_a_failed_write_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    state, writer = Bytes(), CommitWriter(CommitFolder(str(tmp_path / "file" / "x")), 0.0)
    state.gate.set()
    for number in (1, 2, 3):
        writer.offer(state, number, b"")
        assert not writer.write_now()
    (message,) = [record.getMessage() for record in caplog.records]
    assert mentions(message, str(tmp_path / "file"), "--commit-dir", "commit 1")
