"""``init_process_group("cpu:farandole,cuda:nccl")`` on real GPUs: DDP, FSDP and collectives."""

from __future__ import annotations

from typing import Any

import pytest

from tests.torch.distributed.tools import members
from tests.torch.gpus import NCCL, apart, place, with_gpu
from tests.torch.test_optimizer import (
    OPTIMIZERS,
    alone,
    assert_close,
    data,
    loss_of,
    net,
    part,
    values,
)

torch = pytest.importorskip("torch", reason="torch is not installed")

pytestmark = with_gpu
BACKENDS = [
    "gloo",
    pytest.param("nccl", marks=pytest.mark.skipif(not NCCL, reason="torch was built without NCCL")),
]


def gpu_members(n: int, fn: Any, backend: str) -> list[Any]:
    def body(rank: int) -> Any:
        device = place(rank)
        with apart(n):
            return fn(rank, device)

    return members(n, body, backend=f"cpu:farandole,cuda:{backend}")


@pytest.mark.parametrize("backend", BACKENDS)
def test_collectives_of_both_devices(backend: str) -> None:
    def check(rank: int, device: Any) -> None:
        from torch import distributed as dist

        for where in (device, torch.device("cpu"), device):
            total = torch.full((1000,), rank + 1.0, device=where)
            dist.all_reduce(total)
            assert (total.device.type, total.unique().tolist()) == (where.type, [3.0])
            parts = [torch.empty(3, device=where) for _ in range(2)]
            dist.all_gather(parts, torch.full((3,), float(rank), device=where))
            assert [each.tolist() for each in parts] == [[0.0] * 3, [1.0] * 3]
            sent = torch.full((2,), float(rank), device=where)
            dist.broadcast(sent, 1)
            assert sent.tolist() == [1.0, 1.0]
        dist.barrier()
        found: list[Any] = [None, None]
        dist.all_gather_object(found, {"rank": rank})
        assert [each["rank"] for each in found] == [0, 1]
        group = dist.new_group([0, 1])
        total = torch.ones(3, device=device)
        dist.all_reduce(total, group=group, async_op=True).wait()
        assert total.tolist() == [2.0] * 3

    gpu_members(2, check, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_ddp(backend: str) -> None:
    def train(rank: int, device: Any) -> list[Any]:
        model = net().to(device)
        wrapped = torch.nn.parallel.DistributedDataParallel(
            model, device_ids=[device.index], find_unused_parameters=True
        )
        optimizer = OPTIMIZERS["momentum"](model.parameters())
        for step in range(4):
            optimizer.zero_grad()
            loss_of(wrapped, *(each.to(device) for each in part(rank, 2, *data(step)))).backward()
            optimizer.step()
        return [each.cpu() for each in values(model)]

    for result in gpu_members(2, train, backend):
        assert_close(result, alone(OPTIMIZERS["momentum"]), 1e-4)


@pytest.mark.skipif(not NCCL, reason="torch was built without NCCL")
def test_fsdp() -> None:
    def train(rank: int, device: Any) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        def trained(device: Any, rank: int, n: int) -> Any:
            model = net().to(memory_format=torch.contiguous_format).to(device)
            if n > 1:
                fully_shard(model, mesh=init_device_mesh("cuda", (n,)))
            optimizer = OPTIMIZERS["adam"](model.parameters())
            for step in range(4):
                optimizer.zero_grad()
                loss_of(model, *(each.to(device) for each in part(rank, n, *data(step)))).backward()
                optimizer.step()
            return model.parameters()

        assert_close(
            [each.full_tensor().cpu() for each in trained(device, rank, 2)],
            [each.detach() for each in trained("cpu", 0, 1)],
            1e-4,
        )

    gpu_members(2, train, "nccl")
