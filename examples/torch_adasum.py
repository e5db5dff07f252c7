"""Adasum averages parallel gradients and adds up orthogonal ones, so the learning rate of one
process fits any number of ranks.

    farandole run -np 2 python examples/torch_adasum.py
"""

import argparse

import torch
from torch import nn

import farandole.torch as hvd


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument(
        "--lr", type=float, default=0.1, help="not multiplied by the number of ranks"
    )
    arguments = parser.parse_args()

    hvd.init()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 1))
    truth = torch.randn(20, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), op=hvd.Adasum
    )

    torch.manual_seed(1 + hvd.rank())  # different data on each rank
    for step in range(arguments.steps):
        rows = torch.randn(arguments.batch_size, 20)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(rows), torch.tanh(rows @ truth))
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step == arguments.steps - 1:
            mean = hvd.allreduce(loss.detach(), name="loss").item()
            if hvd.rank() == 0:
                print(f"step {step:3}: loss {mean:.4f}", flush=True)

    one = torch.tensor([1.0, 0.0]) if hvd.rank() % 2 == 0 else torch.tensor([0.0, 1.0])
    both = hvd.allreduce(one, op=hvd.Adasum, name="orthogonal")
    same = hvd.allreduce(torch.ones(2), op=hvd.Adasum, name="parallel")
    if hvd.rank() == 0:
        print(f"orthogonal vectors: {both.tolist()}, equal vectors: {same.tolist()}", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
