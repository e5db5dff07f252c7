"""An elastic job on hosts reached by ssh: a rank dies, a host joins, another host vanishes."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.job.launch.test_ssh import start
from tests.kits.hosts import Hosts, hosts

pytestmark = pytest.mark.slow

TRAIN = """
import json, os, signal, socket, sys, time
from pathlib import Path
import numpy as np
import farandole.numpy as hvd
from farandole.core.api import elastic
from farandole.core.api.state import ObjectState
folder = Path(sys.argv[1])
hvd.init()
state = ObjectState(step=0, total=0.0, seen=[])
@elastic.run
def train(state):
    while state.step < 10:
        if state.step == 3 and socket.gethostname() == "c":
            os.kill(os.getpid(), signal.SIGKILL)
        state.total += float(hvd.allreduce(np.ones(100_000), op=hvd.Average, name="x")[0])
        hosts = hvd.allgather(np.array([ord(socket.gethostname())], np.uint8), name="hosts")
        state.seen = [*state.seen, "".join(map(chr, hosts))]
        state.step += 1
        if hvd.rank() == 0:
            (folder / str(state.step)).touch()
        if state.step == 6:
            while hvd.size() < 2:
                time.sleep(0.05)
                state.commit()
        if state.step == 8:
            time.sleep(1.0)
        state.commit()
train(state)
print(json.dumps([state.total, state.seen, hvd.size(), os.environ["HOROVOD_HOSTNAME"]]), flush=True)
"""


@pytest.fixture
def four() -> Iterator[Hosts]:
    with hosts(4) as made:
        yield made


def await_file(path: Path, job: subprocess.Popen[str]) -> None:
    while not path.exists() and job.poll() is None:
        time.sleep(0.02)


def test_hosts_fail_join_and_vanish(four: Hosts, tmp_path: Path) -> None:
    listed = tmp_path / "hosts"
    listed.write_text("b:1\nc:1\n")
    (tmp_path / "train.py").write_text(TRAIN)

    words = ("--min-np", "1", "--host-discovery-script", f"file:{listed}")
    train = (sys.executable, str(tmp_path / "train.py"), str(tmp_path))
    job = start(four, "run", "-np", "2", *words, *train)

    def change() -> None:
        await_file(tmp_path / "5", job)
        listed.write_text("b:1\nc:1\nd:1\n")
        await_file(tmp_path / "8", job)
        four[3].die()

    changing = threading.Thread(target=change)
    changing.start()
    out, err = job.communicate(timeout=120)
    changing.join()
    assert job.returncode == 0, err
    (line,) = out.splitlines()
    total, seen, size, host = json.loads(line.partition(":")[2])
    assert (total, size, host) == (10.0, 1, "b")
    assert seen[:3] == ["bc"] * 3
    assert seen[3:6] == ["b"] * 3
    assert "bd" in seen[6:8]
    assert seen[9] == "b"


TORCH = """
import json, os, signal, socket, time
import psutil
import torch
import torch.distributed as dist
import farandole.torch as hvd
from farandole.core.api.state import ObjectState
hvd.init()
state = ObjectState(step=0, seen=[])
@hvd.elastic.run
def train(state):
    dist.init_process_group("gloo")
    try:
        while state.step < 8:
            total = torch.ones(1)
            dist.all_reduce(total)
            master = os.environ["MASTER_ADDR"]
            names = [None] * hvd.size()
            dist.all_gather_object(names, socket.gethostname())
            state.seen = [*state.seen, [int(total), master, "".join(names)]]
            state.step += 1
            if state.step == 3 and socket.gethostname() == "c":  # to the agent of this host
                above = psutil.Process().parents()
                reapers = [each for each in above if "reaper.main()" in " ".join(each.cmdline())]
                os.kill(reapers[-1].ppid(), signal.SIGUSR1)
            state.commit()
            while state.step == 5 and "c" in names:
                time.sleep(0.05)
                state.commit()
    finally:
        dist.destroy_process_group()
train(state)
if hvd.rank() == 0:
    print(json.dumps(state.seen), flush=True)
"""


def test_torch_groups_form_between_hosts(four: Hosts, tmp_path: Path) -> None:
    """The host ``c`` gets a preemption notice, and ``d`` takes its place."""
    (tmp_path / "train.py").write_text(TORCH)
    words = ("--min-np", "2", "--max-np", "2", "-H", "b:1,c:1,d:1")
    notice = ("--preemption-notice", f"file:{tmp_path}/none,signal:USR1")
    train = (sys.executable, str(tmp_path / "train.py"))
    out, err = start(four, "run", "-np", "2", *words, *notice, *train).communicate(timeout=120)
    (line,) = [each for each in out.splitlines() if "[[" in each] or [err]
    seen = json.loads(line.partition(":")[2])
    assert [total for total, *_ in seen] == [2] * 8, err
    assert [hosts for *_, hosts in seen] == ["bc"] * 5 + ["bd"] * 3
    assert "127.0.0.1" not in {master for _, master, _ in seen}
    assert "SIGUSR1" in err
