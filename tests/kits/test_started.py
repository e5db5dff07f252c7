"""Started processes run optimizers without torch.compile, and like PyTorch after its first use."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed")

# the same two steps before and after the import, and the compiled ones
PROGRAM = """
import sys
import torch

def trained(compiled=lambda step: step):
    torch.manual_seed(7)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = compiled(optimizer.step)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(1, 3)).square().sum().backward()
        step()
    return [each.detach().clone() for each in model.parameters()]

early = trained()
print("torch._dynamo" in sys.modules)
import torch._dynamo.testing
counted = torch._dynamo.testing.CompileCounter()
for late in trained(), trained(lambda step: torch.compile(step, backend=counted)):
    print(all(map(torch.allclose, early, late)))
print(counted.frame_count > 0)
"""


@pytest.mark.slow
def test_optimizers_import_no_compiler_and_can_be_compiled() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.split() == ["False", "True", "True", "True"], done.stderr
