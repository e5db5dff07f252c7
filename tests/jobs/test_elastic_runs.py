"""Elastic runs on this host: processes that end and are replaced, and their records."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from farandole.errors import RunError, SettingsError
from farandole.job.runs.home import RunsHome
from farandole.job.runs.spec import Resources, RunSpec
from farandole.job.runs.states import RunState
from farandole.jobs import follow, rank_journal
from farandole.jobs.commands import submit as submit_command
from farandole.jobs.commands.show import described
from farandole.jobs.comparison.fairness import Reason, fairness
from farandole.jobs.comparison.measures import measures
from farandole.jobs.details import details
from farandole.jobs.experiment import ScriptRun
from farandole.jobs.rank_journal import RankJournal
from farandole.jobs.runner import elastic_settings
from farandole.jobs.submission import Submission, submit
from farandole.jobs.summary import summary
from farandole.jobs.supervisor.index import Index, IndexedRun
from farandole.jobs.supervisor.queue import total
from farandole.jobs.targets.contract import TargetSpec
from farandole.jobs.targets.local import LocalTarget
from farandole.jobs.targets.slurm import SlurmTarget
from farandole.jobs.targets.spark import SparkTarget
from tests.kits.jobs import wait_for_end
from tests.kits.messages import mentioning
from tests.kits.written_runs import written_run

# Process 1 ends at step 3 of 9, and the others continue until a new process has joined.
PROGRAM = """
import json, os, signal, time
import numpy as np
import farandole
import farandole.numpy as hvd
from farandole.core.api import elastic
from farandole.core.api.state import ObjectState

process = int(os.environ["FARANDOLE_MEMBER"])
print(f"process {process} on node {os.environ['NODE_RANK']}", flush=True)
hvd.init()
state = ObjectState(step=0, total=0.0)

@elastic.run
def train(state):
    while state.step < 9:
        if process == 1 and state.step == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        state.total += float(hvd.allreduce(np.ones(1), op=hvd.Average, name="x")[0])
        if state.step < 8 or hvd.size() == 3:
            state.step += 1
        else:
            state.total -= 1
            time.sleep(0.05)
        if hvd.rank() == 0:
            farandole.log_metric("total", state.total, state.step)
        state.commit()

train(state)
if hvd.rank() == 0:
    json.dump([state.step, state.total, hvd.size()], open("outputs/end", "w"))
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    return folder


@pytest.mark.slow
def test_a_lost_process_of_a_run_is_replaced(home: RunsHome, source: Path) -> None:
    resources = Resources(nodes=3, cores=0.1, min_nodes=2, max_nodes=3)
    wanted = RunSpec("e", ("python", "train.py"), resources=resources)
    folder = submit(Submission(wanted, str(source)), home)
    assert wait_for_end(folder)["state"] == "completed", folder.end()
    assert json.loads(Path(folder.file("outputs", "end")).read_text()) == [9, 9.0, 3]

    known = rank_journal.read(folder)
    assert [len(each.members) for each in known.memberships] == [3, 2, 3]
    assert sorted(known.processes) == [0, 1, 2, 3]
    assert [known.processes[number].code for number in range(4)] == [0, -9, 0, 0]
    for process, node in ((0, 0), (1, 1), (2, 2), (3, 1)):
        log = Path(follow.log_path(folder, process)).read_text()
        assert log.splitlines()[0] == f"process {process} on node {node}"
    with pytest.raises(RunError, match=mentioning("4")):
        follow.log_path(folder, 4)

    found = {**details(folder), **summary(folder)}
    assert (found["ranks"], found["nodes"], found["attempts"]) == (3, 3, 1)
    assert [each["processes"] for each in found["memberships"]] == [[0, 1, 2], [0, 2], [0, 2, 3]]
    assert 0 < found["rank_seconds"] < 4 * found["seconds"]
    assert "processes 0, 2, 3" in described(found)
    (row,) = _indexed(home)
    assert (row.ranks, row.nodes) == (3, 3)

    of_run = measures(folder)
    assert of_run.sizes == (3, 2, 3)
    codes = {each.code for each in fairness([of_run])}
    assert Reason.SIZES in codes


# Ends its runner at step 30 of its first attempt, once a commit is on disk.
KILLING = """
import json, os, signal, sys, time
import numpy as np
import farandole.numpy as hvd
from farandole.core.api import elastic
from farandole.core.api.state import ObjectState

hvd.init()
state = ObjectState(step=0, total=0.0)
attempt = int(os.environ["FARANDOLE_RUN_ATTEMPT"])

@elastic.run
def train(state):
    if hvd.rank() == 0:
        print(f"attempt {attempt} begins at step {state.step}", flush=True)
    while state.step < 60:
        state.total += float(hvd.allreduce(np.ones(1), op=hvd.Average, name="x")[0])
        state.step += 1
        state.commit()
        if attempt == 1 and state.step == 30 and hvd.rank() == 0:
            folder = os.environ["FARANDOLE_RUN_DIR"]
            while not any("commit-" in name for name in os.listdir(f"{folder}/commits")):
                time.sleep(0.01)
            with open(f"{folder}/claim-1.json") as file:
                os.kill(json.load(file)["process"]["pid"], signal.SIGKILL)
            time.sleep(60)

train(state)
if hvd.rank() == 0:
    json.dump([state.step, state.total], open("outputs/end", "w"))
"""


