# ruff: noqa -- written as users of Horovod write
"""Gradient accumulation and clipping, and mixed forms of stepping."""

import horovod.torch as hvd
import torch

hvd.init()
torch.manual_seed(0)
model = torch.nn.Linear(3, 1, bias=False)
twin = torch.nn.Linear(3, 1, bias=False)
twin.load_state_dict(model.state_dict())
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1),
    named_parameters=model.named_parameters(),
    backward_passes_per_step=2,
    op=hvd.Sum,
)
single = torch.optim.SGD(twin.parameters(), lr=0.1)
for step in range(4):
    torch.manual_seed(step)
    parts = torch.randn(hvd.size(), 2, 5, 3)
    optimizer.zero_grad()
    for part in parts[hvd.rank()]:
        model(part).pow(2).mean().backward()
    optimizer.synchronize()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with optimizer.skip_synchronize():
        optimizer.step()

    single.zero_grad()
    for rank in range(hvd.size()):
        for part in parts[rank]:
            twin(part).pow(2).mean().backward()
    torch.nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
    single.step()
    torch.testing.assert_close(model.weight, twin.weight)
print("accumulated", hvd.rank())
