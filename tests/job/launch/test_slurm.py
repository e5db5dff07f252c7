"""``farandole run --launcher slurm`` from a batch script, on a real Slurm of two nodes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from farandole.errors import SettingsError
from farandole.job.config import Placement
from farandole.job.launch.contract import JobRequest
from farandole.job.launch.launchers import slurm
from tests.job.launch.tools import wait_until
from tests.kits import slurm as kit
from tests.kits.messages import mentioning, mentions
from tests.test_docs import ROOT, blocks

BATCH = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=2 --time=5
{python} -m farandole run -np 3 -v --launcher slurm --tls {python} {program}
echo "it ended with $?"
"""
PROGRAM = """
import os, signal, subprocess, threading
import numpy as np
import farandole.numpy as hvd

signalled = threading.Event()
signal.signal(signal.SIGUSR1, lambda *_: signalled.set())
hvd.init()
assert not [name for name in os.environ if name.startswith(("SLURM_PROCID", "SLURM_STEP_", "PMI"))]
total = hvd.allreduce(np.ones(2, np.float32), op=hvd.Sum)
if hvd.rank() == 0:  # as Slurm does it before the time limit, with --signal=USR1
    subprocess.run(["scancel", "--signal=USR1", os.environ["SLURM_JOB_ID"]], check=True)
heard = signalled.wait(60)
print(hvd.rank(), hvd.local_rank(), hvd.cross_rank(), total.tolist(), os.environ["SLURM_JOB_ID"], heard, flush=True)
hvd.allreduce(np.ones(2, np.float32))
if hvd.rank() == 1:
    raise ValueError("no more data")
hvd.allreduce(np.ones(2, np.float32))
"""


@pytest.mark.slow
def test_a_batch_script_whose_ranks_are_warned_before_the_end(
    slurm_cluster: kit.Cluster, tmp_path: Path
) -> None:
    program, batch, out = tmp_path / "program.py", tmp_path / "batch.sh", tmp_path / "out"
    program.write_text(PROGRAM)
    batch.write_text(BATCH.format(python=sys.executable, program=program))
    number = slurm_cluster.run(
        ["sbatch", "--parsable", "--output", str(out), str(batch)]
    ).stdout.strip()
    assert wait_until(lambda: out.exists() and "it ended with" in out.read_text(), 150), (
        out.read_text()
    )
    said = out.read_text()
    for line in (
        f"farandole: 3 ranks on n1:2, n2:1, by srun in job {number}, encrypted (--tls)",
        f"[0]<stdout>:0 0 0 [3.0, 3.0] {number} True",
        f"[1]<stdout>:1 1 0 [3.0, 3.0] {number} True",
        f"[2]<stdout>:2 0 1 [3.0, 3.0] {number} True",
        "farandole: Rank 1 on n1 failed: ValueError: no more data (exited with code 1)",
        "it ended with 1",
    ):
        assert line in said.splitlines(), said
    assert mentions(said, "Ranks 0, 2", "consequence")


