"""An elastic job with parameter servers that is killed, and started again from its folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kits.messages import mentions

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.slow

TRAIN = """
import os, sys
import torch
import farandole.torch as hvd
from farandole.core.api.commits.keeper import write_now
hvd.init()
torch.set_num_threads(1)
torch.manual_seed(0)
specs = ["ps:1,optimizer=adam,lr=0.01", "diloco:4,momentum=0.5"]
models = [torch.nn.Linear(5, 3) for _ in specs]
optimizers = [
    hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=0.05), model.named_parameters(), strategy=spec
    )
    for model, spec in zip(models, specs)
]
named = {f"model{place}": each for place, each in enumerate(models)}
named |= {f"optimizer{place}": each for place, each in enumerate(optimizers)}
@hvd.elastic.run
def train(state):
    print(f"begin {state.step}", flush=True)
    while state.step < 12:
        if sys.argv[1] == "fail" and state.step == 7:
            write_now()
            hvd.allreduce(torch.ones(1), name="written")
            os._exit(3)
        random = torch.Generator().manual_seed(100 * state.step + hvd.rank())
        x = torch.randn(8, 5, generator=random)
        for model, optimizer in zip(models, optimizers):
            optimizer.zero_grad()
            (model(x) - x[:, :3] ** 2).square().mean().backward()
            optimizer.step()
        state.step += 1
        state.commit()
train(hvd.elastic.TorchState(step=0, **named))
for model in models:
    print("end", hvd.rank(), [each.tolist() for each in model.parameters()], flush=True)
"""


def run(folder: Path, mode: str, *words: str) -> tuple[int, list[str], str]:
    """Return the exit code, the lines of the output and the messages of an elastic job."""
    (folder / "train.py").write_text(TRAIN)
    command = [sys.executable, "-m", "farandole", "run", "-np", "2", "--min-np", "2", *words]
    done = subprocess.run(
        [*command, sys.executable, str(folder / "train.py"), mode],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, sorted(done.stdout.splitlines()), done.stderr


def test_a_killed_job_ends_like_an_undisturbed_one(tmp_path: Path) -> None:
    code, expected, err = run(tmp_path, "")
    assert code == 0, err
    folder = ("--commit-dir", str(tmp_path / "commits"), "--commit-dir-seconds", "1000")
    code, _, err = run(tmp_path, "fail", *folder, "--servers", "2")
    assert code, err
    code, found, err = run(tmp_path, "", *folder)
    assert code == 0, err
    assert sum("begin 7" in line for line in found) == 2
    assert mentions([*found, *err.splitlines()], "commit 7")
    ends = [[line for line in lines if ":end " in line] for lines in (found, expected)]
    assert ends[0] == ends[1]
    assert len(ends[0]) == 4
    assert "optimizer=adam" not in err
