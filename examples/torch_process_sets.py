"""Process sets: collectives among some of the ranks. Here the even and the odd ranks train separate
models.

farandole run -np 4 python examples/torch_process_sets.py
"""

import argparse

import torch
from torch import nn

import farandole.torch as hvd


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=50)
    arguments = parser.parse_args()

    hvd.init(process_sets="dynamic")
    if hvd.size() < 2:
        raise SystemExit("this example needs at least two ranks: farandole run -np 2 ...")
    # all ranks add all sets, including sets without them
    even = hvd.add_process_set(range(0, hvd.size(), 2))
    odd = hvd.add_process_set(range(1, hvd.size(), 2))
    mine, target = (even, 1.0) if even.included() else (odd, -1.0)

    torch.manual_seed(hvd.rank())
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    # equal weights within each set; root_rank is a rank of the whole job
    for parameter in model.parameters():
        hvd.broadcast_(parameter.data, root_rank=mine.ranks[0], process_set=mine)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), process_set=mine
    )
    for _ in range(arguments.steps):
        rows = torch.randn(16, 8)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), target * rows.sum(1, keepdim=True)).backward()
        optimizer.step()

    gathered = hvd.allgather(model.weight.detach(), process_set=mine)
    spread = (gathered - gathered[0]).abs().max().item()
    report = hvd.allgather_object((mine.ranks, model.weight.mean().item(), spread))
    if hvd.rank() == 0:
        for ranks, weight, difference in sorted({(tuple(r), w, d) for r, w, d in report}):
            print(
                f"ranks {list(ranks)}: mean weight {weight:+.3f}, spread {difference}", flush=True
            )
    hvd.remove_process_set(odd)
    hvd.remove_process_set(even)
    hvd.shutdown()


if __name__ == "__main__":
    main()
