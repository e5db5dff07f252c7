"""Tensors on real GPUs. ``test_device`` runs the same code without one."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from tests import pool
from tests.kits.messages import mentioning
from tests.run_job import job, stored
from tests.torch.gpus import WAYS, apart, gpu_job, place, with_gpu, with_nccl
from tests.torch.test_optimizer import (
    OPTIMIZERS,
    STEPS,
    alone,
    assert_all_close,
    data,
    loss_of,
    net,
    part,
    values,
)

torch = pytest.importorskip("torch", reason="torch is not installed")

pytestmark = with_gpu


@pytest.mark.parametrize(("n", "settings"), WAYS)
@pytest.mark.parametrize(
    "dtype",
    [
        "uint8",
        "int8",
        "int16",
        "int32",
        "int64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "bool",
    ],
)
def test_every_operation(n: int, settings: dict[str, Any], dtype: str) -> None:
    """The results of the GPU equal the CPU's, and stay on the GPU."""

    def check(rank: int, device: Any) -> None:
        import farandole.torch as hvd

        kind = getattr(torch, dtype)
        ops = [hvd.Sum, hvd.Min, hvd.Max, hvd.Product] + [hvd.Average] * (dtype != "bool")
        for shape in [(), (0, 2), (1,), (7, 3), (60, 701)]:
            generator = torch.Generator().manual_seed(rank)
            host = torch.randint(0, 2 if dtype == "bool" else 3, shape, generator=generator).to(
                kind
            )
            mine = host.to(device)
            pairs = [(hvd.allreduce(mine, op=op), hvd.allreduce(host, op=op)) for op in ops]
            pairs += zip(
                hvd.grouped_allreduce([mine, mine], op=hvd.Sum),
                hvd.grouped_allreduce([host, host], op=hvd.Sum),
                strict=True,
            )
            pairs += [(hvd.broadcast(mine, n - 1), hvd.broadcast(host, n - 1))]
            if shape:
                rows = len(host) * (rank + 1) // n
                pairs += [(hvd.allgather(mine[:rows]), hvd.allgather(host[:rows]))]
                pairs += [
                    (hvd.reducescatter(mine, op=hvd.Sum), hvd.reducescatter(host, op=hvd.Sum))
                ]
                splits = torch.tensor(
                    [len(host) - rows] + [0] * (n - 2) + [rows] if n > 1 else [len(host)]
                )
                pairs += [(hvd.alltoall(mine, splits)[0], hvd.alltoall(host, splits)[0])]
            for found, wanted in pairs:
                assert found.device == device
                torch.testing.assert_close(found.cpu(), wanted)

    gpu_job(n, check, **settings)


@pytest.mark.parametrize(("n", "settings"), WAYS)
def test_side_streams_are_in_order(n: int, settings: dict[str, Any]) -> None:
    """Results computed on a side stream are complete before the reduction, and the sum before its
    use.
    """

    def check(rank: int, device: Any) -> None:
        import farandole.torch as hvd

        stream = torch.cuda.Stream(device)
        with torch.cuda.stream(stream):
            for step in range(20):
                torch.cuda._sleep(2_000_000)  # about a millisecond
                mine = torch.full((1 << 20,), float(step), device=device)
                handle = hvd.allreduce_async_(mine, op=hvd.Sum)
                total = hvd.synchronize(handle) * 2
                assert torch.equal(total, torch.full_like(total, 2.0 * n * step))
                del mine, handle, total
        with torch.inference_mode():
            assert hvd.allreduce(torch.ones(2, device=device), op=hvd.Sum).tolist() == [n, n]

    gpu_job(n, check, **settings)


@pytest.mark.parametrize(("n", "settings"), WAYS)
@pytest.mark.parametrize("mixed", [False, True])
def test_training(n: int, settings: dict[str, Any], mixed: bool) -> None:
    """With ``mixed``, a part of the model is on the CPU."""

    def train(rank: int, device: Any) -> Any:
        import farandole.torch as hvd

        model = net().to(device)
        if mixed:
            conv, side, body = model.conv, model.side, model.body.cpu()

            def forward(x: Any) -> Any:
                first = conv(x.to(memory_format=torch.channels_last)).flatten(1).cpu()
                second = body[1](body[0](first))
                return body[2](second + side(second.to(device)).cpu()).to(device)

            model.forward = forward
        optimizer = hvd.DistributedOptimizer(OPTIMIZERS["momentum"](model.parameters()))
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, *(each.to(device) for each in part(rank, n, *data(step)))).backward()
            assert all(
                each.grad.device == each.device
                for each in model.parameters()
                if each.grad is not None
            )
            optimizer.step()
        return [each.cpu() for each in values(model)]

    assert_all_close(gpu_job(n, train, **settings), alone(OPTIMIZERS["momentum"]), 1e-4)


def test_ranks_that_share_a_gpu_go_through_host_memory() -> None:
    def check(rank: int) -> str:
        import farandole.torch as hvd

        torch.cuda.set_device(0)
        with pytest.raises(hvd.HorovodInternalError) as caught:
            hvd.allreduce(torch.ones(1, device="cuda"))
        return str(caught.value)

    for said in job(2, check, store=True, nccl="on"):
        assert "ranks 0 and 1 share GPU-" in said or "without NCCL" in said


@with_nccl
def test_the_programs_own_process_group_is_left_alone() -> None:
    def check(rank: int) -> None:
        from torch import distributed

        import farandole.torch as hvd

        device = place(rank)
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
        try:
            assert hvd.allreduce(torch.ones(1, device=device), op=hvd.Sum).item() == 1
            assert distributed.get_backend() == "gloo"
            assert "TORCH_NCCL_BLOCKING_WAIT" not in os.environ
        finally:
            distributed.destroy_process_group()

    job(1, check, store=True, nccl="on")


def test_a_graph_that_is_captured_cannot_hold_collectives() -> None:
    def check(rank: int) -> None:
        import farandole.torch as hvd

        mine = torch.ones(4, device=place(rank))
        hvd.allreduce(mine)
        torch.cuda.synchronize()
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            mine.mul_(1.0)
            with pytest.raises(hvd.HorovodInternalError, match=mentioning("CUDA graph")):
                hvd.allreduce_(mine)
        assert hvd.allreduce(mine, op=hvd.Sum).tolist() == [1.0] * 4

    job(1, check)


@pytest.mark.parametrize(
    "settings", [{"nccl": "off"}, pytest.param({"nccl": "on"}, marks=with_nccl)], ids=str
)
def test_a_peer_that_dies_is_named(settings: dict[str, Any]) -> None:
    def body(transport: Any) -> str:
        import farandole.torch as hvd
        from farandole.job import context
        from farandole.job.config import Connection, Placement, Settings
        from farandole.job.context import lifecycle

        placement = Placement(rank=transport.rank, size=2, local_rank=transport.rank, local_size=2)
        lifecycle.enter(placement, Settings(**settings), transport, Connection())
        with apart(2 if settings["nccl"] == "on" else 1):
            try:
                mine = torch.ones(1 << 20, device=place(transport.rank))
                assert hvd.allreduce(mine, op=hvd.Sum)[0].item() == 2
                if transport.rank:
                    os.kill(os.getpid(), signal.SIGKILL)
                with pytest.raises(hvd.HorovodInternalError) as caught:
                    [hvd.allreduce(mine, op=hvd.Sum)[0].item() for _ in range(1000)]
                return str(caught.value)
            finally:
                context.shutdown()

    with stored() as having:
        said, died = pool.procs(2, having(body), deaths=True)
    assert said.startswith("rank 1 ")
    assert died == pool.Died(-signal.SIGKILL)
