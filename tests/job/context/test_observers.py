"""The observers that init() attaches to the engine, and the timeline's two calls."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from farandole import cli
from farandole.base.types import Buffer, DType, Kind, Request
from farandole.core.collectives import over
from farandole.core.engine import Entry
from farandole.core.observe.timeline import read
from farandole.core.transports import shm
from farandole.core.transports.inproc import World
from farandole.errors import NotInitializedError, SettingsError
from farandole.job import context
from farandole.job.context import observers
from tests.kits.messages import mentioning


@pytest.fixture(autouse=True)
def _shut_down() -> Iterator[None]:
    yield
    context.shutdown()


def run(name: str) -> None:
    array = np.ones(3, np.float32)
    request = Request(name, Kind.ALLREDUCE, DType.FLOAT32, (3,))
    context.engine().run([Entry(request, Buffer(array, array, DType.FLOAT32))])


def names(path: Path) -> set[str]:
    return {event["name"] for event in read(str(path))}


def test_a_timeline_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_TIMELINE", str(tmp_path / "t.json"))
    monkeypatch.setenv("HOROVOD_TIMELINE_MARK_CYCLES", "1")
    context.init()
    run("a")
    context.shutdown()
    assert names(tmp_path / "t.json") >= {
        "NEGOTIATE_ALLREDUCE",
        "ALLREDUCE",
        "QUEUE",
        "SHM_ALLREDUCE",
        "CYCLE_START",
    }


def test_a_timeline_that_is_started_and_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOROVOD_TIMELINE", "DYNAMIC")
    context.init()
    for turn, mark_cycles in enumerate([False, True]):
        context.start_timeline(str(tmp_path / f"t{turn}.json"), mark_cycles=mark_cycles)
        run(f"a{turn}")
        context.stop_timeline()
        run("outside")
        assert ("CYCLE_START" in names(tmp_path / f"t{turn}.json")) is mark_cycles
        content = (tmp_path / f"t{turn}.json").read_text()
        assert f"a{turn}" in content
        assert "outside" not in content
    with pytest.raises(SettingsError, match=mentioning("No such file")):
        context.start_timeline("/nowhere/t.json")
    run("still alive")


def test_calls_of_the_timeline_name_their_requirements(monkeypatch: pytest.MonkeyPatch) -> None:
    for call in (lambda: context.start_timeline("t.json"), context.stop_timeline):
        with pytest.raises(NotInitializedError, match=mentioning("Farandole", "hvd.init()")):
            call()
    context.init()
    for call in (lambda: context.start_timeline("t.json"), context.stop_timeline):
        with pytest.raises(ValueError, match=mentioning("HOROVOD_TIMELINE=DYNAMIC", "timeline")):
            call()


def test_a_timeline_that_cannot_be_written_stops_init(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_TIMELINE", "/nowhere/t.json")
    with pytest.raises(SettingsError, match=mentioning("'/nowhere/t.json'")):
        context.init()
    assert not context.is_initialized()
    monkeypatch.delenv("HOROVOD_TIMELINE")
    context.init()
    run("a")


def test_a_timeline_continues_after_another_init(tmp_path: Path) -> None:
    """In the same process, and in a later process of the rank's script; but not in a different job."""
    path = tmp_path / "t.json"
    program = (
        "import sys, numpy as np, farandole.numpy as hvd\n"
        "for name in sys.argv[1:]:\n"
        "    hvd.init()\n    hvd.allreduce(np.ones(3), name=name)\n    hvd.shutdown()\n"
    )
    script = tmp_path / "program.py"
    script.write_text(program)
    flags = ["--timeline-filename", str(path)]
    line = f"{sys.executable} {script} one two && {sys.executable} {script} three"
    for _ in range(2):
        command = [
            sys.executable,
            "-m",
            "farandole.cli",
            "run",
            "-np",
            "2",
            *flags,
            "sh",
            "-c",
            line,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr
        ends = [
            event["args"]["name"] for event in read(str(path)) if event["name"] == "process_name"
        ]
        assert ends == ["rank 0", "allreduce.one", "allreduce.two", "allreduce.three"]


def test_a_nested_job_leaves_the_outer_jobs_files_alone(tmp_path: Path) -> None:
    path, log, own = tmp_path / "t.json", tmp_path / "log.csv", tmp_path / "own.json"
    script = tmp_path / "program.py"
    script.write_text(
        "import os, subprocess, sys, numpy as np, farandole.numpy as hvd\nname ="
        " sys.argv[1]\nhvd.init()\nhvd.allreduce(np.ones(3), name=name)\nhvd.shutdown()\nif name =="
        " 'outer' and os.environ['FARANDOLE_RANK'] == '0':\n    command = [sys.executable, '-m',"
        " 'farandole', 'run', '-np', '2', sys.executable, __file__, 'inner']\n   "
        " subprocess.run(command, check=True)\n    subprocess.run(command, check=True,"
        " env={**os.environ, 'HOROVOD_TIMELINE': sys.argv[2]})\n"
    )
    flags = ["--timeline-filename", str(path), "--autotune", "--autotune-log-file", str(log)]
    command = [
        sys.executable,
        "-m",
        "farandole.cli",
        "run",
        "-np",
        "2",
        *flags,
        sys.executable,
        str(script),
    ]
    done = subprocess.run(
        [*command, "outer", str(own)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "allreduce.outer" in path.read_text()
    assert "allreduce.inner" not in path.read_text()
    assert "allreduce.inner" in own.read_text()


PROGRAM = """
import sys
import numpy as np
from farandole.job import context
from farandole.core.engine import Entry
from farandole.base.types import Buffer, DType, Kind, Request
context.init()
array = np.zeros(1000, np.float32)
for step in range(int(sys.argv[1])):
    array[:] = 1
    request = Request("a", Kind.ALLREDUCE, DType.FLOAT32, (1000,))
    context.engine().run([Entry(request, Buffer(array, array, DType.FLOAT32))])
    assert array[0] == 2
context.shutdown()
"""


def farandole(*flags: str, steps: int) -> None:
    command = [
        sys.executable,
        "-m",
        "farandole.cli",
        "run",
        "-np",
        "2",
        *flags,
        sys.executable,
        "-c",
        PROGRAM,
    ]
    done = subprocess.run([*command, str(steps)], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


def test_all_ranks_of_a_job_write_and_their_timelines_merge(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    farandole("--timeline-filename", str(path), "--timeline-all-ranks", steps=5)
    files = sorted(tmp_path.iterdir())
    assert [each.name for each in files] == ["t.json", "t.json.rank1"]
    assert cli.main(["timeline", "merge", *map(str, files), "-o", str(tmp_path / "all.json")]) == 0
    assert (tmp_path / "all.json").read_text().count('"name": "SHM_ALLREDUCE"') == 2 * 2 * 5


def test_rank_0_of_a_job_writes_alone_and_tunes(tmp_path: Path) -> None:
    path, log = tmp_path / "t.json", tmp_path / "log.csv"
    few = [
        "--autotune-warmup-samples",
        "1",
        "--autotune-steps-per-sample",
        "1",
        "--autotune-bayes-opt-max-samples",
        "2",
    ]
    farandole(
        "--timeline-filename",
        str(path),
        "--autotune",
        "--autotune-log-file",
        str(log),
        *few,
        steps=3000,
    )
    assert sorted(tmp_path.iterdir()) == [log, path]
    rows = list(csv.DictReader(log.read_text().splitlines()))
    assert len(rows) in (1, 2, 3)  # as far as it came; at most 2 sizes and the best
    assert all(float(row["score"]) > 0 for row in rows)


def test_variables_of_the_installer_are_noted_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(observers, "_noted", False)
    monkeypatch.setenv("HOROVOD_WITH_PYTORCH", "1")
    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "NCCL")
    with caplog.at_level("INFO", "farandole"):
        for _ in range(2):
            observers.note_ignored()
    assert [record.getMessage() for record in caplog.records] == [
        "ignored, because nothing is compiled: HOROVOD_GPU_OPERATIONS, HOROVOD_WITH_PYTORCH"
    ]


def test_activities_are_called_after_the_wire() -> None:
    wire = shm.connect(0, 1, "", "name")
    try:
        assert observers.wire_name(wire) == "shm"
    finally:
        wire.close()
    assert observers.wire_name(over(World(1).link(0))) == "inproc"
