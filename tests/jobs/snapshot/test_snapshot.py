"""The files of a snapshot, their storage, and refused sources."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from farandole.errors import SettingsError
from farandole.job.runs.home import RunsHome
from farandole.jobs import snapshot
from farandole.jobs.snapshot.limits import LIMIT_VARIABLE, SnapshotLimit, limit_of
from farandole.jobs.snapshot.secrets import looks_secret
from farandole.jobs.snapshot.store import ContentStore, clone_tree
from tests.kits.messages import mentioning


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    write(folder / "train.py", "print(1)")
    return folder


def write(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def taken(
    source: Path, home: RunsHome, name: str = "snapshot"
) -> tuple[list[str], snapshot.Snapshot]:
    """Return the names in a snapshot of ``source``, folders with a slash, and the snapshot."""
    into = source.parent / name
    result = snapshot.write(snapshot.select(str(source), home), str(into), home)
    names = [
        str(path.relative_to(into)) + ("/" if path.is_dir() and not path.is_symlink() else "")
        for path in into.rglob("*")
    ]
    return sorted(names), result


def test_the_default_rules_leave_out_files_other_than_programs(
    source: Path, home: RunsHome
) -> None:
    for name in (".git/HEAD", "a/__pycache__/m.pyc", ".venv/x", "node_modules/x", "checkpoints/1"):
        write(source / name)
    write(source / "myenv" / "pyvenv.cfg")
    write(source / "a" / "model.py")
    (source / "logs").mkdir()
    names, result = taken(source, home)
    assert names == ["a/", "a/model.py", "logs/", "train.py"]
    assert (result.files, result.bytes, result.rules) == (2, 9, "default")


def test_ignore_files_decide(source: Path, home: RunsHome) -> None:
    write(source / ".gitignore", "*.log\n/data/\n!keep.log\n")
    write(source / "a" / ".gitignore", "!b.log\nsecret/\n")
    for name in (
        "b.log",
        "a/b.log",
        "keep.log",
        "data/1",
        "a/data/1",
        "a/secret/1",
        "checkpoints/1",
    ):
        write(source / name)
    ours = {"train.py", ".gitignore", "a/", "a/.gitignore"}
    names, result = taken(source, home)
    found = {"keep.log", "a/b.log", "a/data/", "a/data/1", "checkpoints/", "checkpoints/1"}
    assert set(names) == ours | found
    assert result.rules == ".gitignore"
    write(source / ".amlignore", "*\n!*.py\n")
    names, result = taken(source, home, "second")
    assert (names, result.rules) == (["train.py"], ".amlignore")


def test_equal_sources_give_equal_digests(source: Path, home: RunsHome, tmp_path: Path) -> None:
    first = taken(source, home)[1].digest
    os.utime(source / "train.py", (1, 1))
    assert taken(source, home, "again")[1].digest == first
    other = tmp_path / "elsewhere"
    clone_tree(str(source), str(other))
    assert taken(other, home, "other")[1].digest == first
    copied = snapshot.select_all(str(tmp_path / "snapshot"))
    assert snapshot.write(copied, str(tmp_path / "rerun"), home).digest == first
    os.chmod(source / "train.py", 0o755)
    executable = taken(source, home, "executable")[1].digest
    write(source / "train.py", "print(2)")
    assert len({first, executable, taken(source, home, "content")[1].digest}) == 3
    os.rename(source / "train.py", source / "main.py")
    assert taken(source, home, "name")[1].digest not in (first, executable)


def test_snapshots_share_files_on_disk_that_cannot_be_changed(source: Path, home: RunsHome) -> None:
    for name in ("first", "second"):
        taken(source, home, name)
    first, second = source.parent / "first" / "train.py", source.parent / "second" / "train.py"
    assert os.stat(first).st_ino == os.stat(second).st_ino
    assert os.stat(first).st_mode & 0o777 == 0o400
    work = source.parent / "work"
    clone_tree(str(first.parent), str(work))
    write(work / "train.py", "changed")
    assert second.read_text() == "print(1)"


def test_stored_files_are_deleted_with_their_last_snapshot(
    source: Path, home: RunsHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken(source, home)
    monkeypatch.setattr("farandole.jobs.snapshot.store._OLD", -1.0)
    assert ContentStore(home).collect() == 0
    os.unlink(source.parent / "snapshot" / "train.py")
    assert ContentStore(home).collect() == 8
    assert taken(source, home, "again")[0] == ["train.py"]


def test_a_damaged_stored_file_is_replaced(source: Path, home: RunsHome) -> None:
    taken(source, home)
    (stored,) = (path for path in Path(home.folder("sources")).rglob("*") if path.is_file())
    os.chmod(stored, 0o600)
    os.truncate(stored, 3)
    taken(source, home, "again")
    assert (source.parent / "again" / "train.py").read_text() == "print(1)"


def test_links(source: Path, home: RunsHome, tmp_path: Path) -> None:
    outside = write(tmp_path / "outside" / "data.csv", "1,2")
    (tmp_path / "outside" / "loop").symlink_to(tmp_path / "outside")
    write(source / "a" / "b")
    (source / "inner").symlink_to(source / "a")
    (source / "a" / "up").symlink_to("../train.py")
    (source / "file.csv").symlink_to(outside)
    (source / "folder").symlink_to(outside.parent)
    (source / "gone").symlink_to("nowhere")
    names, result = taken(source, home)
    assert names == sorted(
        ["a/", "a/b", "a/up", "file.csv", "folder/", "folder/data.csv", "inner", "train.py"]
    )
    into = tmp_path / "snapshot"
    assert os.readlink(into / "inner") == "a"
    assert os.readlink(into / "a" / "up") == "../train.py"
    assert not (into / "file.csv").is_symlink()
    assert (into / "folder" / "data.csv").read_text() == "1,2"
    assert any("gone" in text for text in result.warnings)


def test_special_files_are_refused_by_name(source: Path, home: RunsHome) -> None:
    os.mkfifo(source / "pipe")
    (source / "null").symlink_to("/dev/null")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(source / "door"))
        with pytest.raises(SettingsError, match=mentioning("pipe", "/dev/null", "door")):
            snapshot.select(str(source), home)
    write(source / ".amlignore", "pipe\nnull\ndoor\n")
    assert snapshot.select(str(source), home).files[-1].name == "train.py"


def test_files_that_look_like_secrets_are_left_out(source: Path, home: RunsHome) -> None:
    for name in (".env", "keys/id_rsa", "server.pem", ".aws/config", "token.txt", "ca.pem"):
        write(source / name)
    write(source / ".amlignore", "!ca.pem\n")
    names, result = taken(source, home)
    assert names == [".amlignore", ".aws/", "ca.pem", "keys/", "train.py"]
    (warning,) = result.warnings
    for name in (".env", "keys/id_rsa", "server.pem", ".aws/config", "token.txt"):
        assert name in warning


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("credentials", True),
        ("google_credentials.json", True),
        (".env.production", True),
        (".env.example", False),
        ("id_rsa.pub", False),
        ("tokenizer.json", False),
        ("tokens.txt", False),
        ("secrets.py", False),
        ("keyboard.py", False),
        ("environment.yml", False),
    ],
)
def test_names_of_secrets(name: str, secret: bool) -> None:
    assert looks_secret(name) is secret


def test_a_source_over_the_limit_names_its_largest_parts(source: Path, home: RunsHome) -> None:
    write(source / "data" / "images.bin", "x" * 4096)
    write(source / "model.bin", "x" * 2048)
    with pytest.raises(SettingsError, match=mentioning("data/", "4.0 KiB", "model.bin")):
        snapshot.select(str(source), home, SnapshotLimit(5000, 100))
    for number in range(5):
        write(source / "many" / str(number))
    with pytest.raises(SettingsError, match=mentioning("8 files", "many/", "5 files")):
        snapshot.select(str(source), home, SnapshotLimit(1 << 20, 7))
    assert snapshot.select(str(source), home, SnapshotLimit(1 << 20, 0)).complete


def test_the_limit_comes_from_argument_or_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert limit_of() == (300_000_000, 2000)
    monkeypatch.setenv(LIMIT_VARIABLE, "123")
    assert limit_of() == (123, 0)
    assert limit_of(5) == (5, 0)
    monkeypatch.setenv(LIMIT_VARIABLE, "much")
    with pytest.raises(SettingsError, match=mentioning(LIMIT_VARIABLE, "much")):
        limit_of()


def test_a_source_that_holds_the_home_leaves_it_out(tmp_path: Path, home: RunsHome) -> None:
    write(tmp_path / "train.py")
    into = Path(home.folder("building")) / "snapshot"
    snapshot.write(snapshot.select(str(tmp_path), home), str(into), home)
    assert sorted(path.name for path in into.iterdir()) == ["train.py"]
    with pytest.raises(SettingsError, match=mentioning(home.path)):
        snapshot.select(home.path, home)


def test_a_file_that_changes_during_the_copy_is_copied_again(
    source: Path, home: RunsHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    from farandole.jobs.snapshot import store

    real, changes = store._digest, iter(range(2))

    def digest(descriptor: int, out: int | None = None) -> str:
        found = real(descriptor, out)
        if next(changes, None) is not None:
            write(source / "train.py", (source / "train.py").read_text() + "#")
        return found

    monkeypatch.setattr(store, "_digest", digest)
    result = taken(source, home)[1]
    assert (source.parent / "snapshot" / "train.py").read_text() == "print(1)##"
    assert result.warnings == ()
    changes = iter(range(100))
    (warning,) = taken(source, home, "again")[1].warnings
    assert "train.py" in warning
