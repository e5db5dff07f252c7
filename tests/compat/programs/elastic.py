# ruff: noqa -- written as users of Horovod write
"""An elastic training program, as users of Horovod write them; it runs in a job of fixed size as
well.
"""

import argparse

import horovod.torch as hvd
import torch
import torch.nn.functional as F
import torch.optim as optim
from horovod.common.elastic import HostUpdateResult

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batches-per-commit", type=int, default=2)
args = parser.parse_args()

first = hvd.ProcessSet([0])
hvd.init(process_sets=[first])
torch.manual_seed(hvd.rank())
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(0)
images = torch.randn(64, 8, generator=generator)
labels = (images.sum(1) > 0).long()
dataset = torch.utils.data.TensorDataset(images, labels, torch.arange(64))
train_sampler = hvd.elastic.ElasticSampler(dataset)
loader = torch.utils.data.DataLoader(dataset, batch_size=8, sampler=train_sampler)

model = torch.nn.Linear(8, 2)
optimizer = optim.SGD(model.parameters(), lr=0.1 * hvd.size(), momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
# steps after three batches: the ranks restart before the last
slow = torch.nn.Parameter(torch.zeros(1))
slow_optimizer = optim.SGD([slow], lr=1.0)
slow_optimizer = hvd.DistributedOptimizer(
    slow_optimizer, named_parameters=[("slow", slow)], backward_passes_per_step=3
)
passes = 0
resets = []
seen = {epoch: [] for epoch in range(1, args.epochs + 1)}
# in which epoch: after removals ranks skip the sync
changes = {1: HostUpdateResult.added, 2: HostUpdateResult.removed}


def on_state_reset():
    resets.append(hvd.size())
    for group in optimizer.param_groups:
        group["lr"] = 0.1 * hvd.size()


def train_epoch(state):
    state.model.train()
    for batch_idx, (data, target, numbers) in enumerate(loader):
        train_slowly()
        state.optimizer.zero_grad()
        loss = F.cross_entropy(state.model(data), target)
        loss.backward()
        state.optimizer.step()
        state.batch += 1
        seen[state.epoch].extend(numbers.tolist())
        state.train_sampler.record_batch(batch_idx, 8)
        if state.batch % args.batches_per_commit == 0:
            if state.epoch in changes and state.batch == 2 and hvd.rank() == 0:
                # what the elastic driver would say
                state.on_hosts_updated(float(state.epoch), changes[state.epoch])
            state.commit()


def train_slowly():
    global passes
    (slow * (hvd.rank() + passes)).backward()
    passes += 1
    if passes % 3 == 0:
        slow_optimizer.step()
        slow_optimizer.zero_grad()


@hvd.elastic.run
def full_train(state, epochs):
    for state.epoch in range(state.epoch, epochs + 1):
        train_epoch(state)
        state.train_sampler.set_epoch(state.epoch)
        state.batch = 0
        state.commit()
    return "trained"


state = hvd.elastic.TorchState(
    model=model, optimizer=optimizer, train_sampler=train_sampler, epoch=1, batch=0
)
state.register_reset_callbacks([on_state_reset])
said = full_train(state, args.epochs)
weights = hvd.allgather(model.weight.detach().reshape(1, -1))
assert torch.equal(weights[0], weights[-1]), "ranks hold different weights"
right = (model(images).argmax(1) == labels).float().mean().item()
assert right > 0.9, right
assert resets == [hvd.size()] * 2, resets
for epoch, numbers in seen.items():
    assert sorted(sum(hvd.allgather_object(numbers), [])) == list(range(64)), (
        f"epoch {epoch}: not each sample once"
    )
assert (state.epoch, state.batch, train_sampler.processed_num) == (args.epochs, 0, 0)
counted = passes - passes % 3
assert slow.item() == -sum(each + (hvd.size() - 1) / 2 for each in range(counted)), (slow, passes)
assert first.ranks == [0] and first.included() == (hvd.rank() == 0), first
if first.included():
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum, process_set=first).tolist() == [1, 1]
print(said, hvd.rank())
