"""Elastic jobs on this machine: ranks die, join and leave, and no step is lost."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import farandole.numpy as hvd
from farandole.core.api import elastic
from farandole.core.api.state import ObjectState
from farandole.errors import JobFailedError
from farandole.job import context
from farandole.job.elastic.options import ElasticOptions
from farandole.job.launch.elastic.watch import ElasticWatch
from farandole.job.launch.watch import Interrupted
from tests.job.launch.elastic.training import STEPS, Done, Fault, run_job, train
from tests.kits.messages import mentioning

pytestmark = pytest.mark.slow


def check_complete(results: list[Done], folder: Path) -> None:
    """Check that no step was lost or taken twice, and that all ranks agree."""
    assert [done.rank for done in results] == list(range(len(results)))
    assert {done.size for done in results} == {len(results)}
    assert {done.total for done in results} == {float(STEPS)}
    assert {int(path.name) for path in folder.iterdir()} == set(range(1, STEPS + 1))


@pytest.mark.parametrize("fault", [signal.SIGKILL, 0], ids=["killed", "raised"])
def test_rank_0_is_lost(fault: int, tmp_path: Path) -> None:
    faults = [Fault(process=0, step=3, signal=fault)]
    options = ElasticOptions(np=3, min_np=2, max_np=3)
    results, said = run_job(train, (str(tmp_path), faults, 0.0), options, {"localhost": 3})
    check_complete(results, tmp_path)
    assert [done.process for done in results][:2] == [1, 2]
    assert results[0].sizes[0] == 3
    assert results[0].sizes[3] == 2
    assert results[0].local_rank == 1
    assert "rank 0" in said


def test_all_but_one_are_lost_and_replaced(tmp_path: Path) -> None:
    faults = [Fault(0, 2), Fault(2, 2), Fault(3, 9)]
    options = ElasticOptions(np=3, min_np=1, max_np=3)
    results, _ = run_job(train, (str(tmp_path), faults, 0.05, {6: 3}), options, {"localhost": 3})
    check_complete(results, tmp_path)
    assert results[0].process == 1
    assert 4 in {done.process for done in results}
    assert 3 not in {done.process for done in results}
    assert all(done.start_rank > 0 for done in results[1:])


def test_fewer_than_min_np_wait_for_a_new_rank(tmp_path: Path) -> None:
    options = ElasticOptions(np=2, min_np=2, max_np=2)
    results, _ = run_job(train, (str(tmp_path), [Fault(1, 5)]), options, {"localhost": 2})
    check_complete(results, tmp_path)
    assert [done.process for done in results] == [0, 2]
    assert set(results[0].sizes.values()) == {2}


def test_hosts_come_and_go(tmp_path: Path) -> None:
    """``localhost`` and ``127.0.0.1`` are two hosts of this machine. One rank joins slowly, and the
    others continue meanwhile.
    """

    def hosts() -> dict[str, int]:
        if (tmp_path / "7").exists():
            return {"127.0.0.1": 2}
        return {"localhost": 2, "127.0.0.1": 2} if (tmp_path / "3").exists() else {"localhost": 2}

    options = ElasticOptions(np=2, min_np=2, max_np=4)
    results, _ = run_job(train, (str(tmp_path), [], 0.02, {6: 4, 10: 2}, 2), options, hosts)
    check_complete(results, tmp_path)
    assert [done.process for done in results] == [2, 3]
    assert [done.start_rank for done in results] == [2, 3]
    assert (results[0].sizes[7], results[0].sizes[11]) == (4, 2)


def follow(folder: str) -> tuple[int, list[int]]:
    """Train for five steps, and wait for a change of hosts after steps 1 and 3, as programs for
    Horovod do. Return this process's rank at its start, and the sizes of the job by step.
    """
    start = int(os.environ["HOROVOD_RANK"])
    hvd.init()
    changes = [1, 3]

    @elastic.run
    def steps(state: Any) -> None:
        while state.step < 5:
            state.sizes = [*state.sizes, hvd.size()]
            hvd.allreduce(np.ones(2), name="sum")
            if state.step in changes and hvd.rank() == 0:
                Path(folder, str(state.step)).touch()
                while state._host_messages.empty():
                    time.sleep(0.01)
            state.step += 1
            state.commit()

    state = ObjectState(step=0, sizes=[])
    steps(state)
    return start, state.sizes


def test_a_program_waits_for_a_change_of_hosts(tmp_path: Path) -> None:
    """The commit after the wait reports the change, even if a process is added."""

    def hosts() -> dict[str, int]:
        if (tmp_path / "3").exists():
            return {"127.0.0.1": 1}
        return {"localhost": 1, "127.0.0.1": 1} if (tmp_path / "1").exists() else {"localhost": 1}

    options = ElasticOptions(np=1, min_np=1, max_np=2)
    results, _ = run_job(follow, (str(tmp_path),), options, hosts)
    assert results == [(1, [1, 1, 2, 2, 1])]


def test_a_failed_host_is_left_out(tmp_path: Path) -> None:
    options = ElasticOptions(np=4, min_np=2)
    hosts = {"localhost": 2, "127.0.0.1": 2}
    results, _ = run_job(train, (str(tmp_path), [Fault(1, 4)]), options, hosts)
    check_complete(results, tmp_path)
    assert [done.process for done in results] == [2, 3]


def wait_forever() -> None:
    hvd.init()
    context.store().set("test/ready", b"")  # type: ignore[union-attr]
    time.sleep(1000.0)


def mismatch() -> None:
    hvd.init()

    @elastic.run
    def train(_: ObjectState) -> None:
        hvd.allreduce(np.ones(hvd.rank() + 1), name="x")

    train(ObjectState(step=0))


def test_a_signal_ends_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    def see(watch: ElasticWatch, key: str, value: bytes) -> None:
        if key == "test/ready":
            os.kill(os.getpid(), signal.SIGTERM)
        on_set(watch, key, value)

    before = set(psutil.Process().children(recursive=True))
    on_set = ElasticWatch._on_set
    monkeypatch.setattr(ElasticWatch, "_on_set", see)
    with pytest.raises(Interrupted, match="SIGTERM"):
        run_job(wait_forever, (), ElasticOptions(np=2, min_np=1), {"localhost": 2})
    left = set(psutil.Process().children(recursive=True)) - before
    assert not psutil.wait_procs(left, timeout=30.0)[1]


class TestFailures:
    def fails(self, faults: list[Fault], options: ElasticOptions, *expected: Any) -> JobFailedError:
        hosts = {"localhost": 1, "127.0.0.1": 1}
        with pytest.raises(JobFailedError, match=mentioning(*expected)) as caught:
            run_job(train, ("/nonexistent", faults), options, hosts)
        return caught.value

    def test_no_hosts_are_left(self) -> None:
        options = ElasticOptions(np=2, min_np=2)
        error = self.fails([Fault(1, 0)], options, "Rank 1", "SIGKILL", "127.0.0.1", "2")
        assert (error.rank, error.host, error.exit_code) == (1, "127.0.0.1", 137)

    def test_no_state_is_left(self) -> None:
        faults = [Fault(0, 0, 0), Fault(1, 0, 0)]
        error = self.fails(faults, ElasticOptions(np=2, min_np=1), "ValueError", "fault")
        assert "ValueError" in error.remote_traceback

    def test_requests_never_match(self) -> None:
        with pytest.raises(JobFailedError, match=mentioning("3", "commit", "rank 1", "rank 0")):
            run_job(mismatch, (), ElasticOptions(np=2, min_np=2), {"localhost": 2})

    def test_reset_limit(self, tmp_path: Path) -> None:
        options = ElasticOptions(np=3, min_np=1, max_np=3, reset_limit=1)
        faults = [Fault(0, 2), Fault(1, 6)]
        with pytest.raises(JobFailedError, match=mentioning("limit", "1", "SIGKILL")):
            run_job(train, (str(tmp_path), faults, 0.0), options, {"localhost": 3})
