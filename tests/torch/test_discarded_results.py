"""Gradients that were reduced into new tensors, which the program drops: it steps with those of
each rank.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kits.messages import mentions

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch", reason="torch is not installed")

PROGRAM = """
import torch
import farandole.torch as hvd

hvd.init()
torch.manual_seed(7)
model = torch.nn.Linear(40, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rows = torch.Generator().manual_seed({seed})
for step in range(103):
    if step == 101:
        hvd.barrier()
    optimizer.zero_grad()
    model(torch.randn(2, 40, generator=rows)).square().mean().backward()
    for p in model.parameters():
        {reduce}
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("count", "reduce", "seed"),
    [
        (2, "hvd.allreduce(p.grad)", "hvd.rank()"),
        (2, "hvd.synchronize(hvd.allreduce_async(p.grad.data))", "hvd.rank()"),
        (2, "hvd.grouped_allreduce([p.grad])", "hvd.rank()"),
        (1, "hvd.allreduce(p.grad) if p.ndim == 1 else hvd.allreduce_(p.grad)", "hvd.rank()"),
        (0, "hvd.allreduce(p.grad)", "5"),  # the ranks hold the same
        (0, "p.grad = hvd.allreduce(p.grad)", "hvd.rank()"),
        (0, "p.grad.data.copy_(hvd.allreduce(p.grad.data))", "hvd.rank()"),
        # ranks differ on purpose
        (0, "p.data = hvd.allreduce(p.data) if step % 7 == 0 else p.data", "hvd.rank()"),
    ],
)
def test_means_that_are_dropped_are_told(
    tmp_path: Path, count: int, reduce: str, seed: str
) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.format(reduce=reduce, seed=seed))
    command = [
        sys.executable,
        "-m",
        "farandole.cli",
        "run",
        "-np",
        "2",
        sys.executable,
        str(script),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if "20 steps with SGD" in line]
    assert len(told) == bool(count), done.stderr
    assert not count or mentions(told[0], "hvd.allreduce", f"{count} gradient{'s' * (count > 1)}")
