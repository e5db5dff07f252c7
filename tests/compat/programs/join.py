# ruff: noqa -- written as users of Horovod write
"""Uneven data: ranks take one step more than the rank before, then join."""

import horovod.torch as hvd
import torch

hvd.init()
model = torch.nn.Linear(4, 1)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
for step in range(2 + 3 * hvd.rank()):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
last = hvd.join()
assert last == hvd.size() - 1, last

for _ in range(hvd.rank() + 1):
    hvd.allreduce(torch.ones(2) * (hvd.rank() + 1), name="after", op=hvd.Sum)
assert hvd.join() == hvd.size() - 1
assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()
print("joined", hvd.rank())
