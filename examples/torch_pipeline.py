"""A model whose layers are on different workers: one or several pipelines of torch.distributed.

farandole run -np 2 python examples/torch_pipeline.py                            # 2 stages
# 2 pipelines of 2 workers each
farandole run -np 4 python examples/torch_pipeline.py --schedule interleaved
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)

import farandole.torch.distributed  # noqa: F401  # not needed where Farandole is installed with pip

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "interleaved": ScheduleInterleaved1F1B}


def make_layers() -> list[nn.Module]:
    torch.manual_seed(1)
    middle = [nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(6)]
    return [nn.Sequential(nn.Linear(8, 32), nn.Tanh()), *middle, nn.Linear(32, 1)]


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the global batch of a step."""
    rows = torch.randn(32, 8, generator=torch.Generator().manual_seed(step))
    return rows, rows.sum(1, keepdim=True).sin()


def train(schedule: str, workers: int, micro_batches: int, steps: int) -> list[float]:
    """Train. Return the loss of each step, the same on all ranks. ``workers``: in one pipeline."""
    mesh = init_device_mesh(
        "cpu", (dist.get_world_size() // workers, workers), mesh_dim_names=("data", "pipe")
    )
    replicas, replica, place = (
        mesh["data"].size(),
        mesh.get_local_rank("data"),
        mesh.get_local_rank("pipe"),
    )
    layers, parts = make_layers(), 2 * workers if schedule == "interleaved" else workers
    each = len(layers) // parts  # layers of one stage
    stages = [
        PipelineStage(
            nn.Sequential(*layers[part * each : (part + 1) * each]),
            part,
            parts,
            torch.device("cpu"),
            group=mesh.get_group("pipe"),
        )
        for part in range(place, parts, workers)
    ]
    run = SCHEDULES[schedule](
        stages if schedule == "interleaved" else stages[0], micro_batches, nn.MSELoss()
    )
    parameters = [parameter for stage in stages for parameter in stage.submod.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    means = []
    for step in range(steps):
        rows, targets = (whole.chunk(replicas)[replica] for whole in batch(step))
        losses: list[torch.Tensor] = []
        optimizer.zero_grad()
        last = place == workers - 1
        run.step(
            *([rows] if place == 0 else []),
            target=targets if last else None,
            losses=losses if last else None,
        )
        for parameter in parameters:  # the same stage of all pipelines
            dist.all_reduce(parameter.grad, dist.ReduceOp.AVG, group=mesh.get_group("data"))
        optimizer.step()
        mean = torch.stack(losses).mean().detach() / replicas if last else torch.zeros(())
        dist.all_reduce(mean)
        means.append(mean.item())
    return means


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--schedule", choices=SCHEDULES, default="1f1b")
    parser.add_argument("--workers", type=int, default=2, help="workers per pipeline")
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()

    dist.init_process_group("farandole")
    torch.set_num_threads(1)
    losses = train(arguments.schedule, arguments.workers, arguments.micro_batches, arguments.steps)
    if dist.get_rank() == 0:
        pipelines = dist.get_world_size() // arguments.workers
        print(
            f"{pipelines} x {arguments.workers} workers: loss {losses[0]:.5f} -> {losses[-1]:.5f}",
            flush=True,
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
