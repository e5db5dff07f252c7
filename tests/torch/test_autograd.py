"""Gradients through collectives, against one process with the tensors of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.kits.messages import mentioning
from tests.run_job import job

torch = pytest.importorskip("torch", reason="torch is not installed")


def tensors(n: int, shape: tuple[int, ...] = (6, 2), dtype: Any = torch.float64) -> list[Any]:
    generator = torch.Generator().manual_seed(7)
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(n)
    ]


def weight(rank: int, like: Any) -> Any:
    """Return the weights of an output in a rank's loss, which depend on the position and the rank."""
    return (torch.arange(like.numel(), dtype=like.dtype).reshape(like.shape) + 1) * (rank + 1) / 10


def gradients(
    n: int, fn: Callable[[Any, Any, int], Any], inputs: Callable[[int], list[Any]]
) -> list[list[Any]]:
    """Return the gradients of each rank's inputs through ``fn(hvd, inputs, rank)``, which returns
    outputs.
    """

    def body(rank: int) -> list[Any]:
        import farandole.torch as hvd

        mine = [each[rank].requires_grad_() for each in inputs(n)]
        outputs = fn(hvd, mine, rank)
        sum((weight(rank, each) * each).sum() for each in outputs).backward()
        return [each.grad for each in mine]

    return job(n, body)


REDUCTIONS: dict[str, Callable[[Any], Any]] = {
    "Average": lambda stack: stack.mean(0),
    "Sum": lambda stack: stack.sum(0),
    "Min": lambda stack: stack.amin(0),
    "Max": lambda stack: stack.amax(0),
    "Product": lambda stack: stack.prod(0),
}


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("factors", [(1.0, 1.0), (2.0, 0.5), (-3.0, 0.25)], ids=str)
@pytest.mark.parametrize("op", REDUCTIONS)
def test_allreduce(op: str, factors: tuple[float, float], n: int) -> None:
    pre, post = factors

    def inputs(n: int) -> list[Any]:
        some, more = tensors(n), tensors(n, (3,))
        for each in some:
            each[0] = 2.0  # all ranks have the same
        some[0][1, 0] = 0.0  # one has zero
        for each in some:
            each[1, 1] = 0.0  # all have
        return [some, more]

    def fn(hvd: Any, mine: list[Any], rank: int) -> Any:
        some = {"op": getattr(hvd, op), "prescale_factor": pre, "postscale_factor": post}
        return [hvd.allreduce(mine[0], name="x", **some), *hvd.grouped_allreduce(mine, **some)]

    found = gradients(n, fn, inputs)
    wanted_inputs = [[each.clone().requires_grad_() for each in group] for group in inputs(n)]
    first, second = (REDUCTIONS[op](torch.stack(group) * pre) * post for group in wanted_inputs)
    loss = sum(
        (weight(rank, first) * first).sum() * 2 + (weight(rank, second) * second).sum()
        for rank in range(n)
    )
    loss.backward()
    for rank in range(n):
        for one, group in zip(found[rank], wanted_inputs, strict=True):
            torch.testing.assert_close(one, group[rank].grad)


def test_horovods_conventions() -> None:
    """Gradients of allgather and broadcast are averaged; gradients of reducescatter are not
    divided.
    """
    n = 3

    def fn(hvd: Any, mine: list[Any], rank: int) -> Any:
        one, two, three, four, five = mine
        return [
            hvd.allgather(one[: rank + 1], name="g"),
            *hvd.grouped_allgather([two, one]),
            hvd.broadcast(three, 1, name="b"),
            hvd.reducescatter(four, op=hvd.Sum, prescale_factor=2.0, name="r"),
            *hvd.grouped_reducescatter([five, four], op=hvd.Average, postscale_factor=3.0),
        ]

    found = gradients(n, fn, lambda n: [tensors(n) for _ in range(5)])
    weights = [weight(rank, torch.empty(6, 2, dtype=torch.float64)) for rank in range(n)]
    ragged = [weight(rank, torch.empty(6, 2, dtype=torch.float64)) for rank in range(n)]
    even = [weight(rank, torch.empty(18, 2, dtype=torch.float64)) for rank in range(n)]
    part = torch.cat([weight(rank, torch.empty(2, 2, dtype=torch.float64)) for rank in range(n)])
    for rank in range(n):
        one = sum(even)[6 * rank : 6 * rank + 6] / n
        first = sum(range(1, rank + 1))
        one[: rank + 1] += sum(ragged)[first : first + rank + 1] / n
        two = sum(even)[6 * rank : 6 * rank + 6] / n
        three = sum(weights) / n if rank == 1 else torch.zeros(6, 2, dtype=torch.float64)
        for gradient, wanted in zip(
            found[rank], (one, two, three, part * 2 * n + part * 3, part * 3), strict=True
        ):
            torch.testing.assert_close(gradient, wanted)


