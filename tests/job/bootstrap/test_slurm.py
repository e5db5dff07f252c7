"""``srun python train.py`` in an allocation: a real Slurm with two nodes, and the file by which
tasks agree.
"""

from __future__ import annotations

import os
import stat
import sys
import threading
from pathlib import Path

import pytest

from farandole.errors import AuthenticationError, RendezvousError, SettingsError
from farandole.job.bootstrap import slurm
from farandole.job.config import Placement
from tests.job.bootstrap import tools
from tests.kits import slurm as kit
from tests.kits.messages import mentioning, mentions


@pytest.mark.slow
def test_a_step_on_two_nodes_agrees_by_a_file_also_with_tls(
    slurm_cluster: kit.Cluster, tmp_path: Path
) -> None:
    done = slurm_cluster.run(
        ["srun", "-N2", "-n3", *tools.program(tmp_path)], HOME=str(tmp_path), FARANDOLE_TLS="1"
    )
    lines = tools.check_hosts_of_two_and_one(done)
    assert [line[7:11] for line in lines] == [
        ["0", "3", "0", "2"],
        ["1", "3", "1", "2"],
        ["2", "3", "0", "1"],
    ]
    assert {line[13] for line in lines} == {"slurm"}
    assert {line[-1] for line in lines} == {"True"}
    assert list(tmp_path.rglob("test-*")) == [], (
        "the file with the secret is gone once all have read it"
    )


@pytest.mark.slow
def test_a_pmi_step_needs_no_file_and_ends_with_a_failed_task(
    slurm_cluster: kit.Cluster, tmp_path: Path
) -> None:
    (tmp_path / ".cache").touch()  # so that no folder can be made in it
    command = ["srun", "--mpi=pmi2", "-N2", "-n3", *tools.program(tmp_path, "fails")]
    done = slurm_cluster.run(command, HOME=str(tmp_path))
    tools.check_failure(done)
    assert "farandole: rank 1 on n1 failed" in done.stderr


@pytest.mark.slow
def test_a_pmi_step_names_the_ranks_that_are_late(
    slurm_cluster: kit.Cluster, tmp_path: Path
) -> None:
    late = "import os, time; os.environ['SLURM_PROCID'] == '1' and time.sleep(20)"
    code = f"{late}; import farandole.numpy as hvd; hvd.init()"
    command = ["srun", "--mpi=pmi2", "-N1", "-n2", "--kill-on-bad-exit=1", sys.executable, "-c"]
    done = slurm_cluster.run([*command, code], HOME=str(tmp_path), FARANDOLE_START_TIMEOUT="3")
    assert done.returncode != 0
    assert mentions(done.stderr, "RendezvousError", "rank 1", "init()")


@pytest.mark.slow
def test_rank_0_of_a_step_serves_parameters(slurm_cluster: kit.Cluster, tmp_path: Path) -> None:
    command = ["srun", "-N2", "-n3", *tools.program(tmp_path, "serves")]
    tools.check_served(slurm_cluster.run(command, HOME=str(tmp_path), FARANDOLE_SERVERS="2"), 3)


class TestFile:
    def test_it_is_read_when_it_comes(self, tmp_path: Path) -> None:
        path = tmp_path / "home" / "77-0"
        writer = threading.Timer(0.1, slurm.write, (path, "host:1,5ec"))
        writer.start()
        assert slurm.read(path, Placement(rank=1, size=2), 10.0) == "host:1,5ec"
        writer.join()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert os.listdir(path.parent) == ["77-0"]

    def test_a_secret_file_open_to_others_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "home" / "77-0"
        slurm.write(path, "host:1,5ec")
        path.chmod(0o640)
        with pytest.raises(AuthenticationError, match=mentioning("640", "secret")):
            slurm.read(path, Placement(rank=1, size=2), 10.0)
        path.parent.chmod(0o755)
        with pytest.raises(AuthenticationError, match=mentioning("755")):
            slurm.write(path, "host:1,5ec")

    def test_a_link_is_not_followed(self, tmp_path: Path) -> None:
        slurm.write(tmp_path / "home" / "real", "x")
        (tmp_path / "link").symlink_to(tmp_path / "home" / "real")
        with pytest.raises(OSError, match=mentioning("symbolic links")):
            slurm.read(tmp_path / "link", Placement(rank=1, size=2), 1.0)

    def test_one_that_does_not_come(self, tmp_path: Path) -> None:
        with pytest.raises(RendezvousError) as caught:
            slurm.read(tmp_path / "77-0", Placement(rank=3, size=4), 0.1)
        assert str(caught.value).startswith("rank 3 of this Slurm step")
        assert "farandole run --launcher slurm" in str(caught.value)

    def test_no_two_steps_have_the_same(self) -> None:
        step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_CLUSTER_NAME": "a/b"}
        others = [
            {},
            {"SLURM_STEP_ID": "1"},
            {"SLURM_RESTART_COUNT": "1"},
            {"SLURM_CLUSTER_NAME": "c"},
        ]
        paths = {slurm.meeting_point({**step, **other}) for other in others}
        assert len(paths) == 4
        assert {path.parent.name for path in paths} == {"slurm"}

    def test_a_user_without_a_home_gets_the_cure(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def none() -> Path:
            raise RuntimeError("Could not determine home directory.")

        monkeypatch.setattr(Path, "home", none)
        with pytest.raises(SettingsError, match=mentioning("HOME", "--mpi=pmi2")):
            slurm.meeting_point({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"})


def test_an_unwritable_home_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    step = {"HOME": str(tmp_path / "file"), "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    for name, value in step.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PMI_FD", raising=False)
    with pytest.raises(
        SettingsError,
        match=mentioning("rank 0", "HOME"),
    ):
        slurm.SlurmBootstrap().broadcast(
            Placement(rank=0, size=2), lambda: "text", 1.0, slurm.NO_SIBLINGS
        )
