"""Ended ranks of this host, seen in a simulated /proc, and under a real Slurm."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from farandole.errors import RendezvousError
from farandole.job.bootstrap import peer_hosted_store, siblings, slurm
from farandole.job.bootstrap.siblings import NO_SIBLINGS, Siblings
from farandole.job.config import Placement, Settings
from farandole.net.store import StoreClient
from tests.kits import slurm as kit
from tests.kits.messages import mentions

STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_GTIDS": "2,3"}


class Proc:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, pid: int, parent: int, name: str, **env: str) -> None:
        (self.folder / str(pid)).mkdir()
        (self.folder / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} 1 1")
        words = "".join(f"{variable}={text}\0" for variable, text in env.items())
        (self.folder / str(pid) / "environ").write_text(words)

    def remove(self, pid: int) -> None:
        (self.folder / str(pid) / "environ").unlink()

    def siblings(self) -> Siblings:
        marks = ("SLURM_JOB_ID", "SLURM_STEP_ID")
        return Siblings(STEP, (2, 3), "SLURM_PROCID", marks, ("slurmstepd",), self.folder)


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Proc:
    """A simulated /proc with two tasks, one of them in a shell."""
    monkeypatch.setattr(siblings, "GONE", 0.0)
    made = Proc(tmp_path)
    made.add(1, 0, "init")
    made.add(10, 1, "slurmstepd")
    made.add(os.getpid(), 10, "a (strange) name", **STEP, SLURM_PROCID="2")
    made.add(11, 10, "sh", **STEP, SLURM_PROCID="3")
    made.add(12, 11, "python", **STEP, SLURM_PROCID="3")
    return made


class TestProcesses:
    def test_a_rank_has_ended_when_nothing_of_it_is_left(self, proc: Proc) -> None:
        found = proc.siblings()
        assert found.ended() == []
        proc.remove(12)
        assert found.ended() == []
        proc.remove(11)
        proc.add(13, 1, "python", **{**STEP, "SLURM_STEP_ID": "1"}, SLURM_PROCID="3")
        assert found.ended() == [3]

    def test_ranks_of_another_job_with_the_same_variables(self, proc: Proc) -> None:
        """MPICH gives two jobs equal variables. A process without a daemon above it may belong to
        this job.
        """
        found = proc.siblings()
        proc.remove(11)
        proc.remove(12)
        proc.add(30, 1, "slurmstepd")
        proc.add(31, 30, "python", **STEP, SLURM_PROCID="3")
        assert found.ended() == [3]
        proc.add(32, 1, "python", **STEP, SLURM_PROCID="3")
        assert found.ended() == []

    def test_it_must_have_been_away_for_a_while(
        self, proc: Proc, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = proc.siblings()
        monkeypatch.setattr(siblings, "GONE", 1000.0)
        proc.remove(11)
        proc.remove(12)
        assert found.ended() == []
        proc.add(14, 10, "python", **STEP, SLURM_PROCID="3")
        assert found.ended() == []
        monkeypatch.setattr(siblings, "GONE", 0.0)
        assert found.ended() == []
        proc.remove(14)
        assert found.ended() == [3]

    def test_siblings_hidden_by_a_container_are_not_reported(self, proc: Proc) -> None:
        """For example in a separate container."""
        proc.add(20, 0, "a-container")
        (proc.folder / str(os.getpid()) / "stat").write_text(f"{os.getpid()} (python) S 20 1 1")
        found = proc.siblings()
        proc.remove(11)
        proc.remove(12)
        assert found.ended() == []
        assert NO_SIBLINGS.ended() == []

    @pytest.mark.parametrize(("parent", "ended"), [(10, []), (1, [3])])
    def test_an_unreadable_process_may_be_the_rank(
        self, proc: Proc, monkeypatch: pytest.MonkeyPatch, parent: int, ended: list[int]
    ) -> None:
        proc.add(15, parent, "closed")
        proc.remove(11)
        proc.remove(12)
        read = Path.read_bytes

        def refused(path: Path) -> bytes:
            if path.parent.name == "15":
                raise PermissionError(path)
            return read(path)

        monkeypatch.setattr(Path, "read_bytes", refused)
        assert proc.siblings().ended() == ended

    @pytest.mark.parametrize(
        ("name", "state", "ended"),
        [("slurmstepd", "S", []), ("slurmstepd", "Z", [3]), ("ssh", "S", [3])],
    )
    def test_a_fresh_fork_of_the_daemon_may_be_the_rank(
        self, proc: Proc, name: str, state: str, ended: list[int]
    ) -> None:
        """The connection to other hosts is not."""
        proc.add(16, 10, name, SLURM_CONF="x")
        (proc.folder / "16" / "stat").write_text(f"16 ({name}) {state} 10 1 1")
        proc.remove(11)
        proc.remove(12)
        assert proc.siblings().ended() == ended


class Ended:
    """Siblings, some of them ended."""

    def __init__(self, *ranks: int) -> None:
        self._ranks = list(ranks)

    def ended(self) -> list[int]:
        return self._ranks


class Unreached:
    """A cluster in which rank 0's text does not reach the waiting ranks."""

    name = "unreached"
    ends_together = False
    absence_hint = ""

    def __init__(self) -> None:
        self.text, self.there, self.seen = "", threading.Event(), dict[int, Ended]()

    def siblings(self, placement: Placement, env: object) -> Ended:
        return self.seen[placement.rank]

    def broadcast(
        self, placement: Placement, text: Callable[[], str], timeout: float, siblings: Ended
    ) -> str:
        if placement.rank == 0:
            self.text = text()
            self.there.set()
        assert self.there.wait(60)
        return self.text

    def on_assigned(self) -> None:
        pass


