"""The folder of a run: states, journals, identities and files."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.errors import RunError, SettingsError
from farandole.job.runs import journal
from farandole.job.runs.folder import CANCEL, RunFolder, read_json, write_json, write_once
from farandole.job.runs.home import RunsHome, check_experiment
from farandole.job.runs.identity import ProcessIdentity
from farandole.job.runs.spec import EnvironmentSpec, InputSpec, Resources, RunSpec
from farandole.job.runs.states import FINAL, TRANSITIONS, RunState, check_transition

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_a_record_survives_its_line(record: object) -> None:
    line = journal.encode(record)
    assert line.count(b"\n") == 1
    assert journal.decode(line[:-1]) == record


@given(st.lists(st.integers(), min_size=1, max_size=5), st.data())
def test_a_torn_journal_loses_one_record(numbers: list[int], data: st.DataObject) -> None:
    whole = b"".join(journal.encode(number) for number in numbers)
    cut = data.draw(st.integers(0, len(whole)))
    path = f"/dev/shm/farandole-test-{os.getpid()}"
    try:
        Path(path).write_bytes(whole[:cut])
        with journal.JournalWriter(path) as writer:
            writer.append("next")
        found = list(journal.records(path))
    finally:
        os.unlink(path)
    complete = whole[:cut].count(b"\n")
    # A line without only its newline is whole again; any other torn line is skipped.
    assert found[-1] == "next"
    assert found[:-1] in (numbers[:complete], numbers[: complete + 1])


def test_a_damaged_record_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "j"
    lines = [journal.encode(number) for number in range(3)]
    path.write_bytes(lines[0] + lines[1].replace(b" 1", b" 7") + lines[2])
    piece = journal.read(str(path))
    assert (piece.records, piece.damaged, piece.offset) == ([0, 2], 1, path.stat().st_size)
    assert journal.read(str(path), piece.offset).records == []


def test_reading_in_pieces_equals_reading_the_whole(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_bytes(b"".join(journal.encode("x" * n) for n in range(40)))
    offset, found = 0, []
    while (piece := journal.read(str(path), offset, limit=50)).offset != offset:
        found += piece.records
        offset = piece.offset
    assert found == ["x" * n for n in range(40)]


def test_every_state_can_end_and_no_end_is_left() -> None:
    for state in RunState:
        assert bool(TRANSITIONS[state]) is not state.final
        if not state.final:
            assert {RunState.FAILED, RunState.CANCELED} <= TRANSITIONS[state]
    with pytest.raises(RunError, match="completed"):
        check_transition("r", RunState.COMPLETED, RunState.RUNNING)
    with pytest.raises(RunError, match="queued"):
        check_transition("r", RunState.QUEUED, RunState.COMPLETED)


def test_a_spec_survives_json(tmp_path: Path) -> None:
    spec = RunSpec(
        experiment="e",
        command=("python", "a.py"),
        environment=EnvironmentSpec(policy="build", file="requirements.txt"),
        resources=Resources(nodes=2, ranks_per_node=3),
        inputs=(InputSpec("data", "s3://b/k"),),
        tags={"a": "b"},
        after=("e_1_aa",),
    )
    path = str(tmp_path / "spec.json")
    write_json(path, spec.to_json())
    data = read_json(path)
    assert data is not None
    assert RunSpec.from_json({**data, "of_a_later_version": 1}) == spec
    assert spec.resources.ranks == 6


def test_the_first_end_wins(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path))
    assert folder.state() is RunState.QUEUED
    folder.change(RunState.RUNNING)
    assert folder.finish(RunState.FAILED, "exit code 3", 3)
    assert not folder.finish(RunState.CANCELED)
    assert folder.state() is RunState.FAILED
    end = folder.end()
    assert end is not None
    assert end["exit_code"] == 3
    with pytest.raises(RunError, match="failed"):
        folder.change(RunState.RUNNING)


def _claim(path: str) -> bool:
    return write_once(path, {"pid": os.getpid()})


def test_one_of_many_processes_writes_a_file(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        won = pool.map(_claim, [str(tmp_path / "claim.json")] * 16)
    assert won.count(True) == 1
    assert os.listdir(tmp_path) == ["claim.json"]


def test_a_request_reaches_the_folder(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path))
    assert folder.requested(CANCEL) is None
    folder.request(CANCEL, by="user")
    assert folder.requested(CANCEL) is not None


def test_an_identity_ends_with_its_process() -> None:
    assert ProcessIdentity.of().alive()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        found = ProcessIdentity.from_json(ProcessIdentity.of(process.pid).to_json())
        assert found.alive()
        assert not found._replace(started=found.started + 1).alive()
        assert not found._replace(boot="another").alive()
        process.kill()
        process.wait()
    assert not found.alive()
    with pytest.raises(ProcessLookupError):
        ProcessIdentity.of(process.pid)


def test_runs_are_found_by_id_and_by_path(tmp_path: Path) -> None:
    home = RunsHome(str(tmp_path / "home"))
    assert list(home.all_runs()) == []
    run_id = home.new_id("my-experiment_1")
    folder = RunFolder(os.path.join(home.runs, "my-experiment_1", run_id))
    folder.folder()
    assert home.find(run_id) is None
    write_json(folder.file("spec.json"), RunSpec("my-experiment_1").to_json())
    for name in (run_id, folder.path):
        found = home.find(name)
        assert found is not None
        assert found.spec().experiment == "my-experiment_1"
    assert [each.run_id for each in home.all_runs()] == [run_id]
    assert home.find("../../etc") is None


def _numbers(path: str) -> list[int]:
    return [RunsHome(path).next_number() for _ in range(20)]


def test_numbers_of_submissions_are_unique(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(3) as pool:
        found = pool.map(_numbers, [str(tmp_path)] * 3)
    assert sorted(number for numbers in found for number in numbers) == list(range(1, 61))


@pytest.mark.parametrize("name", ["", "../x", "a b", ".hidden", "x" * 101, "-x"])
def test_an_experiment_cannot_be_called(name: str) -> None:
    with pytest.raises(SettingsError):
        check_experiment(name)


def test_final_states_are_those_without_a_next() -> None:
    assert {state for state, following in TRANSITIONS.items() if not following} == FINAL
