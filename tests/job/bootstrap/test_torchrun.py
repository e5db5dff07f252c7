"""torchrun starts programs of both kinds."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from farandole.job.bootstrap.siblings import NO_SIBLINGS
from farandole.job.bootstrap.torchrun import TorchrunBootstrap
from farandole.job.config import Placement
from tests.job.bootstrap.tools import OURS

torch = pytest.importorskip("torch")

BOTH = """
import os
import signal
import sys
import torch
import torch.distributed as dist
import farandole.torch as hvd
import farandole.torch.distributed

if sys.argv[1] == "hvd":
    hvd.init()
    dist.init_process_group("farandole")
else:
    dist.init_process_group("cpu:farandole")
    hvd.init()
ours, theirs = torch.ones(3), torch.ones(3)
work = dist.all_reduce(theirs, async_op=True)
ours = hvd.allreduce(ours, op=hvd.Sum)  # while the other one is under way
work.wait()
assert ours.tolist() == theirs.tolist() == [2.0] * 3
assert (hvd.rank(), hvd.local_rank()) == (dist.get_rank(), dist.get_node_local_rank())
attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "1"))
if attempt == 0 and dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if attempt == 0:
    dist.all_reduce(theirs)  # torchrun ends this rank, if the error does not
dist.destroy_process_group()
hvd.shutdown()
sys.stdout.write(f"fine {sys.argv[1]} {attempt}\\n")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "launcher"),
    [
        (
            "hvd",
            ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"],
        ),
        ("dist", ["farandole.cli", "run", "-np", "2", sys.executable]),
    ],
)
def test_both_kinds_of_calls_in_one_program(
    first: str, launcher: list[str], tmp_path: Path
) -> None:
    """Under torchrun, which restarts all ranks after one has died."""
    script = tmp_path / "both.py"
    script.write_text(BOTH)
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith((*OURS, "TORCHELASTIC"))
    }
    done = subprocess.run(
        [sys.executable, "-m", *launcher, str(script), first],
        env={**clean, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"fine {first} 1") == 2, done.stdout


@pytest.mark.slow
def test_a_script_around_programs(tmp_path: Path) -> None:
    """Each rank's parent is then its own shell, not torchrun's agent."""
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\nimport numpy as np\nimport farandole.numpy as hvd\nhvd.init()\n"
        "sys.stdout.write(f'{hvd.allreduce(np.ones(1) + hvd.rank(), op=hvd.Sum)[0]} in all\\n')\n"
    )
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith((*OURS, "TORCHELASTIC"))
    }
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
            "--no-python",
            "bash",
            "-c",
            f"{sys.executable} {program} && {sys.executable} {program}",
        ],
        env={**clean, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("3.0 in all") == 4, done.stdout


def test_without_a_home_they_meet_among_the_temporary_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A container's user may have no home, or a read-only one. No file is left."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("HOME", "/dev/null")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ranks = [Placement(rank=rank, size=2, local_rank=rank, local_size=2) for rank in range(2)]
    assert [
        TorchrunBootstrap().broadcast(rank, lambda: "secret", 20.0, NO_SIBLINGS) for rank in ranks
    ] == ["secret"] * 2
    (folder,) = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    TorchrunBootstrap().on_assigned()
    assert not list(tmp_path.iterdir())


def test_several_hosts_tell_each_other_through_torchruns_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = torch.distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    for name, value in {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "3",
    }.items():
        monkeypatch.setenv(name, value)
    received: dict[int, str] = {}

    def rank(number: int) -> None:
        placement = Placement(rank=number, size=2, local_rank=0, local_size=1)
        received[number] = TorchrunBootstrap().broadcast(placement, lambda: text, 20.0, NO_SIBLINGS)

    for text in ("addresses,secret", "of the second init()"):  # the first is in the store still
        threads = [threading.Thread(target=rank, args=(number,)) for number in (1, 0)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert received == {0: text, 1: text}
