"""Commits in folders: the file, the folder, and the thread that writes."""

from __future__ import annotations

import errno
import json
import os
import sys
import threading
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest

from farandole.core.api.commits.commit_file import Commit
from farandole.core.api.commits.folder_lock import FolderLock
from farandole.core.api.commits.store import CommitFolder
from farandole.core.api.commits.writer import CommitWriter
from farandole.errors import DataError
from tests.kits.messages import mentioning, mentions
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
    whole = COMMIT._replace(job="a", shares=3, servers=b"states\nof servers", ranks=4)
    for commit in (COMMIT, whole):
        assert Commit.from_bytes(b"".join(commit.to_parts())) == commit


def test_a_commit_of_all_ranks_is_preferred(tmp_path: Path) -> None:
    store = CommitFolder(str(tmp_path))
    of_rank = CommitFolder(str(tmp_path), "rank1")
    for number in (1, 2):
        store.write(COMMIT._replace(number=number, job="a"))
    assert store.newest(pytest.fail, lambda commit: of_rank.has("a", commit.number)) is not None
    of_rank.write(COMMIT._replace(number=1, job="a"))
    found = store.newest(pytest.fail, lambda commit: of_rank.has("a", commit.number))
    assert found is not None
    assert found.number == 1
    newest = store.newest(pytest.fail)
    assert newest is not None
    assert newest.number == 2
    assert of_rank.of("a", 1) == COMMIT._replace(number=1, job="a")
    assert of_rank.of("b", 1) is None


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
        Commit.from_bytes(damage(b"".join(COMMIT.to_parts())))
    assert mentions(str(caught.value), *why)


def test_the_newest_commits_are_kept(folder: str) -> None:
    store, reports = CommitFolder(folder), list[str]()
    assert store.newest(reports.append) is None
    for number in (5, 6, 1):  # a training that has begun again
        store.write(COMMIT._replace(number=number))
    found = CommitFolder(folder).newest(reports.append)
    assert found is not None
    assert (found.number, reports) == (1, [])
    store._files.write("commit-000000000003", [b"damaged"])
    found = store.newest(reports.append)
    assert found is not None
    assert found.number == 6
    assert mentions(reports[0], "commit-000000000003")
    assert len(store._names()) == 2


def test_an_interrupted_write_leaves_no_commit(tmp_path: Path) -> None:
    store = CommitFolder(str(tmp_path))
    store.write(COMMIT)
    (tmp_path / ".partial").write_bytes(b"".join(COMMIT.to_parts())[:10])
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
    assert writer.is_due()
    writer.start()
    assert newest(tmp_path) is None
    writer.offer(state, 2, b"two")
    state.gate.set()
    until(lambda: newest(tmp_path) is not None, "the first write")
    writer.offer(state, 3, b"three")
    assert not writer.is_due()
    assert writer.write_now()
    assert newest(tmp_path) == (3, b"three")
    assert writer.write_now()
    assert state.packed.count(b"three") == 1


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_a_failed_write_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    state, writer = Bytes(), CommitWriter(CommitFolder(str(tmp_path / "file" / "x")), 0.0)
    state.gate.set()
    for number in (1, 2, 3):
        writer.offer(state, number, b"")
        assert not writer.write_now()
    (message,) = messages(caplog)
    assert mentions(message, str(tmp_path / "file"), "--commit-dir", "commit 1")
    writer.finish()
    assert mentions(messages(caplog)[1], "commit 3", str(tmp_path / "file"))
    (tmp_path / "file").unlink()
    assert writer.write_now()
    assert mentions(messages(caplog)[2], "commit 3")
    writer.finish()
    assert len(messages(caplog)) == 3


