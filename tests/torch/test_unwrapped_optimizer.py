"""Plain optimizers in a job of several ranks, alone or next to distributed ones, are reported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch", reason="torch is not installed")

SOLO = """
import torch
import farandole.torch as hvd

hvd.init()
torch.manual_seed({seed})
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range({steps}):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).square().mean().backward()
    for parameter in model.parameters() if {by_hand} else ():
        hvd.allreduce_(parameter.grad)
    optimizer.step()
    if step + 1 == 20 and hvd.rank() == 1:
        from farandole.job import context
        context.store().set("ready", b"")
    if step + 1 == 24 and hvd.rank() == 0:
        from farandole.job import context
        context.store().get("ready", 30.0)
if hvd.rank() == 0:
    from farandole.job import context
    context.store().get("ready", 30.0)
"""


@pytest.mark.parametrize(
    ("seed", "steps", "text"),
    [
        (
            "7",
            300,
            "train the same model on the same data",
        ),
        ("hvd.rank()", "3 + 20 * hvd.rank()", "train 2 unrelated models"),
        ("1", 300, ""),  # it reduces its gradients itself, ten numbers
    ],
)
def test_programs_that_never_wrapped_their_optimizer(
    tmp_path: Path, seed: str, steps: str | int, text: str
) -> None:
    """Rank 0 hears of it while it trains, at its 20th step or, if the other is late, at its 25th, or at its
    end.
    """
    script = tmp_path / "solo.py"
    script.write_text(SOLO.format(seed=seed, steps=steps, by_hand=not text))
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
    told = [line for line in done.stderr.splitlines() if "exchanged nothing" in line]
    assert len(told) == bool(text), done.stderr
    assert (
        not text
        or "steps with SGD and exchanged nothing, so the 2 ranks of this job " + text in told[0]
    )


BESIDE = """
import torch
import farandole.torch as hvd

hvd.init()
torch.manual_seed(7)
nets = torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)
plain, wrapped = (torch.optim.SGD(net.parameters(), lr=0.1) for net in nets)
plain = {plain}
wrapped = hvd.DistributedOptimizer(wrapped, nets[1].named_parameters(){options})
rows = torch.Generator().manual_seed({seed})
for step in range(110):
    plain.zero_grad()
    wrapped.zero_grad()
    nets[1](nets[0](torch.randn(2, 4, generator=rows))).square().mean().backward()
    {between}
    plain.step()
    wrapped.step()
"""
BY_HAND = "[hvd.allreduce_(parameter.grad) for parameter in nets[0].parameters()]"


@pytest.mark.parametrize(
    ("told", "changed"),
    [
        (True, {}),
        (True, {"options": ", strategy='local_sgd:8'"}),
        (False, {"between": BY_HAND}),
        (False, {"seed": "1"}),  # the ranks hold the same
        (False, {"plain": "hvd.DistributedOptimizer(plain, nets[0].named_parameters())"}),
    ],
)
def test_an_optimizer_that_is_not_wrapped_beside_one_that_is(
    tmp_path: Path, told: bool, changed: dict[str, str]
) -> None:
    script = tmp_path / "beside.py"
    script.write_text(
        BESIDE.format(
            **{"plain": "plain", "options": "", "seed": "hvd.rank()", "between": ""} | changed
        )
    )
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
    lines = [line for line in done.stderr.splitlines() if "steps with" in line]
    assert len(lines) == told, done.stderr
    assert (
        not told or "20 steps with SGD (parameters weight, bias) and exchanged nothing" in lines[0]
    )
