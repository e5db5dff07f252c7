"""Programs that drop the reduced gradients, which are new tensors, and step with those of each
rank.
"""

from __future__ import annotations

import pytest

from tests.kits.heard import reported
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
def test_dropped_means_are_reported(count: int, reduce: str, seed: str) -> None:
    reports = reported(PROGRAM.format(reduce=reduce, seed=seed), "20 steps with SGD")
    assert len(reports) == bool(count)
    gradients = f"{count} gradient{'s' * (count > 1)}"
    assert not count or mentions(reports[0], "hvd.allreduce", gradients)