@pytest.mark.parametrize("seen", [0, 2])
def test_all_hear_of_a_rank_that_ended_before_init(
    seen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any rank may see it; the driver is not reported as ended."""
    cluster = Unreached()
    cluster.seen = {0: Ended(), 2: Ended(), seen: Ended(1, 2)}
    errors: dict[int, str] = {}

    def enter(rank: int) -> None:
        try:
            peer_hosted_store.join(
                cluster, Placement(rank=rank, size=3, local_size=3), Settings(start_timeout=600.0)
            )  # type: ignore[arg-type]
        except RendezvousError as error:
            errors[rank] = str(error)

    announce = StoreClient.announce
    came = threading.Event()

    def announcing(client: StoreClient, name: str) -> None:
        """Let rank 0 arrive last, so that rank 2 is present when it counts."""
        if name == "rank/0":
            assert came.wait(60)
        announce(client, name)

    put = StoreClient.set

    def setting(client: StoreClient, key: str, value: bytes) -> None:
        put(client, key, value)
        if key == "node/2":
            came.set()

    monkeypatch.setattr(StoreClient, "announce", announcing)
    monkeypatch.setattr(StoreClient, "set", setting)
    threads = [threading.Thread(target=enter, args=(rank,)) for rank in (0, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert set(errors) == {0, 2}
    assert all(mentions(text, "rank 1", "init()") for text in errors.values())


def test_tasks_on_other_nodes_hear_that_rank_0_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "LOOK", 0.0)
    path = tmp_path / "home" / "77-0"
    heard: list[str] = []
    elsewhere = threading.Thread(
        target=lambda: heard.append(slurm.read(path, Placement(rank=2, size=3), 600.0))
    )
    monkeypatch.setattr(slurm, "TOLD", 0.0)
    elsewhere.start()
    unlink = Path.unlink
    monkeypatch.setattr(
        Path, "unlink", lambda path, **options: (elsewhere.join(60), unlink(path, **options))
    )
    assert slurm.read(path, Placement(rank=1, size=3), 600.0, Ended(0)) == slurm.ENDED  # type: ignore[arg-type]
    assert heard == [slurm.ENDED]
    assert not path.exists()


PROGRAM = """
import os, sys
if os.environ["SLURM_PROCID"] == "0":
    sys.exit(3)
import farandole.numpy as hvd
hvd.init()
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["none", "pmi2"])
def test_a_step_of_slurm_whose_rank_0_ends_before_init(
    slurm_cluster: kit.Cluster, tmp_path: Path, way: str
) -> None:
    command = ["srun", f"--mpi={way}", "-N2", "-n3", sys.executable, "-c", PROGRAM]
    done = slurm_cluster.run(command, HOME=str(tmp_path), FARANDOLE_START_TIMEOUT="600")
    assert done.returncode != 0
    assert mentions(done.stderr, "RendezvousError", "rank 0", "init()")
    assert "task 0: Exited with exit code 3" in done.stderr
    assert list(tmp_path.rglob("test-*")) == []
