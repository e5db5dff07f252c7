"""The file of a timeline is complete after every write, and a full disk ends only the timeline."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from farandole.base.types import Kind
from farandole.core.observe.timeline import Timeline, read, recorder
from farandole.core.observe.timeline.file import ArrayFile
from farandole.errors import SettingsError
from tests.core.observe.timeline.events import REQUEST, of, tensors, whole
from tests.kits.messages import mentioning, mentions


def test_the_array_is_whole_after_every_write(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    file = ArrayFile(str(path))
    assert json.loads(path.read_text()) == []
    file.append([])
    assert json.loads(path.read_text()) == []
    for number in range(50):
        file.append([f'{{"n": {number}, "x": "{"y" * 300}"}}'] * (number % 3))
        assert len(json.loads(path.read_text())) == sum(each % 3 for each in range(number + 1))
    file.close()


def test_a_full_disk_ends_the_timeline_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "t.json"
    timeline = Timeline(0, 1)
    timeline.start(str(path))
    tracer = timeline.of("shm")
    tracer.settled([[("a", REQUEST)]], [[]], ["a"], [])
    deadline = time.monotonic() + 60
    while len(read(str(path))) < 5 and time.monotonic() < deadline:
        time.sleep(0.005)
    before = path.read_bytes()
    real = os.pwrite

    def full(fd: int, data: bytes, offset: int) -> int:
        if len(data) > 100:
            real(fd, data[:60], offset)  # some of it still finds room
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    with caplog.at_level("WARNING", "farandole"):
        for _ in range(3):
            tracer.started(Kind.ALLREDUCE, ["a"], 24)
            tracer.finished(Kind.ALLREDUCE, ["a"])
        timeline.stop()
    assert path.read_bytes() == before
    assert [record.getMessage().split(": ")[-1] for record in caplog.records] == [
        "No space left on device"
    ]


def test_a_disk_full_from_the_start_ends_the_timeline(
    caplog: pytest.LogCaptureFixture,
) -> None:
    timeline = Timeline(0, 1)
    with caplog.at_level("WARNING", "farandole"):
        timeline.start("/dev/full")
        timeline.stop()
    (record,) = caplog.records
    assert mentions(record.getMessage(), "/dev/full", "No space")


def test_a_file_that_cannot_be_written_is_named() -> None:
    with pytest.raises(
        SettingsError, match=mentioning("'/nowhere/t.json'", "No such file", "--timeline-filename")
    ):
        Timeline(0, 1).start("/nowhere/t.json")


def test_a_file_that_another_process_writes_is_left_to_it(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    with subprocess.Popen(
        [sys.executable, "-c", VICTIM, str(path)], stdout=subprocess.PIPE
    ) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == b"go\n"
            with pytest.raises(SettingsError, match=mentioning("t.json", "file")):
                Timeline(1, 2).start(str(path))
        finally:
            other.kill()
    assert read(str(path))[0]["farandole"]["rank"] == 0
    again = Timeline(1, 2)
    again.start(str(path))  # the other has gone
    again.stop()
    assert read(str(path))[0]["farandole"]["rank"] == 1


def test_a_file_may_be_begun_again(tmp_path: Path) -> None:
    path = str(tmp_path / "t.json")
    timeline = Timeline(0, 1)
    for name in ("first" * 100, "second"):
        timeline.start(path)
        timeline.of("shm").settled([[(name, REQUEST._replace(name=name))]], [[]], [name], [])
    timeline.stop()
    assert list(tensors(whole(path))) == ["second"]


@pytest.mark.parametrize("tear", [b"", b',\n{"ph":"B","na'], ids=["whole", "torn"])
def test_a_file_continues_where_an_earlier_part_of_the_job_ended(
    tear: bytes, tmp_path: Path
) -> None:
    path = str(tmp_path / "t.json")
    for turn, names in enumerate((["a", "b"], ["b", "c"], ["a"])):
        timeline = Timeline(0, 1)
        timeline.start(path, on=bool(turn))
        tracer = timeline.of("shm")
        for name in names:
            tracer.settled([[(name, REQUEST._replace(name=name))]], [[]], [name], [])
            tracer.finished(Kind.ALLREDUCE, [name])
        timeline.stop()
        if tear:
            Path(path).write_bytes(Path(path).read_bytes().removesuffix(b"\n]\n") + tear)
    assert len([event for event in read(path) if "farandole" in event]) == 1
    events = whole(path)
    assert {name: of(events, name).count(("E", "ALLREDUCE")) for name in tensors(events)} == {
        "a": 2,
        "b": 2,
        "c": 1,
    }


@pytest.mark.parametrize("content", ["", "[]", "[\n\n]\n", "words", '[\n{"ph":"M"}\n]\n'])
def test_a_foreign_timeline_file_is_replaced(content: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(content)
    timeline = Timeline(0, 1)
    timeline.start(str(path), on=True)
    timeline.stop()
    assert len(whole(path)) == 1


VICTIM = """
import sys, time
from farandole.core.observe.timeline import Timeline
from farandole.base.types import DType, Kind, Request
timeline = Timeline(0, 1)
timeline.start(sys.argv[1])
tracer = timeline.of("shm")
request = Request("a", Kind.ALLREDUCE, DType.FLOAT32, (2, 3))
print("go", flush=True)
while True:
    tracer.settled([[("a", request)]], [[]], ["a"], [])
    tracer.started(Kind.ALLREDUCE, ["a"], 24)
    tracer.finished(Kind.ALLREDUCE, ["a"])
    time.sleep(0.00005)
"""


def test_the_file_is_whole_after_a_kill(tmp_path: Path) -> None:
    for turn in range(3):
        path = tmp_path / f"t{turn}.json"
        with subprocess.Popen(
            [sys.executable, "-c", VICTIM, str(path)], stdout=subprocess.PIPE
        ) as victim:
            try:
                assert victim.stdout is not None
                assert victim.stdout.readline() == b"go\n"
                deadline = time.monotonic() + 60
                while path.stat().st_size < 20_000 * (turn + 1) and time.monotonic() < deadline:
                    time.sleep(0.003)
            finally:
                victim.send_signal(signal.SIGKILL)
        assert len(read(str(path))) > 100


def test_a_file_torn_by_a_kill_is_read_up_to_the_tear(tmp_path: Path) -> None:
    path = tmp_path / "torn.json"
    first = {"name": "a", "farandole": {"rank": 0}}
    path.write_text("[\n" + ",\n".join(map(json.dumps, [first, {"name": "b"}, {"name": "c"}]))[:-5])
    assert read(str(path)) == [first, {"name": "b"}]
    path.write_text('[\n{"name": "a", "fa')
    with pytest.raises(SettingsError, match=mentioning("timeline")):
        read(str(path))


def test_too_many_records_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "ROOM", 5)
    monkeypatch.setattr(recorder, "_PAUSE", 60.0)
    timeline = Timeline(0, 1)
    timeline.start(str(tmp_path / "t.json"))
    tracer = timeline.of("shm")
    for _ in range(4):
        tracer.settled([[("a", REQUEST)]], [[]], ["a"], [])
        tracer.started(Kind.ALLREDUCE, ["a"], 24)
        tracer.finished(Kind.ALLREDUCE, ["a"])
    timeline.stop()
    assert "LOST 7 RECORDS" in [event["name"] for event in whole(tmp_path / "t.json")]