@pytest.mark.parametrize("with_splits", [False, True])
def test_alltoall(with_splits: bool) -> None:
    n = 3
    splits = [[1, 2, 3], [0, 6, 0], [4, 1, 1]]

    def fn(hvd: Any, mine: list[Any], rank: int) -> Any:
        if not with_splits:
            return [hvd.alltoall(mine[0], name="a")]
        out, received = hvd.alltoall(mine[0], torch.tensor(splits[rank], dtype=torch.int32))
        assert received.tolist() == [each[rank] for each in splits]
        return [out]

    found = gradients(n, fn, lambda n: [tensors(n)])
    counts = splits if with_splits else [[2] * 3] * 3
    inputs = [each.requires_grad_() for each in tensors(n)]
    pieces = [each.split(count) for each, count in zip(inputs, counts, strict=True)]
    loss: Any = 0
    for rank in range(n):
        out = torch.cat([piece[rank] for piece in pieces])
        loss = loss + (weight(rank, out) * out).sum()
    loss.backward()
    for rank in range(n):
        torch.testing.assert_close(found[rank][0], inputs[rank].grad)


def test_compression_sets_and_second_derivatives() -> None:
    def fn(rank: int) -> None:
        import farandole.torch as hvd

        some = hvd.add_process_set([0, 1])
        if rank == 2:
            return
        x = torch.full((3,), 1.0 + rank, requires_grad=True)
        y = hvd.allreduce(x * x, op=hvd.Sum, process_set=some)
        (first,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
        assert torch.allclose(first, 2 * y * 2 * 2 * x)  # both ranks' losses are the same
        first.sum().backward()
        # the sum of both ranks' sums of first derivatives: d/dx_r of 8 x_q (x_0^2 + x_1^2), for
        # both q
        total = 1.0 + 2.0
        assert torch.allclose(x.grad, 8 * (torch.full((3,), 5.0) + 2 * x.detach() * total))
        z = torch.ones(4, requires_grad=True)
        out = hvd.allreduce(z, compression=hvd.Compression.fp16, process_set=some)
        assert out.dtype == torch.float32
        out.sum().backward()
        assert z.grad.tolist() == [1] * 4
        g = torch.ones(2, requires_grad=True)
        hvd.allgather(g, process_set=some).sum().backward()
        b = torch.ones(2, requires_grad=True)
        hvd.broadcast(b, 1, process_set=some).sum().backward()
        assert (g.grad.tolist(), b.grad.tolist()) == ([1, 1], [float(rank)] * 2)

    job(3, fn, dynamic_process_sets=True)


def test_overwriting_saved_tensors_is_an_error() -> None:
    """As with torch's in-place operations. Tensors that are not saved may be overwritten."""

    def fn(rank: int) -> None:
        import farandole.torch as hvd

        for change in (
            lambda tensor: hvd.allreduce_(tensor, op=hvd.Sum),
            lambda tensor: hvd.broadcast_(tensor, 0),
            lambda tensor: hvd.synchronize(hvd.grouped_allreduce_async_([tensor])),
        ):
            x = torch.ones(2, requires_grad=True)
            saved = x.exp()
            change(saved)
            with pytest.raises(RuntimeError, match=mentioning("inplace")):
                saved.sum().backward()
            loss = (x * 3).sum()
            change(loss)
            loss.backward()
            assert x.grad is not None
            assert x.grad.tolist() == [3.0, 3.0]

    job(2, fn)


def test_nothing_is_recorded_without_a_request() -> None:
    def fn(rank: int) -> None:
        import farandole.torch as hvd

        x = torch.ones(2, requires_grad=True)
        with torch.no_grad():
            assert hvd.allreduce(x).grad_fn is None
        assert hvd.allreduce(x.detach()).grad_fn is None
        assert hvd.allreduce(x, op=hvd.Max).grad_fn is not None
        half = torch.full((2,), 0.5 + rank, dtype=torch.float16, requires_grad=True)
        hvd.allreduce(half, op=hvd.Max).sum().backward()
        assert half.grad.tolist() == [2.0 * rank] * 2
        nan = (
            torch.tensor([float("nan"), 1.0], requires_grad=True)
            if rank
            else torch.ones(2, requires_grad=True)
        )
        hvd.allreduce(nan, op=hvd.Min).sum().backward()
        assert nan.grad.tolist() == [2.0 * rank, 1.0]

    job(2, fn)


def test_gather_and_its_gradient() -> None:
    def fn(rank: int) -> None:
        import farandole.torch as hvd

        mine = torch.full((rank, 2), float(rank), dtype=torch.float64, requires_grad=True)
        rows = hvd.gather(mine, root_rank=1, name="rows")
        assert rows.tolist() == ([[1.0, 1.0], [2.0, 2.0], [2.0, 2.0]] if rank == 1 else [])
        (rows.sum() * 3).backward()
        assert mine.grad is not None
        assert mine.grad.tolist() == [[3.0, 3.0]] * rank
        pair = hvd.add_process_set([0, 2])
        if rank != 1:
            assert hvd.gather(torch.tensor([rank]), 2, process_set=pair).tolist() == (
                [0, 2] if rank else []
            )
            with pytest.raises(
                hvd.HorovodInternalError,
                match=mentioning("rank 1", "[0, 2]"),
            ):
                hvd.gather(torch.tensor([rank]), 1, process_set=pair)
        with pytest.raises(
            hvd.HorovodInternalError, match=mentioning("rank 3", "0", "2", "root rank")
        ):
            hvd.gather(torch.ones(2), 3)
        with pytest.raises(hvd.HorovodInternalError, match=mentioning("rank-zero", "tensor")):
            hvd.gather(torch.tensor(1.0))

    job(3, fn, dynamic_process_sets=True)


@pytest.mark.parametrize("options", [{}, {"groups": 1}, {"sparse_as_dense": True}])
def test_reduced_gradients_can_be_differentiated_again(options: dict[str, Any]) -> None:
    """AdaHessian and similar optimizers need the graph of ``.grad``."""

    def trained(rows: slice, wrap: Callable[[Any], Any], mean: Callable[[Any], Any]) -> list[Any]:
        torch.manual_seed(3)
        net = torch.nn.Sequential(
            torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1)
        ).double()
        optimizer = wrap(torch.optim.SGD(net.parameters(), lr=0.1))
        weights = list(net.parameters())
        for x, y in zip(tensors(3, (8, 4)), tensors(3, (8, 1)), strict=True):
            optimizer.zero_grad()
            ((net(x[rows]) - y[rows]) ** 2).mean().backward(create_graph=True)
            curvature = torch.autograd.grad(
                [each.grad for each in weights], weights, [torch.ones_like(w) for w in weights]
            )
            for each, second in zip(weights, map(mean, curvature), strict=True):
                each.grad = each.grad.detach() / (second.abs() + 1)
            optimizer.step()
        return [each.detach() for each in weights]

    def fn(rank: int) -> list[Any]:
        import farandole.torch as hvd

        return trained(
            slice(rank, None, 2),
            lambda sgd: hvd.DistributedOptimizer(sgd, **options),
            hvd.allreduce,
        )

    wanted = trained(slice(None), lambda sgd: sgd, lambda each: each)
    for found in job(2, fn):
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
