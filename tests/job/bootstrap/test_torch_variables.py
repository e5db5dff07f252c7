"""Processes with only the variables that torch.distributed needs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from farandole.net.store.ports import free_port
from tests.job.bootstrap.tools import OURS, program
from tests.kits.messages import mentions

pytest.importorskip("torch")

BOTH = """
import sys
import torch
import torch.distributed as dist
import farandole.torch as hvd

def group():
    dist.init_process_group("gloo")
    total = torch.ones(2)
    dist.all_reduce(total)
    assert total.tolist() == [2.0] * 2
    dist.destroy_process_group()

if sys.argv[1] == "group first":
    group()
hvd.init()
assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [2.0] * 2
group()
hvd.barrier()  # torch's next group must not reach the store of this one, which ends with it
group()
"""


@contextmanager
def ranks(command: list[str], *numbers: int, **env: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes of a job of two; they are killed if the test fails."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith((*OURS, "TORCHELASTIC"))
    }
    job = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    with ExitStack() as stack:
        started = []
        for rank in numbers:
            process = subprocess.Popen(
                command,
                env={**clean, **job, "RANK": str(rank), **env},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.communicate)
            stack.callback(process.kill)
            started.append(process)
        yield started


@pytest.mark.slow
def test_ranks_started_by_hand_are_one_job(tmp_path: Path) -> None:
    """Without LOCAL_RANK, each rank is the first of its own host."""
    with ranks(program(tmp_path), 1, 0) as job:
        said = [process.communicate(timeout=200) for process in job]
    for rank, (out, err) in zip((1, 0), said, strict=True):
        facts = f"{rank} 0 {rank} True [2.0, 2.0, 2.0] {rank} 2 0 1 {rank} 2 torch 127.0.0.1 True\n"
        assert (out, err) == (facts, "")


@pytest.mark.slow
@pytest.mark.parametrize("order", ["group first", "group later"])
def test_groups_of_torch_distributed_meet_at_the_same_place(order: str, tmp_path: Path) -> None:
    script = tmp_path / "both.py"
    script.write_text(BOTH)
    with ranks([sys.executable, str(script), order], 1, 0) as job:
        for process in job:
            assert process.wait(200) == 0, process.communicate()[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "words"), [(0, "rank 1 did not reach init() within 1 s"), (1, "found no rank 0 there")]
)
def test_a_rank_without_peers_names_the_setting(rank: int, words: str, tmp_path: Path) -> None:
    with ranks(program(tmp_path), rank, FARANDOLE_START_TIMEOUT="1") as (process,):
        _, err = process.communicate(timeout=200)
    assert words in err
    assert mentions(err, "FARANDOLE_SIZE=1")


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"RANK": "2"}, "RANK=2 must be below WORLD_SIZE=2"),
        ({"MASTER_PORT": "x"}, "MASTER_PORT='x'"),
    ],
)
def test_numbers_that_make_no_job(env: dict[str, str], words: str, tmp_path: Path) -> None:
    with ranks(program(tmp_path), 0, **env) as (process,):
        assert words in process.communicate(timeout=200)[1]
