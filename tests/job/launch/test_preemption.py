"""Jobs that receive a signal and save their state before they end."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from farandole.job.launch.driver_signals import DriverSignals
from tests.job.launch.tools import Marked, wait_until
from tests.kits.messages import mentions

# Trains with a loader in another process, which has the default handlers, and saves slowly.
TRAIN = """
import multiprocessing, os, pathlib, sys, time
import numpy as np
import farandole.numpy as hvd

def load(pipe):
    while True:
        pipe.send(pipe.recv() + 1)

def train(folder):
    hvd.init()
    ours, theirs = multiprocessing.Pipe()
    loader = multiprocessing.get_context("fork").Process(target=load, args=(theirs,), daemon=True)
    loader.start()
    theirs.close()
    for step in range(10**6):
        ours.send(step)
        assert hvd.allreduce(np.full(1, ours.recv()), op=hvd.Average)[0] == step + 1
        if hvd.preempted():
            break
        if step == 3:
            (folder / f"begun{hvd.rank()}").touch()
    time.sleep(0.3)
    ours.send(step)  # a sampler's state, for example, is in the loader
    (folder / f"saved{hvd.rank()}").write_text(str(ours.recv() - 1))
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["command", "agents", "function"])
def test_all_ranks_save_after_the_same_step(how: str, jobs: Marked, tmp_path: Path) -> None:
    process = _start(how, jobs, tmp_path)
    assert wait_until(lambda: all((tmp_path / f"begun{rank}").exists() for rank in range(2)))
    process.send_signal(signal.SIGTERM)
    done = jobs.finish(process)
    saved = [(tmp_path / f"saved{rank}").read_text() for rank in range(2)]
    assert saved[0] == saved[1]
    assert int(saved[0]) >= 3
    assert done.returncode == (-signal.SIGTERM if how == "function" else 128 + signal.SIGTERM)
    assert "Traceback" not in done.stderr


def _start(how: str, jobs: Marked, folder: Path) -> subprocess.Popen[str]:
    main = f"{TRAIN}\ntrain(pathlib.Path({str(folder)!r}))"
    if how == "function":
        driver = (
            f"{TRAIN}\nimport farandole\nfarandole.run(train, (pathlib.Path({str(folder)!r}),),"
            " np=2, grace_seconds=60)"
        )
        return jobs.python("-c", driver)
    hosts = ["-H", "localhost:1,127.0.0.1:1", "--launcher", "ssh"] if how == "agents" else []
    options = ["-np", "2", *hosts, "--grace-seconds", "60"]
    return jobs.start("run", *options, sys.executable, "-c", main)


@pytest.mark.slow
def test_a_rank_that_does_not_end_is_named_and_killed(jobs: Marked, tmp_path: Path) -> None:
    code = f"trap '' TERM; touch {tmp_path}/begun; while true; do sleep 0.1; done"
    process = jobs.start("run", "-np", "1", "--grace-seconds", "3.2", "bash", "-c", code)
    assert wait_until((tmp_path / "begun").exists)
    process.send_signal(signal.SIGTERM)
    done = jobs.finish(process)
    assert done.returncode == 128 + signal.SIGTERM
    assert mentions(done.stderr, "rank 0", "--grace-seconds", "SIGTERM")


def test_two_simultaneous_signals_count_once() -> None:
    """``timeout`` signals the command, and then its process group."""
    signals = DriverSignals(lambda: None)
    signals.install()
    try:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert signals.received == [signal.SIGTERM]
        signal.raise_signal(signal.SIGINT)
        assert signals.received == [signal.SIGTERM, signal.SIGINT]
    finally:
        signals.restore()
