# ruff: noqa -- written as users of Horovod write
"""An elastic training of three epochs that writes a line per epoch, and fails where its arguments
say so.
"""

import argparse
import json
import os
import time

parser = argparse.ArgumentParser()
parser.add_argument("--logfile", required=True)
# by "epoch,batch": the ranks that fail, counted at their start
parser.add_argument("--exit-schedule", default="{}")
parser.add_argument("--exit-mode", default="exception")
# epochs after which the hosts change
parser.add_argument("--changes", default="[]")
args = parser.parse_args()
# there before init()
start_rank, hostname = int(os.environ["HOROVOD_RANK"]), os.environ["HOROVOD_HOSTNAME"]

import horovod.torch as hvd
import torch

exits = json.loads(args.exit_schedule)
changes = json.loads(args.changes)
torch.set_num_threads(1)
hvd.init()
torch.manual_seed(hvd.rank())
data = torch.randn(24, 2, generator=torch.Generator().manual_seed(0))
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001 * hvd.size(), momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


def check_exit(epoch, batch):
    if start_rank in exits.get(f"{epoch},{batch}", []):
        if args.exit_mode == "kill":
            os.kill(os.getpid(), 9)
        raise RuntimeError(f"rank {start_rank} fails as scheduled")


def write_log(state):
    with open(args.logfile, "a") as file:
        line = {
            "epoch": state.epoch,
            "hostname": hostname,
            "start_rank": start_rank,
            "rank": hvd.rank(),
            "size": hvd.size(),
            "rendezvous": state.rendezvous,
            "commits": state.commits,
        }
        file.write(json.dumps(line) + "\n")


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
            write_log(state)
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
