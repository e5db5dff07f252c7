# ruff: noqa -- written as users of Horovod write
"""An elastic training of three epochs that writes a line per epoch, and fails as its arguments
request.
"""

import time

from elastic_log import changes, check_exit, write_log

import horovod.torch as hvd
import torch

torch.set_num_threads(1)
hvd.init()
torch.manual_seed(hvd.rank())
data = torch.randn(24, 2, generator=torch.Generator().manual_seed(0))
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001 * hvd.size(), momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


@hvd.elastic.run
def train(state):
    state.rendezvous += 1
    while state.epoch < 3:
        while state.batch < 4:
            check_exit(state.epoch, state.batch)
            optimizer.zero_grad()
            model(data[state.batch :: hvd.size()]).square().mean().backward()
            optimizer.step()
            state.batch += 1
            state.commits += 1
            state.commit()
        if hvd.rank() == 0:
            write_log(hvd, state)
        if state.epoch in changes:
            changes.remove(state.epoch)
            state.epoch += 1
            state.batch = 0
            state.commits += 1
            for _ in range(2000):  # until the discovery script has another answer
                state.commit()
                time.sleep(0.02)
            raise RuntimeError("the hosts have not changed")
        state.epoch += 1
        state.batch = 0
        state.commits += 1
        state.commit()


state = hvd.elastic.TorchState(
    model=model, optimizer=optimizer, batch=0, epoch=0, commits=0, rendezvous=0
)
resets = []
state.register_reset_callbacks([lambda: resets.append(hvd.size())])
train(state)
weights = hvd.allgather(model.weight.detach().reshape(1, -1))
assert torch.equal(weights[0], weights[-1]), "ranks hold different weights"
