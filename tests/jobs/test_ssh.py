"""Runs on hosts that ssh reaches, with and without a file system that they share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from farandole.errors import SettingsError
from farandole.job.runs.folder import RunFolder
from farandole.job.runs.home import RunsHome
from farandole.job.runs.spec import Resources
from farandole.jobs import attempts, rank_journal
from farandole.jobs.metrics import series
from farandole.jobs.targets.contract import TargetSpec, Ticket
from farandole.jobs.targets.ssh import SshTarget, hosts_for, occupied
from tests.kits.hosts import Hosts, hosts
from tests.kits.messages import mentioning

# Runs on a host; the supervisor and the runner do so, too.
SUBMIT = """
import json, sys
from farandole.job.runs.home import RunsHome
from farandole.job.runs.spec import Resources, RunSpec
from farandole.jobs.submission import Submission, submit
from farandole.jobs.targets import node_counts, save_target
from farandole.jobs.targets.contract import TargetSpec

home = RunsHome()
options = json.loads(sys.argv[1])
save_target(home, TargetSpec("lab", "ssh", options=options))
more = {**options, "hosts": options["hosts"] + ",nowhere.invalid:1"}
save_target(home, TargetSpec("more", "ssh", options=more))
command = ("python", "train.py", *sys.argv[4:])
resources = Resources(nodes=2, min_nodes=int(sys.argv[3]), max_nodes=2 * int(sys.argv[3]))
spec = RunSpec("e", command, target="lab", resources=resources)
print(submit(Submission(spec, sys.argv[2]), home).path)
print(json.dumps([node_counts(home, name) for name in ("lab", "more")]))
"""
PROGRAM = """
import os, socket, sys, time
import numpy as np
import farandole
import farandole.numpy as hvd

