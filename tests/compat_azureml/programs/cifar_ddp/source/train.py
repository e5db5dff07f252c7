"""Trains with DistributedDataParallel; the ranks come from the environment."""

import argparse
import os

import numpy as np
import torch
import torch.distributed as dist
from azureml.core.run import Run
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--data-dir", type=str)
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--output-dir", type=str, default="./outputs")
args = parser.parse_args()

rank = int(os.environ["RANK"])
world_size = int(os.environ["WORLD_SIZE"])
local_rank = int(os.environ["LOCAL_RANK"])
dist.init_process_group(backend="gloo")
assert (dist.get_rank(), dist.get_world_size()) == (rank, world_size)

torch.manual_seed(0)
data = np.load(os.path.join(args.data_dir, "images.npz"))
x = torch.tensor(data["x"][rank::world_size])
y = torch.tensor(data["y"][rank::world_size])
model = DistributedDataParallel(torch.nn.Linear(x.shape[1], 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = Run.get_context()
for epoch in range(args.epochs):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    run.log("loss", loss.item())
    print(f"[{rank}/{world_size} on node {os.environ['NODE_RANK']}] epoch {epoch}", flush=True)
if rank == 0:
    os.makedirs(args.output_dir, exist_ok=True)
    torch.save(model.module.state_dict(), os.path.join(args.output_dir, "model.pt"))
dist.destroy_process_group()
