"""Ranks that continue after others have ended."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from farandole.job.config import Settings
from farandole.job.launch.tail import JobTail
from tests.job.launch.tools import Marked
from tests.kits.messages import mentions

HOSTS = ["h1", "h1", "h2", "h2"]


def tail(**settings: Any) -> JobTail:
    return JobTail(4, Settings(**settings))


def test_a_warning_after_the_last_end_and_then_ever_later() -> None:
    watched, codes = tail(stall_warning_seconds=10.0), dict[int, int]()
    assert watched.poll(codes, 100.0) == 0.0
    codes[0] = 0
    assert [watched.poll(codes, now) for now in (101.0, 110.0, 111.0, 112.0)] == [0, 0, 10, 0]
    codes[2] = 0  # another end begins a new wait
    assert [watched.poll(codes, now) for now in (113.0, 122.0, 123.0, 132.0, 133.0, 143.0)] == [
        *(0, 0, 10),
        *(0, 20, 0),
    ]
    codes |= {1: 0, 3: 0}
    assert watched.poll(codes, 1000.0) == 0.0


def test_no_warning_after_a_failure_or_without_the_stall_check() -> None:
    for codes, options in (({0: 0, 1: 1}, {}), ({0: 0}, {"stall_check_disable": True})):
        watched = tail(stall_warning_seconds=1.0, stall_shutdown_seconds=2.0, **options)
        assert [watched.poll(codes, now) for now in (0.0, 1000.0)] == [0.0, 0.0]
        assert not watched.is_over(codes, 1000.0)


def test_the_time_to_end_the_job_counts_from_the_last_end() -> None:
    watched, codes = tail(stall_shutdown_seconds=30.0), {0: 0, 1: 0, 2: 0}
    watched.poll(codes, 100.0)
    assert not watched.is_over(codes, 129.0)
    assert watched.is_over(codes, 130.0)
    verdict = watched.verdict(codes, HOSTS, {3: "process 7 waits"})
    assert (verdict.rank, verdict.exit_code) == (3, 1)
    assert mentions(verdict.message, "Ranks 0-2", "rank 3", "30 s")
    assert mentions(verdict.message, "Rank 3", "h2", "process 7")


@pytest.mark.slow
@pytest.mark.parametrize("agents", [False, True])
def test_a_rank_that_hangs_after_its_last_exchange(jobs: Marked, agents: bool) -> None:
    code = (
        "import os, time; import farandole.numpy as hvd; hvd.init(); hvd.barrier()\n"
        "if hvd.rank() == 1: print('writing', flush=True); time.sleep(1000)"
    )
    times = ["--stall-check-warning-time-seconds", "1", "--stall-check-shutdown-time-seconds", "3"]
    hosts = ["-H", "localhost:2,127.0.0.1:1", "--launcher", "ssh"] if agents else []
    done = jobs.run("run", "-np", "3", *hosts, *times, sys.executable, "-c", code)
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if mentions(line, "Ranks 0, 2", "rank 1")]
    assert len(lines) >= 2  # a warning and the error
    assert mentions(done.stderr, "Rank 1", "localhost", "process", "writing")
