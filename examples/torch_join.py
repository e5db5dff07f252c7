"""Uneven data: ranks that run out of batches call join(), and the others continue without them.

    farandole run -np 2 python examples/torch_join.py

If all ranks can have the same number of batches (farandole.data.DistributedSampler), join() is
unnecessary.
"""

import argparse

import torch
from torch import nn

import farandole.torch as hvd


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--batches",
        type=int,
        default=5,
        help="batches of rank 0; each further rank has this number more",
    )
    arguments = parser.parse_args()

    hvd.init()
    torch.manual_seed(hvd.rank())  # different rows on each rank; the weights are broadcast
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    batches = arguments.batches * (hvd.rank() + 1)
    for _ in range(batches):
        rows = torch.randn(16, 8)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), rows.sum(1, keepdim=True)).backward()
        optimizer.step()
    last = hvd.join()  # from now on this rank contributes zeros to the others' reductions
    print(
        f"rank {hvd.rank()} trained on {batches} batches; the last to finish was rank {last}",
        flush=True,
    )

    # A rank that joined early has missed steps; the last rank to join has taken all of them.
    hvd.broadcast_parameters(model.state_dict(), root_rank=last)
    weights = hvd.allgather_object(model.weight.sum().item())
    if hvd.rank() == 0:
        print(f"all ranks equal: {len(set(weights)) == 1}", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