@pytest.mark.slow
def test_a_run_continues_at_a_commit_after_its_runner(home: RunsHome, source: Path) -> None:
    (source / "train.py").write_text(KILLING)
    resources = Resources(nodes=2, cores=0.1, min_nodes=2, max_nodes=2)
    wanted = RunSpec(
        "e", ("python", "train.py"), resources=resources, settings={"commit_dir_seconds": 0.01}
    )
    folder = submit(Submission(wanted, str(source)), home)
    assert wait_for_end(folder)["state"] == "completed", folder.end()
    assert json.loads(Path(folder.file("outputs", "end")).read_text()) == [60, 60.0]
    text = Path(follow.log_path(folder, 0)).read_text() + Path(folder.log_of(1)).read_text()
    begun = dict(re.findall(r"attempt (\d) begins at step (\d+)", text))
    assert begun.keys() == {"1", "2"}
    assert begun["1"] == "0"
    assert 0 < int(begun["2"]) <= 30


def _indexed(home: RunsHome) -> list[IndexedRun]:
    index = Index(home)
    try:
        index.refresh()
        return list(index.runs())
    finally:
        index.close()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (1, 0, 0)),
        ({"min_nodes": 2, "max_nodes": 8}, (2, 2, 8)),
        ({"nodes": 4, "min_nodes": 2}, (4, 2, 4)),
        ({"nodes": 3, "max_nodes": 5}, (3, 3, 5)),
    ],
)
def test_bounds_of_nodes(given: dict[str, int], expected: tuple[int, int, int]) -> None:
    resources = ScriptRun(".", "train.py", **given).resources()
    assert (resources.nodes, resources.min_nodes, resources.max_nodes) == expected


def test_the_command_line_gives_the_bounds() -> None:
    words = ["--min-nodes", "2", "--max-nodes", "8", "--ranks-per-node", "4"]
    request = submit_command.request(submit_command.parser().parse_args(words), ["train"])
    assert request.resources() == Resources(2, 4, min_nodes=2, max_nodes=8)
    assert elastic_settings(request.spec("e")) == {"min_np": 8, "max_np": 32}
    assert elastic_settings(RunSpec("e")) == {}


def test_an_elastic_run_occupies_its_most_nodes() -> None:
    resources = Resources(2, 4, min_nodes=2, max_nodes=8, gpus=1)
    assert (total(resources).cores, total(resources).gpus) == (32.0, 32)
    target = LocalTarget(TargetSpec("here", "local", options={"gpus": 8}))
    target.check(Resources(2, 4, gpus=1))
    with pytest.raises(SettingsError, match=mentioning("32", "8")):
        target.check(resources)


@pytest.mark.parametrize("kind", [SlurmTarget, SparkTarget])
def test_targets_of_a_fixed_size_refuse(kind: type[SlurmTarget | SparkTarget]) -> None:
    target = kind(TargetSpec("there", kind.kind))
    with pytest.raises(SettingsError, match=mentioning("there", kind.kind, "2", "8")):
        target.check(Resources(2, min_nodes=2, max_nodes=8))


def test_processes_count_until_their_ends(home: RunsHome) -> None:
    folder = written_run(home, state=RunState.RUNNING)
    journal = RankJournal(folder)
    for process in range(2):
        journal.added(process, "a")
    journal.formed(1, [(0, "a"), (1, "a")])
    journal.ended(1, -9)
    known = rank_journal.read(folder)
    began = known.processes[0].started
    ended = known.processes[1].ended
    assert ended is not None
    assert rank_journal.rank_seconds(known, began + 10) == pytest.approx(
        10 + ended - known.processes[1].started, abs=0.01
    )
    journal.added(0, "b")  # the next attempt
    known = rank_journal.read(folder)
    assert [each.host for each in known.processes.values()] == ["b"]
    assert known.memberships == []


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"resources": Resources(nodes=9, min_nodes=2, max_nodes=8)}, ("9", "2", "8")),
        ({"resources": Resources(nodes=2, min_nodes=0, max_nodes=8)}, ("min_nodes", "0")),
        ({"settings": {"min_np": 2}}, ("min_np", "--min-nodes")),
        ({"resources": Resources(min_nodes=1, max_nodes=2), "tf_workers": 1}, ("tf_workers",)),
    ],
)
def test_wrong_bounds_are_refused(
    home: RunsHome, source: Path, change: dict[str, object], named: tuple[str, ...]
) -> None:
    wanted = RunSpec(**{**vars(RunSpec("e", ("python", "train.py"))), **change})
    with pytest.raises(SettingsError, match=mentioning(*named)):
        submit(Submission(wanted, str(source)), home)
    assert list(home.all_runs()) == []
