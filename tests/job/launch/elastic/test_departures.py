"""Preemption notices in elastic jobs: a host is left at a commit, and nothing is lost."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import farandole.numpy as hvd
from farandole.core.api import elastic
from farandole.core.api.commits.store import CommitFolder
from farandole.core.api.state import ObjectState
from farandole.job.elastic.discovery import FixedHosts
from farandole.job.elastic.options import ElasticOptions
from farandole.job.elastic.plan import ElasticPlan
from farandole.job.launch import driver
from farandole.job.launch.display import Display
from farandole.job.launch.job import Job, settings_for

pytestmark = pytest.mark.slow

STEPS = 10


def train(folder: str, signalled: int) -> tuple[int, str, int, list[int]]:
    """Train until the job has moved. The process ``signalled`` gets SIGTERM in its third step; -1:
    the file ``leave-localhost`` is made there.

    Returns the rank, the host, the number of the process, and the sizes of the job by step.
    """
    hvd.init()
    process = int(os.environ["FARANDOLE_MEMBER"])
    state = ObjectState(step=0, total=0.0, sizes=[])

    @elastic.run
    def steps(state: Any) -> None:
        while state.step < STEPS:
            if state.step == 3 and process == signalled:
                os.kill(os.getpid(), signal.SIGTERM)
            if state.step == 3 and signalled < 0 and hvd.rank() == 0:
                Path(folder, "leave-localhost").touch()
            state.total += float(hvd.allreduce(np.ones(3), op=hvd.Average, name="mean")[0])
            state.sizes = [*state.sizes, hvd.size()]
            state.step += 1
            state.commit()
            while state.step >= 6 and anyone_stays():
                time.sleep(0.02)
                state.commit()

    def anyone_stays() -> bool:
        """Return, on all ranks, True until both first processes have left."""
        stays = np.array([process in (0, 1)], dtype=np.int32)
        return bool(hvd.allreduce(stays, op=hvd.Max, name="stays")[0])

    steps(state)
    assert state.total == STEPS
    return hvd.rank(), os.environ["HOROVOD_HOSTNAME"], process, state.sizes


def run_job(tmp_path: Path, sources: str, signalled: int) -> tuple[list[Any], str]:
    said = io.StringIO()
    options = ElasticOptions(np=2, min_np=2, max_np=2)
    hosts = FixedHosts({"localhost": 2, "127.0.0.1": 2})
    job = Job(
        np=2,
        settings=settings_for({}, {"grace_seconds": 20.0, "preemption_notice": sources}),
        display=Display(say=said),
        call=(train, (str(tmp_path), signalled), {}),
        elastic=ElasticPlan(options, hosts),
    )
    with contextlib.redirect_stdout(io.StringIO()):
        return driver.run(job), said.getvalue()


@pytest.mark.parametrize("signalled", [1, -1], ids=["signal", "file"])
def test_a_job_moves_to_another_host(signalled: int, tmp_path: Path) -> None:
    sources = "signal:SIGTERM" if signalled >= 0 else f"file:{tmp_path}/leave-{{host}}"
    results, said = run_job(tmp_path, sources, signalled)
    assert [each[:2] for each in results] == [(0, "127.0.0.1"), (1, "127.0.0.1")]
    assert {process for _, _, process, _ in results} == {2, 3}
    assert results[0][3] == [2] * STEPS  # the ranks were two in every step
    assert "localhost" in said
    assert ("SIGTERM" if signalled >= 0 else str(tmp_path)) in said


def stay(folder: str) -> int:
    """Train on a host that is about to leave until the last commit is on disk. Return its number
    there.
    """
    hvd.init()
    commits, state = CommitFolder(f"{folder}/commits"), ObjectState(step=0)

    @elastic.run
    def steps(state: Any) -> int:
        found = 0
        while found < 5:
            if state.step == 5:
                Path(folder, "leave").touch()
            state.step += 1
            time.sleep(0.02)
            state.commit()
            newest = commits.newest(print)
            found = 0 if newest is None else newest.number
        return found

    result: int = steps(state)
    return result


def test_the_last_commit_is_written_and_slurm_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    said = io.StringIO()
    settings = {
        "preemption_notice": f"file:{tmp_path}/leave",
        "slurm_requeue": True,
        "commit_dir": f"{tmp_path}/commits",
        "commit_dir_seconds": 1e6,
    }
    job = Job(
        np=1,
        settings=settings_for({}, settings),
        display=Display(say=said),
        call=(stay, (str(tmp_path),), {}),
        elastic=ElasticPlan(ElasticOptions(np=1, min_np=1), FixedHosts({"localhost": 1})),
    )
    with contextlib.redirect_stdout(io.StringIO()):
        (number,) = driver.run(job)
    assert number >= 5
    assert "4711" in said.getvalue()
    assert (tmp_path / "asked").read_text().split() == ["requeue", "4711"]
