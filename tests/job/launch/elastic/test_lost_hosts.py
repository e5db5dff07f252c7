"""Hosts vanish or cannot reach each other during a training: no committed step and no local value
of a rank is lost.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.job.launch.elastic.test_elastic_ssh import await_file
from tests.job.launch.test_ssh import start
from tests.kits.hosts import Hosts, hosts

pytestmark = pytest.mark.slow

TRAIN = """
import json, os, socket, sys, time
from pathlib import Path
import numpy as np
import farandole.numpy as hvd
from farandole.core.api import elastic
from farandole.core.api.state import ObjectState
from farandole.net import liveness
folder, process, host = Path(sys.argv[1]), os.environ["FARANDOLE_MEMBER"], socket.gethostname()
full = int(sys.argv[2])
if "quick" in sys.argv:  # a quarter of the real times
    liveness.LOST_SECONDS, liveness.PROBE_AFTER, liveness.PROBE_EVERY, liveness.PROBES = 2.0, 1, 1, 1
hvd.init()
state = ObjectState(step=0, total=0.0, seen=[])
state.register_per_rank("seen", lambda own, lost: own + lost)
begins = []
@elastic.run
def train(state):
    begins.append([state.step, len(state.lost_ranks)])
    while state.step < 40 or (hvd.size() == full) != ("return" in sys.argv):
        state.total += float(hvd.allreduce(np.ones(50_000), op=hvd.Average, name="x")[0])
        state.seen = [*state.seen, [state.step, process]]
        state.step += 1
        time.sleep(0.02)
        state.commit()
        (folder / f"committed.{host}.{process}").write_text(str(state.step))
        if state.step == 20:
            (folder / "20").touch()
        if state.step > 20 and hvd.size() < full:
            (folder / "excluded").touch()
train(state)
print(json.dumps([process, begins, state.step, state.total, state.seen]), flush=True)
"""


@pytest.fixture
def four() -> Iterator[Hosts]:
    with hosts(4) as made:
        yield made


def test_two_hosts_vanish_together(four: Hosts, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    train = (sys.executable, str(tmp_path / "train.py"), str(tmp_path), "6")
    words = ("--min-np", "1", "-H", "b:2,c:2,d:2", "--commit-copies", "2")
    job = start(four, "run", "-np", "6", *words, *train)

    def vanish() -> None:
        await_file(tmp_path / "20", job)
        four[1].die()  # with rank 0
        four[2].die()

    vanishing = threading.Thread(target=vanish)
    vanishing.start()
    out, err = job.communicate(timeout=120)
    vanishing.join()
    assert job.returncode == 0, err
    results = [json.loads(line.partition(":")[2]) for line in out.splitlines()]
    assert {result[0] for result in results} == {"4", "5"}
    committed = {
        path.suffix[1:]: int(path.read_text()) for path in tmp_path.glob("committed.[bc].*")
    }
    assert set(committed) == {"0", "1", "2", "3"}
    for _, begins, step, total, _ in results:
        assert total == step
        assert begins[1][0] >= max(committed.values())
        assert begins[1][1] == 4
    seen = [tuple(each) for result in results for each in result[4]]
    assert len(seen) == len(set(seen))
    for process, last in committed.items():
        steps = sorted(step for step, owner in seen if owner == process)
        assert steps == list(range(len(steps)))
        assert len(steps) >= last - 1  # the copy of the last commit may not have been complete


def test_a_host_that_reaches_no_other_is_left_out(four: Hosts, tmp_path: Path) -> None:
    """The packets of ``c`` to ``b`` and ``d`` are lost, while the driver on ``a`` reaches all."""
    (tmp_path / "train.py").write_text(TRAIN)
    train = (sys.executable, str(tmp_path / "train.py"), str(tmp_path), "4", "quick")
    words = ("--min-np", "2", "-H", "b:1,c:2,d:1")
    job = start(four, "run", "-np", "4", *words, *train)
    await_file(tmp_path / "20", job)
    for other in (four[1], four[3]):
        four[2].lose(other)
    out, err = job.communicate(timeout=120)
    assert job.returncode == 0, err
    results = [json.loads(line.partition(":")[2]) for line in out.splitlines()]
    assert {result[0] for result in results} == {"0", "3"}
    committed = [int(path.read_text()) for path in tmp_path.glob("committed.c.*")]
    assert all(result[1][1][0] >= max(committed) for result in results)
    (line,) = [line for line in err.splitlines() if "left out" in line]
    assert re.search(r"\bc\b.*rank \d on \w cannot reach rank \d on \w", line)
    assert four.idle()


def test_a_host_returns_when_its_network_recovers(four: Hosts, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    train = (sys.executable, str(tmp_path / "train.py"), str(tmp_path), "3", "quick", "return")
    words = ("--min-np", "2", "-H", "b:1,c:1,d:1", "--cooldown-range", "1:2")
    job = start(four, "run", "-np", "3", *words, *train)
    await_file(tmp_path / "20", job)
    for other in (four[1], four[3]):
        four[2].lose(other)
    await_file(tmp_path / "excluded", job)
    for other in (four[1], four[3]):
        four[2].regain(other)
    out, err = job.communicate(timeout=120)
    assert job.returncode == 0, err
    results = [json.loads(line.partition(":")[2]) for line in out.splitlines()]
    assert len(results) == 3
    assert {(step, total) for _, _, step, total, _ in results} == {(results[0][2],) * 2}
    assert {"0", "2"} < {result[0] for result in results}  # a new process on c
    assert four.idle()


def test_a_suspended_host_is_left_out(four: Hosts, tmp_path: Path) -> None:
    """Its connections stay open, so that only the driver notices; later the host resumes."""
    (tmp_path / "train.py").write_text(TRAIN)
    train = (sys.executable, str(tmp_path / "train.py"), str(tmp_path), "3")
    job = start(four, "run", "-np", "3", "--min-np", "2", "-H", "b:1,c:1,d:1", *train)
    await_file(tmp_path / "20", job)
    suspended = [four[2].sshd(), *four[2].processes()]
    for pid in suspended:
        os.kill(pid, signal.SIGSTOP)
    out, err = job.communicate(timeout=120)
    for pid in suspended:
        os.kill(pid, signal.SIGCONT)
    assert job.returncode == 0, err
    results = [json.loads(line.partition(":")[2]) for line in out.splitlines()]
    assert {result[0] for result in results} == {"0", "2"}
    assert all(step == total == 40 for _, _, step, total, _ in results)
    assert four.idle()
