"""A model whose matrices are divided among workers (DTensor), and several replicas of it (FSDP2).

farandole run -np 2 python examples/torch_tensor_parallel.py     # each matrix on 2 workers
# 2 x 2: also sharded over the workers with other data
farandole run -np 4 python examples/torch_tensor_parallel.py
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import farandole.torch.distributed  # noqa: F401  # not needed where Farandole is installed with pip


def make_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(8, 64),
        nn.Tanh(),
        nn.Linear(64, 64),
        nn.Tanh(),
        nn.Linear(64, 32),
        nn.Linear(32, 1),
    )


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the global batch of a step."""
    rows = torch.randn(32, 8, generator=torch.Generator().manual_seed(step))
    return rows, rows.sum(1, keepdim=True).sin()


def train(workers: int, steps: int) -> list[float]:
    """Train. Return the loss of each step, the same on all ranks. ``workers``: the number of
    workers that share each matrix.
    """
    mesh = init_device_mesh(
        "cpu", (dist.get_world_size() // workers, workers), mesh_dim_names=("data", "tensor")
    )
    replicas, replica = mesh["data"].size(), mesh.get_local_rank("data")
    columns_then_rows = {
        "0": ColwiseParallel(),
        "2": RowwiseParallel(),
        "4": ColwiseParallel(),
        "5": RowwiseParallel(),
    }
    model = parallelize_module(make_model(), mesh["tensor"], columns_then_rows)
    fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    means = []
    for step in range(steps):
        rows, targets = (whole.chunk(replicas)[replica] for whole in batch(step))
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(rows), targets)
        loss.backward()
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean, dist.ReduceOp.AVG, group=mesh.get_group("data"))
        means.append(mean.item())
    return means


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=2, help="workers that share each matrix")
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()

    dist.init_process_group("farandole")
    torch.set_num_threads(1)
    losses = train(arguments.workers, arguments.steps)
    if dist.get_rank() == 0:
        copies = dist.get_world_size() // arguments.workers
        print(
            f"{copies} x {arguments.workers} workers: loss {losses[0]:.5f} -> {losses[-1]:.5f}",
            flush=True,
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
