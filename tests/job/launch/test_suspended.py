"""Agents that are suspended: their connections stay open, but nothing comes."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from farandole.job.launch import reaper
from farandole.job.launch.agents.pulse import SILENCE, AgentPulse
from tests.job.launch.tools import Marked, read_pids
from tests.kits.messages import mentions

RANK = """
import os, sys, time
import farandole.numpy as hvd
hvd.init()
path = f"{sys.argv[1]}/rank{hvd.rank()}.pid"
with open(path + "~", "w") as file: file.write(f"{os.getpid()}\\n")
os.rename(path + "~", path)
time.sleep(float(sys.argv[2]))
"""


def test_a_silence_is_reported_once_and_again_after_news() -> None:
    pulse = AgentPulse()
    pulse.hear(3, 0.0)
    seen = []
    for now in range(30):
        if now == 15:
            pulse.hear(3, float(now))
        seconds = pulse.poll(3, float(now))
        if pulse.has_to_report(3, seconds):
            seen.append((now, seconds))
        assert not pulse.is_lost(seconds, has_ended=False)
    assert seen == [(10, SILENCE), (25, SILENCE)]


def test_a_driver_that_was_suspended_itself_reports_no_agent() -> None:
    pulse = AgentPulse(shutdown=5.0)
    pulse.hear(0, 0.0)
    assert pulse.poll(0, 1.0) == 1.0
    assert pulse.poll(0, 100.0) == 0.0
    assert [pulse.poll(0, now) for now in (101.0, 102.0, 103.0, 104.0)] == [1, 2, 3, 4]
    assert pulse.is_lost(pulse.poll(0, 105.0), has_ended=False)


def test_ranks_that_have_reported_do_not_wait_for_their_agent() -> None:
    pulse = AgentPulse()
    assert not pulse.is_lost(1000.0, has_ended=False)
    assert not pulse.is_lost(19.0, has_ended=True)
    assert pulse.is_lost(21.0, has_ended=True)


@pytest.mark.slow
@pytest.mark.parametrize("ends", [True, False])
def test_a_job_whose_agent_is_suspended_is_ended_in_time(
    ends: bool, jobs: Marked, tmp_path: Path
) -> None:
    hosts = ["-H", "localhost:1,127.0.0.1:1", "--launcher", "ssh"]
    limits = ["--stall-check-shutdown-time-seconds", "3"]
    code = [sys.executable, "-c", RANK, str(tmp_path), "0.5" if ends else "1000"]
    process = jobs.start("run", "-np", "2", *hosts, *limits, *code)
    pid = read_pids(tmp_path, 2)["rank1"]
    for _ in range(3):  # reaper, guard, agent
        pid = reaper.processes()[pid][0]
    os.kill(pid, signal.SIGSTOP)
    done = jobs.finish(process)
    assert done.returncode == (0 if ends else 1)
    assert mentions(done.stderr, "rank 1", str(pid), "3 s")
    assert mentions(done.stderr, "Rank 1", "127.0.0.1") == (not ends)
