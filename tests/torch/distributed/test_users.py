"""Libraries on torch.distributed train as one process does."""

from __future__ import annotations

import copy
import tempfile
from typing import Any

import pytest

from tests.torch.distributed.tools import members

pytest.importorskip("torch")


def users(rank: int, folder: str) -> None:
    """On 2 ranks, whose batches together are the batch of a single process."""
    import torch
    from torch import distributed as dist
    from torch.nn import functional

    torch.manual_seed(7)
    first = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    batches = [(torch.randn(8, 6), torch.randn(8, 2)) for _ in range(4)]

    def train(model: Any, optimizer: Any, part: slice) -> None:
        for inputs, targets in batches:
            optimizer.zero_grad()
            functional.mse_loss(model(inputs[part]), targets[part]).backward()
            optimizer.step()

    alone = copy.deepcopy(first)
    train(alone, torch.optim.Adam(alone.parameters(), lr=0.01), slice(None))
    expected = [parameter.detach() for parameter in alone.parameters()]
    mine = slice(4 * rank, 4 * rank + 4)

    def check(parameters: Any) -> None:
        for found, wanted in zip(parameters, expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)

    ddp_in_its_ways(first, train, mine, check)
    zero_and_fsdp(first, train, mine, check, folder)
    tensor_parallel(first, batches[0][0])
    uneven_inputs(first, rank)
    dist.barrier()


def ddp_in_its_ways(first: Any, train: Any, mine: slice, check: Any) -> None:
    import torch
    from torch import distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.nn.parallel import DistributedDataParallel

    group: Any = dist.group.WORLD
    spare = group._spare
    for options in (
        {},
        {"overlap": True},
        {"static_graph": True},
        {"gradient_as_bucket_view": True},
        {"hook": True},
    ):
        hook = options.pop("hook", False)
        # else buckets are exchanged when backward ends
        group._spare = options.pop("overlap", False)
        model = DistributedDataParallel(copy.deepcopy(first), **options)  # type: ignore[arg-type]
        if hook:
            model.register_comm_hook(None, default_hooks.allreduce_hook)
        train(model, torch.optim.Adam(model.parameters(), lr=0.01), mine)
        check(model.parameters())
    group._spare = spare


def zero_and_fsdp(first: Any, train: Any, mine: slice, check: Any, folder: str) -> None:
    import torch
    from torch import distributed as dist
    from torch.distributed import checkpoint
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(copy.deepcopy(first))
    zero = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
    train(model, zero, mine)
    check(model.parameters())

    sharded = copy.deepcopy(first)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in sharded:
        fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    train(sharded, torch.optim.Adam(sharded.parameters(), lr=0.01), mine)
    check([parameter.full_tensor() for parameter in sharded.parameters()])

    checkpoint.save({"model": sharded.state_dict()}, checkpoint_id=folder)
    state = {
        "model": {name: torch.zeros_like(value) for name, value in sharded.state_dict().items()}
    }
    checkpoint.load(state, checkpoint_id=folder)
    check([value.full_tensor() for value in state["model"].values()])


def tensor_parallel(first: Any, inputs: Any) -> None:
    import torch
    from torch import distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    split = parallelize_module(
        copy.deepcopy(first), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}
    )
    torch.testing.assert_close(split(inputs), first(inputs))
    spread = distribute_tensor(inputs, mesh, [Shard(0)])
    torch.testing.assert_close((spread @ spread.t()).full_tensor(), inputs @ inputs.t())
    torch.testing.assert_close(spread.redistribute(mesh, [Shard(1)]).full_tensor(), inputs)


def uneven_inputs(first: Any, rank: int) -> None:
    """One rank has one batch more than the other: join; and no_sync does not touch gradients."""
    import torch
    from torch import distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(copy.deepcopy(first))
    with model.join():
        for _ in range(3 + 2 * rank):
            model(torch.ones(2, 6)).sum().backward()
    # the mean of the ranks that still have inputs
    with model.join(divide_by_initial_world_size=False):
        for step in range(1 + rank):
            model.zero_grad()
            (model(torch.ones(2, 6)).sum() * (rank + 1)).backward()
            scaled = first[2].bias.new_full((2,), (1.0 + 2.0) / 2 if step == 0 else 2.0) * 2
            torch.testing.assert_close(model.module[2].bias.grad, scaled)
    model.zero_grad()
    with model.no_sync():
        (model(torch.ones(2, 6)).sum() * (rank + 1)).backward()
    lonely = [parameter.grad.clone() for parameter in model.parameters()]
    both = [torch.zeros_like(lonely[0]) for _ in range(2)]
    dist.all_gather(both, lonely[0])
    torch.testing.assert_close(both[0] * 2, both[1])


@pytest.mark.slow
def test_ddp_zero_fsdp_tensor_parallelism_and_checkpoints() -> None:
    with tempfile.TemporaryDirectory() as folder:
        members(2, lambda rank: users(rank, folder), backend="farandole")