hvd.init()
total = hvd.allreduce(np.ones(1, np.float32), op=hvd.Sum)
farandole.log_metric("seen", 7.0, 1)
print(hvd.rank(), socket.gethostname(), os.environ["NODE_RANK"], total.tolist(), flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
open(f"outputs/rank{hvd.rank()}", "w").write(open("data.txt").read())
if hvd.rank() == 0:
    open("outputs/model", "w").write("new")
farandole.log_metric("seen", 8.0, 2)
hvd.barrier()
sys.exit(int(sys.argv[2]))
"""


# The process on host a ends at step 3, and the other one continues, and writes the commits.
ELASTIC = """
import os, signal, socket, sys
import numpy as np
import farandole.numpy as hvd
from farandole.core.api import elastic
from farandole.core.api.state import ObjectState

hvd.init()
state = ObjectState(step=0)

@elastic.run
def train(state):
    while state.step < 20:
        if state.step == 3 and socket.gethostname() == "a":
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.allreduce(np.ones(1), name="x")
        state.step += 1
        state.commit()

train(state)
print(hvd.rank(), hvd.size(), state.step, os.environ["NODE_RANK"], flush=True)
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def two() -> Iterator[Hosts]:
    with hosts(2) as made:
        yield made


class _Submitted:
    """A run that was submitted on the first host; its ranks wait for the file ``go``."""

    def __init__(
        self, made: Hosts, folder: Path, code: int, program: str = PROGRAM, least: int = 0
    ) -> None:
        """``least``: the least number of nodes of an elastic run; 0: two nodes."""
        source = folder / "source"
        (source / "outputs").mkdir(parents=True)
        (source / "train.py").write_text(program)
        (source / "data.txt").write_text("data of the snapshot")
        (source / "outputs" / "model").write_text("old")
        self.home = str(folder / "home")
        self.go = folder / "go"
        options = {"hosts": "a:1,b:1", "ssh_options": f"-F {made.config}"}
        words = [json.dumps(options), str(source), str(least), str(self.go), str(code)]
        variables = [
            f"FARANDOLE_HOME={self.home}",
            f"XDG_STATE_HOME={folder}/state",
            f"PYTHONPATH={os.pathsep.join(filter(None, sys.path))}",
        ]
        command = made[0].command("env", *variables, sys.executable, "-c", SUBMIT, *words)
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr
        path, counts = done.stdout.splitlines()
        self.folder = RunFolder(path)
        self.counts = json.loads(counts)

    def wait(self, seconds: float = 90.0) -> dict[str, object]:
        deadline = time.monotonic() + seconds
        while (end := self.folder.end()) is None:
            assert time.monotonic() < deadline, self.folder.events()
            time.sleep(0.05)
        return end

    def log(self, rank: int) -> str:
        return Path(self.folder.log_of(rank)).read_text()

    def copied(self) -> bool:
        return any("copied to" in event.get("text", "") for event in self.folder.events())


@pytest.mark.slow
def test_a_run_on_hosts_that_share_its_folder(two: Hosts, tmp_path: Path) -> None:
    run = _Submitted(two, tmp_path, 0)
    run.go.touch()
    assert run.wait()["state"] == "completed", run.wait()
    assert run.log(0).splitlines()[-1] == "0 a 0 [2.0]"
    assert run.log(1).splitlines()[-1] == "1 b 1 [2.0]"
    assert not run.copied()
    idle, running, _, _, unusable = run.counts[1]
    assert (idle + running, unusable) == (2, 1)
    assert sum(run.counts[0]) == 2
    ticket = attempts.ticket_of(run.folder, 1)
    assert ticket is not None
    assert ticket["data"] == attempts.claimed_ticket(run.folder, 1, "ssh")
    assert ticket["data"]["hosts"] == "a:1,b:1"
    for rank in (0, 1):
        output = Path(run.folder.file("outputs", f"rank{rank}"))
        assert output.read_text() == "data of the snapshot"


@pytest.mark.slow
def test_a_failing_run_on_hosts_without_a_shared_folder(two: Hosts, tmp_path: Path) -> None:
    RunsHome(str(tmp_path / "home")).folder("runs")
    two[1].run("mount", "-t", "tmpfs", "tmpfs", str(tmp_path / "home"))
    run = _Submitted(two, tmp_path, 3)
    deadline = time.monotonic() + 90
    while series(run.folder, "seen", 1)[2].tolist() != [7.0]:  # while the ranks wait
        assert run.folder.end() is None, run.folder.events()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    copy = run.folder.path
    assert two[1].run("ls", copy).split() == ["copy", "metrics", "outputs", "work"]
    run.go.touch()
    end = run.wait()
    assert (end["state"], end["exit_code"]) == ("failed", 3)
    assert run.copied()
    assert "1 b 1 [2.0]" in run.log(1).splitlines()
    assert series(run.folder, "seen", 1)[2].tolist() == [7.0, 8.0]
    outputs = Path(run.folder.file("outputs"))
    assert {path.name: path.read_text() for path in outputs.iterdir()} == {
        "model": "new",
        "rank0": "data of the snapshot",
        "rank1": "data of the snapshot",
    }
    left = two[1].run("sh", "-c", f"ls -d {copy} 2>/dev/null || echo none")
    assert left == "none\n"


@pytest.mark.slow
def test_an_elastic_run_loses_a_host(two: Hosts, tmp_path: Path) -> None:
    RunsHome(str(tmp_path / "home")).folder("runs")
    two[1].run("mount", "-t", "tmpfs", "tmpfs", str(tmp_path / "home"))
    run = _Submitted(two, tmp_path, 3, ELASTIC, least=1)
    end = run.wait()
    assert (end["state"], end["exit_code"]) == ("failed", 3), end
    assert run.copied()
    memberships = rank_journal.read(run.folder).memberships
    assert [each.members for each in memberships] == [((0, "a"), (1, "b")), ((1, "b"),)]
    assert run.log(1).splitlines()[-1] == "0 1 20 1"
    assert os.listdir(run.folder.file("commits"))  # written on host b


def test_runs_share_out_the_hosts() -> None:
    lab = [("a", 2), ("b", 2), ("me@fd99::3", 4)]
    assert hosts_for(lab, Resources(nodes=2, ranks_per_node=2)) == "a:2,b:2"
    active = [Ticket("lab", {"hosts": "a:1,b:2"}), Ticket("lab", {"hosts": "b:1"}), Ticket("x", {})]
    busy = occupied(active)
    assert busy == {"a": 1, "b": 3}
    assert hosts_for(lab, Resources(), busy) == "a:1"
    assert hosts_for(lab, Resources(ranks_per_node=2), busy) == "me@[fd99::3]:2"
    assert hosts_for(lab, Resources(nodes=3), busy) == "a:1,me@[fd99::3]:1,b:1"
    assert hosts_for(lab, Resources(min_nodes=1, max_nodes=2), busy) == "a:1,me@[fd99::3]:1"
    assert hosts_for(lab, Resources(min_nodes=1, max_nodes=9)) == "a:1,b:1,me@[fd99::3]:1"


def test_hosts_that_cannot_hold_a_run_are_refused() -> None:
    with pytest.raises(SettingsError, match="hosts"):
        SshTarget(TargetSpec("lab", "ssh"))
    target = SshTarget(TargetSpec("lab", "ssh", options={"hosts": "a:2,b:1"}))
    for resources, values in (
        (Resources(ranks_per_node=4), ("4", "3")),
        (Resources(nodes=3), ("3", "2")),
        (Resources(ranks_per_node=3), ("3", "0")),
    ):
        with pytest.raises(SettingsError, match=mentioning(*values)):
            target.check(resources)
    target.check(Resources(nodes=2))