def test_a_full_disk_keeps_the_commits_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, writer = Bytes(), CommitWriter(CommitFolder(str(tmp_path)), 1000.0)
    state.gate.set()
    writer.offer(state, 1, b"one")
    assert writer.write_now()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        CommitFolder(str(tmp_path)).check_writable()
        for number, free in ((2, 12345), (3, 12000)):
            patch.setattr(CommitFolder, "space", lambda self, free=free: free)
            writer.offer(state, number, b"x" * 98765)
            assert not writer.write_now()
    (message,) = messages(caplog)
    assert mentions(message, "98,765", "12,345", str(tmp_path), "commit 2")
    assert newest(tmp_path) == (1, b"one")
    assert len(os.listdir(tmp_path)) == 1
    assert writer.write_now()
    assert newest(tmp_path) == (3, b"x" * 98765)


def test_a_full_disk_gives_up_the_older_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, older = CommitFolder(str(tmp_path)), tmp_path / "commit-000000000001"
    for number in (1, 2):
        store.write(COMMIT._replace(number=number, content=b"x" * 1000))
    sync = os.fsync

    def full(descriptor: int) -> None:
        if older.exists():
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr(CommitFolder, "space", lambda self: 500)
    with pytest.raises(OSError, match="quota"):
        store.write(COMMIT._replace(number=3, content=b"x" * 5000))
    assert older.exists()
    store.write(COMMIT._replace(number=3, content=b"x" * 1000))
    assert [newest(tmp_path), len(store._names())] == [(3, b"x" * 1000), 2]


def test_commits_of_two_jobs_are_not_mixed(folder: str, caplog: pytest.LogCaptureFixture) -> None:
    state, stores = Bytes(), [CommitFolder(folder) for _ in range(3)]
    state.gate.set()
    first, second, third = (
        CommitWriter(store, 0.0, job) for store, job in zip(stores, "aba", strict=True)
    )
    assert stores[0].newest(pytest.fail) is None
    first.offer(state, 1, b"first")
    assert first.write_now()
    found = stores[1].newest(pytest.fail)  # it continues from the first job's commit
    assert found is not None
    second.offer(state, 2, b"second")
    assert second.write_now()
    for number in (2, 3):
        first.offer(state, number, b"first")
        assert not first.write_now()
    (message,) = messages(caplog)
    assert mentions(message, "commit-000000000002", "--commit-dir")
    first.finish()
    assert mentions(messages(caplog)[1], "commit 3")
    second.offer(state, 4, b"second")
    assert second.write_now()
    third.offer(state, 9, b"third")  # another rank 0, which has loaded nothing
    assert third.write_now()


def test_a_damaged_commit_does_not_displace_a_good_one(tmp_path: Path) -> None:
    store = CommitFolder(str(tmp_path))
    for number in (1, 2):
        store.write(COMMIT._replace(number=number))
    damaged = tmp_path / store._names()[-1]
    damaged.write_bytes(b"damaged")
    store.newest(lambda text: None)
    store.write(COMMIT._replace(number=3))
    names = store._names()
    assert len(names) == 2
    assert damaged.name not in names
    for name in names:
        (tmp_path / name).write_bytes(b"damaged")
    with pytest.raises(DataError, match=mentioning(*names)):
        store.newest(lambda text: None)


LOCKED = """
import sys
from farandole.core.api.commits.folder_lock import FolderLock
lock = FolderLock(sys.argv[1], "other")
lock.acquire()
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_folder_has_one_job(tmp_path: Path) -> None:
    words = [sys.executable, "-c", LOCKED, str(tmp_path)]
    with Popen(words, stdin=PIPE, stdout=PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline()
        mine = FolderLock(str(tmp_path), "mine")
        with pytest.raises(DataError, match=mentioning(str(other.pid))):
            mine.acquire(0.0)
        mine.acquire_if_free()
        FolderLock(str(tmp_path), "other").acquire(0.0)  # another rank of the same job
        other.kill()
        mine.acquire()
    assert json.loads((tmp_path / ".owner").read_text())["pid"] == os.getpid()
    mine.release()
    FolderLock(str(tmp_path), "third").acquire(0.0)
