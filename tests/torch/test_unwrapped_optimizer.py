"""Plain optimizers in a job of several ranks, alone or next to distributed ones, are reported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kits.heard import reported
from tests.kits.messages import mentions

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
        ("7", "300", "train the same model on the same data"),
        ("hvd.rank()", "3 + 20 * hvd.rank()", "train 2 unrelated models"),
    ],
)
def test_programs_that_never_wrapped_their_optimizer(
    tmp_path: Path, seed: str, steps: str, text: str
) -> None:
    """Rank 0 reports the mistake at its 20th step, at its 25th if the other rank is late, or at the
    end of the job.
    """
    script = tmp_path / "solo.py"
    script.write_text(SOLO.format(seed=seed, steps=steps, by_hand=False))
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
    reports = [line for line in done.stderr.splitlines() if "exchanged nothing" in line]
    assert len(reports) == 1, done.stderr
    assert mentions(reports[0], "steps with SGD", text)


def test_gradients_reduced_by_the_program_are_not_reported() -> None:
    assert not reported(SOLO.format(seed="1", steps=300, by_hand=True), "exchanged nothing")


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
    ("reports_it", "changed"),
    [
        (True, {}),
        (True, {"options": ", strategy='local_sgd:8'"}),
        (False, {"between": BY_HAND}),
        (False, {"seed": "1"}),  # the ranks hold the same
        (False, {"plain": "hvd.DistributedOptimizer(plain, nets[0].named_parameters())"}),
    ],
)
def test_a_plain_optimizer_next_to_a_distributed_one(
    reports_it: bool, changed: dict[str, str]
) -> None:
    options = {"plain": "plain", "options": "", "seed": "hvd.rank()", "between": ""} | changed
    reports = reported(BESIDE.format(**options), "steps with")
    assert len(reports) == reports_it
    assert not reports_it or mentions(reports[0], "20 steps with SGD", "weight, bias")
