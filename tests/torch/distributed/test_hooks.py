"""DDP's communication hooks whose callbacks call the group again."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.torch.distributed.tools import members

pytest.importorskip("torch")

BUSY = 0.06  # seconds; longer than anybody waits before running what another thread holds


def power_sgd(rank: int) -> None:
    """On 2 ranks, one of which computes long between two buckets, and sleeps. Backward makes calls,
    too.
    """
    import torch
    from torch import distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import powerSGD_hook

    world: Any = dist.group.WORLD
    gloo, spare = dist.new_group(backend="gloo"), world._spare

    def one_by_one(state: Any, bucket: Any) -> Any:
        future = powerSGD_hook(state, bucket)
        future.wait()  # Gloo matches calls in the order in which ranks happen to make them
        return future

    wanted = trained(gloo, one_by_one, rank, busy=0.0)
    for overlap in (False, True):
        world._spare = overlap
        for found, expected in zip(
            trained(world, powerSGD_hook, rank, busy=BUSY * rank), wanted, strict=True
        ):
            torch.testing.assert_close(found, expected)
    world._spare = spare


def polling(rank: int) -> None:
    """Backward polls a sum until it is complete, or its future."""
    import torch
    from torch import distributed as dist

    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, inputs: Any, future: bool) -> Any:
            context.future = future
            return inputs.view_as(inputs)

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:  # type: ignore[override]
            total = gradient.clone()
            work: Any = dist.all_reduce(total, async_op=True)
            done = work.get_future().done if context.future else work.is_completed
            end = time.monotonic() + 60
            while not done():
                assert time.monotonic() < end
                time.sleep(0.001)
            return total, None

    world: Any = dist.group.WORLD
    world._spare = False  # calls are left to the end of backward
    for future in (False, True):
        inputs = torch.ones(2, requires_grad=True)
        Sum.apply(inputs, future).sum().backward()
        assert inputs.grad.tolist() == [2.0, 2.0]


def built_in(rank: int) -> None:
    """DDP's built-in hooks, which are C++."""
    import torch
    from torch import distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    for kind in dist.BuiltinCommHookType.__members__.values():
        found = []
        for group in (dist.new_group(backend="gloo"), dist.group.WORLD):
            torch.manual_seed(7)
            model = DistributedDataParallel(
                torch.nn.Linear(40, 48), process_group=group, bucket_cap_mb=0.005
            )
            model._register_builtin_comm_hook(kind)
            model(torch.randn(8, 40) + rank).square().mean().backward()
            found.append([parameter.grad for parameter in model.parameters()])
        # of 2 ranks: one sum has one rounding
        torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


def trained(group: Any, hook: Any, rank: int, busy: float) -> list[Any]:
    """Return the parameters of a model with several buckets after steps, of which the last ones
    compress.
    """
    import torch
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState
    from torch.nn.parallel import DistributedDataParallel

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, inputs: Any) -> Any:
            return inputs.view_as(inputs)

        @staticmethod
        def backward(_: Any, gradient: Any) -> Any:  # type: ignore[override]
            # as batch norm over all ranks
            torch.distributed.all_reduce(gradient.sum(), group=group)
            # in the middle; as threads of a kernel sleep that wait for each other
            if gradient.shape[1] == 40:
                time.sleep(busy)
            end = time.monotonic() + busy
            while time.monotonic() < end:
                pass
            return gradient

    class Layer(torch.nn.Linear):
        def forward(self, inputs: Any) -> Any:
            return Slow.apply(super().forward(inputs))

    torch.manual_seed(7)
    model = DistributedDataParallel(
        torch.nn.Sequential(
            Layer(40, 48), torch.nn.Tanh(), Layer(48, 40), torch.nn.Tanh(), Layer(40, 48)
        ),
        process_group=group,
        bucket_cap_mb=0.005,
    )
    state = PowerSGDState(group, matrix_approximation_rank=1, start_powerSGD_iter=2)
    seen: set[int] = set()
    model.register_comm_hook(
        state, lambda state, bucket: seen.add(bucket.index()) or hook(state, bucket)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(8, 40)).square().mean().backward()
        optimizer.step()
    assert len(seen) == 3, seen
    return [parameter.detach() for parameter in model.parameters()]


def test_powersgd_with_several_buckets_equals_gloo() -> None:
    members(2, power_sgd)


def test_built_in_hooks_give_the_results_of_gloo() -> None:
    members(2, built_in)


def test_backward_may_ask_whether_a_call_is_done() -> None:
    members(2, polling)


def futures_of_awaited_calls(rank: int) -> None:
    """On 2 ranks. Futures of other calls during backward are complete at its end."""
    import torch
    from torch import distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    complete: list[bool] = []

    def hook(_, bucket):  # type: ignore[no-untyped-def]  # DDP checks annotations
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        work.wait()
        future = work.get_future()
        complete.append(future.done())
        return future.then(lambda done: done.value()[0] / 2)

    model = DistributedDataParallel(torch.nn.Linear(3, 1, bias=False))
    model.register_comm_hook(None, hook)
    model(torch.full((1, 3), rank + 1.0)).sum().backward()
    assert complete == [True]
    assert model.module.weight.grad.tolist() == [[1.5] * 3]


def test_the_future_of_an_awaited_call_is_complete() -> None:
    members(2, futures_of_awaited_calls)
