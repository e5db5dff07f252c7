"""Gradient accumulation for batches that exceed memory: the gradients of several backward passes
are added up, then exchanged once.

farandole run -np 2 python examples/torch_gradient_accumulation.py --passes 4
"""

import argparse

import torch
from torch import nn

import farandole.torch as hvd


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--passes", type=int, default=4, help="backward passes per step")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument(
        "--batch-size", type=int, default=8, help="rows per process and backward pass"
    )
    arguments = parser.parse_args()

    hvd.init()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 1))
    truth = torch.randn(20, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        backward_passes_per_step=arguments.passes,
    )

    torch.manual_seed(1 + hvd.rank())  # different data on each rank
    for step in range(arguments.steps):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(arguments.passes):
            rows = torch.randn(arguments.batch_size, 20)
            loss = nn.functional.mse_loss(model(rows), rows @ truth / 20**0.5)
            (loss / arguments.passes).backward()  # gradients are summed: divide for the mean
            total += loss.item() / arguments.passes
        optimizer.step()
        if hvd.rank() == 0 and (step % 10 == 0 or step == arguments.steps - 1):
            rows_per_step = arguments.batch_size * arguments.passes * hvd.size()
            print(f"step {step:3}: loss {total:.4f} on {rows_per_step} rows", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
