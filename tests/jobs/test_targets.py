"""The contract of targets: targets of this host, and one that another distribution adds."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from farandole.job.runs.home import RunsHome
from farandole.job.runs.spec import Resources, RunSpec
from farandole.jobs.submission import Submission, submit
from farandole.jobs.targets import load_target
from farandole.jobs.targets.contract import TargetSpec
from farandole.jobs.targets.local import LocalTarget
from farandole.jobs.targets.slurm import SlurmTarget
from farandole.jobs.targets.ssh import SshTarget
from tests.kits import slurm as kit
from tests.kits.jobs import wait_for_end
from tests.kits.target import conforms

SPEC = RunSpec("kit", ("python", "x.py"))
TOY = """
from farandole.jobs.targets.local import LocalTarget


class AtticTarget(LocalTarget):
    kind = "attic"
    options = ("floor",)
"""


def test_local_conforms(home: RunsHome) -> None:
    conforms(LocalTarget(TargetSpec("local", "local")), home, SPEC)


def test_ssh_conforms(home: RunsHome) -> None:
    conforms(SshTarget(TargetSpec("lab", "ssh", options={"hosts": "localhost:2"})), home, SPEC)


@pytest.mark.slow
def test_slurm_conforms(
    home: RunsHome, slurm_cluster: kit.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, slurm_cluster.environment()[name])
    conforms(SlurmTarget(TargetSpec("slurm", "slurm")), home, SPEC)


def test_another_distribution_adds_a_target(
    home: RunsHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    (site / "attic-1.0.dist-info").mkdir(parents=True)
    (site / "attic_target.py").write_text(TOY)
    (site / "attic-1.0.dist-info" / "entry_points.txt").write_text(
        "[farandole.targets]\nattic = attic_target:AtticTarget\n"
    )
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    monkeypatch.setenv("PYTHONPATH", str(site))
    target = load_target(home, "attic")
    assert type(target).__name__ == "AtticTarget"
    conforms(target, home, SPEC)
    source = tmp_path / "source"
    source.mkdir()
    (source / "x.py").write_text("print('here')")
    spec = RunSpec("e", ("python", "x.py"), target="attic", resources=Resources())
    folder = submit(Submission(spec, str(source)), home)
    assert wait_for_end(folder)["state"] == "completed"
    assert Path(folder.log_of(0)).read_text() == "here\n"