@pytest.mark.slow
def test_the_documented_batch_file_survives_its_time_limit(
    slurm_cluster: kit.Cluster, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    for block in blocks(ROOT / "docs" / "launching.md"):
        for word in block.words:
            if word.startswith("save=train."):
                (tmp_path / word.removeprefix("save=")).write_text(block.text)
    path = os.pathsep.join([str(Path(sys.executable).parent), kit.PATH])
    own = {"PATH": path, "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)}
    submit = [
        "sbatch",
        "--parsable",
        f"--chdir={tmp_path}",
        "--output=out",
        str(tmp_path / "train.sbatch"),
    ]
    job = slurm_cluster.run(submit, **own).stdout.strip()

    def turns() -> list[int]:
        """Return the first step of each turn whose line is complete."""
        lines = out.read_text().split("\n")[:-1] if out.exists() else []
        return [int(line.split()[-1]) for line in lines if line.startswith("from step ")]

    out = tmp_path / "out"
    assert wait_until(turns, 150)
    cancelled = slurm_cluster.run(["scancel", "--signal=USR1", job])
    assert cancelled.returncode == 0, cancelled.stderr

    def waits() -> bool:
        """Return whether the requeued job is pending or done: Slurm delays its next turn by two
        minutes.
        """
        state = slurm_cluster.run(["squeue", "-h", "-j", job, "-o", "%T"]).stdout
        return state == "PENDING\n" or len(turns()) == 2

    assert wait_until(waits, 150), (
        out.read_text() + slurm_cluster.run(["scontrol", "show", "job", job]).stdout
    )
    slurm_cluster.run(["scontrol", "update", f"JobId={job}", "StartTime=now"])
    assert wait_until(lambda: len(turns()) == 2, 150), out.read_text()
    slurm_cluster.run(["scancel", job])
    first, second = turns()
    assert first == 0
    assert second > 0


class TestRoom:
    NODES = {"SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_CPUS_PER_NODE": "8(x2),4"}

    def test_as_many_places_as_tasks(self) -> None:
        env = {**self.NODES, "SLURM_TASKS_PER_NODE": "2(x2),1"}
        assert slurm.room(env, 5) == [("n1", 2), ("n2", 2), ("n3", 1)]

    def test_or_as_cpus_for_them(self) -> None:
        assert slurm.room(self.NODES, 3) == [("n1", 1), ("n2", 1), ("n3", 1)]
        assert slurm.room(self.NODES, 4) == [("n1", 8), ("n2", 8), ("n3", 4)]
        assert slurm.room({**self.NODES, "SLURM_CPUS_PER_TASK": "4"}, 4) == [
            ("n1", 2),
            ("n2", 2),
            ("n3", 1),
        ]


def test_an_allocation_of_several_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """``salloc -n 1 : -n 2``: its shell has no list of nodes, but one of each part."""
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    monkeypatch.setenv("SLURM_HET_SIZE", "3")
    cure = "srun --het-group=0-2 python train.py"
    with pytest.raises(SettingsError, match=mentioning("3 (SLURM_HET_SIZE)", cure)):
        slurm.SlurmLauncher().allocate(JobRequest(2))


def test_outside_an_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    with pytest.raises(SettingsError, match=mentioning("batch script")):
        slurm.SlurmLauncher().allocate(JobRequest(2))
    with pytest.raises(SettingsError, match=mentioning("allocation")):
        slurm.SlurmLauncher().allocate(JobRequest(2, hosts="a:2"))


def test_it_knows_its_agents_and_its_ranks() -> None:
    agent = {
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "1",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "1",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURMD_NODENAME": "b",
    }
    placement = slurm.SlurmLauncher().placement(agent)
    assert placement is not None
    assert (placement.rank, placement.size, placement.hostname) == (1, 2, "b")
    assert slurm.SlurmLauncher().placement({**agent, "FARANDOLE_RANK": "5"}) == Placement(rank=5)


ELASTIC = """
import os, subprocess, time
from farandole.job.elastic.discovery.slurm import SlurmDiscovery
from farandole.job.launch.elastic.requeue import SlurmRequeue
if os.environ.get("SLURM_RESTART_COUNT", "0") != "0":
    print("restart", os.environ["SLURM_RESTART_COUNT"], flush=True)
    raise SystemExit
print(SlurmDiscovery().find(), flush=True)
drain = ["scontrol", "update", "nodename=n2", "reason=test"]
subprocess.run([*drain, "state=drain"], check=True)
print(SlurmDiscovery().find(), flush=True)
subprocess.run([*drain, "state=resume"], check=True)
requeue = SlurmRequeue(True)
requeue.ask(lambda text: print(text, flush=True))
requeue.ask(lambda text: print("twice", flush=True))
time.sleep(100)
"""


@pytest.mark.slow
def test_nodes_are_found_and_a_job_returns_to_its_queue(
    slurm_cluster: kit.Cluster, tmp_path: Path
) -> None:
    program, batch, out = tmp_path / "program.py", tmp_path / "batch.sh", tmp_path / "out"
    program.write_text(ELASTIC)
    batch.write_text(
        "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=2 --time=5 --requeue --open-mode=append\n"
        f"exec {sys.executable} {program}\n"
    )
    submit = ["sbatch", "--parsable", "--output", str(out), str(batch)]
    number = slurm_cluster.run(submit).stdout.strip()
    # Slurm waits two minutes before it runs a job again; this is a shorter way to the same start.
    wanted = wait_until(lambda: out.exists() and "queue" in out.read_text(), 60)
    assert wanted, out.read_text() if out.exists() else "no output"
    assert wait_until(lambda: "PENDING" in _state(slurm_cluster, number), 60)
    slurm_cluster.run(["scontrol", "update", f"jobid={number}", "starttime=now"])
    assert wait_until(lambda: "restart 1" in out.read_text(), 150), out.read_text()
    lines = out.read_text().splitlines()
    assert lines[:2] == [str({"n1": 2, "n2": 2}), str({"n1": 2})]
    assert mentions(lines[2], number)


def _state(cluster: kit.Cluster, number: str) -> str:
    return cluster.run(["squeue", "-h", "-j", number, "-o", "%T"]).stdout
