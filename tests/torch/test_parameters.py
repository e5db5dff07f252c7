"""Parameters that are added, removed, frozen or unused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.run_job import job
from tests.torch.test_optimizer import (
    STEPS,
    assert_all_close,
    data,
    loss_of,
    net,
    part,
    values,
)

torch = pytest.importorskip("torch", reason="torch is not installed")


Wrap = Callable[[Any], Any]


def both(
    run: Callable[[int, int, Wrap], Any], n: int = 2, tolerance: float = 1e-6, **settings: Any
) -> None:
    """Check that ``run(rank, n, wrap)`` gives the same values on n wrapped ranks as on one, not
    wrapped.
    """

    def train(rank: int) -> Any:
        import farandole.torch as hvd

        return run(rank, n, hvd.DistributedOptimizer)

    assert_all_close(job(n, train, **settings), run(0, 1, lambda optimizer: optimizer), tolerance)


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("n", [2, 3])
def test_parameters_that_only_some_ranks_use(n: int, to_none: bool) -> None:
    """Every rank skips a different part of the model, and none of them uses it in every step."""

    def run(rank: int, n: int, wrap: Wrap) -> Any:
        model = net()
        optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        for step in range(6):
            optimizer.zero_grad(set_to_none=to_none)
            losses = []
            for each in range(3) if n == 1 else [rank]:
                pieces = 3 if n == 1 else n
                side = (step + each) % 3 == 0 and step != 4
                losses.append(loss_of(model, *part(each, pieces, *data(step)), side=side))
            (sum(losses) / len(losses)).backward()
            optimizer.step()
        return values(model)

    if n == 3:
        both(run, 3, bucket_bytes=256)
        return

    def train(rank: int) -> Any:
        import farandole.torch as hvd

        return run(rank, 2, hvd.DistributedOptimizer)

    results = job(2, train, bucket_bytes=256)
    assert all(torch.equal(one, other) for one, other in zip(results[0], results[1], strict=True))


def test_gradients_are_final_after_backward_even_then() -> None:
    """Also if ranks use different parameters, and run other collectives before they step."""

    def train(rank: int) -> Any:
        import farandole.torch as hvd

        model = net()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        norms = []
        for step in range(3):
            optimizer.zero_grad()
            loss = loss_of(model, *part(rank, 2, *data(step)), side=rank == 0)
            loss.backward()
            norms.append([float(each.grad.norm()) for each in model.parameters()])
            hvd.allreduce(loss.detach())
            optimizer.step()
        return norms

    one, other = job(2, train, bucket_bytes=64)
    assert one == other


def test_unused_parameters_keep_no_gradient() -> None:
    """Weight decay and momentum leave them alone, as on one rank."""

    def run(rank: int, n: int, wrap: Wrap) -> Any:
        model = net()
        optimizer = wrap(
            torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
        )
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, *part(rank, n, *data(step)), side=False).backward()
            optimizer.step()
            assert model.side.weight.grad is None
        return values(model)

    both(run)


@pytest.mark.parametrize("op", ["Average", "Sum"])
def test_two_losses_one_after_the_other(op: str) -> None:
    """The second loss has gradients that the first did not have."""

    def run(rank: int, n: int, wrap: Wrap) -> Any:
        torch.manual_seed(1)
        left, right = torch.nn.Linear(4, 2), torch.nn.Linear(4, 3)
        scale = n if op == "Sum" else 1
        optimizer = wrap(
            torch.optim.SGD([*left.parameters(), *right.parameters()], lr=0.1 / scale, momentum=0.9)
        )
        for step in range(STEPS):
            optimizer.zero_grad()
            torch.manual_seed(step)
            (x,) = part(rank, n, torch.randn(6, 4))
            left(x).square().mean().backward()
            right(x).square().mean().backward()
            optimizer.step()
        return [*values(left), *values(right)]

    def train(rank: int) -> Any:
        import farandole.torch as hvd

        return run(
            rank, 2, lambda optimizer: hvd.DistributedOptimizer(optimizer, op=getattr(hvd, op))
        )

    assert_all_close(job(2, train, bucket_bytes=32), run(0, 1, lambda optimizer: optimizer))


def test_the_second_loss_on_one_rank_only() -> None:
    def run(rank: int, n: int, wrap: Wrap) -> Any:
        torch.manual_seed(1)
        left, right = torch.nn.Linear(4, 2), torch.nn.Linear(4, 3)
        optimizer = wrap(torch.optim.SGD([*left.parameters(), *right.parameters()], lr=0.1))
        for step in range(STEPS):
            optimizer.zero_grad()
            torch.manual_seed(step)
            x = torch.randn(6, 4)
            left(part(rank, n, x)[0]).square().mean().backward()
            if n == 1:
                (right(x[3:]).square().mean() / 2).backward()
            elif rank == 1:
                right(x[3:]).square().mean().backward()
            optimizer.step()
        return [*values(left), *values(right)]

    both(run)


def test_freezing_and_thawing() -> None:
    def run(rank: int, n: int, wrap: Wrap) -> Any:
        model = net()
        for parameter in model.conv.parameters():
            parameter.requires_grad_(False)
        optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        for step in range(8):
            if step in (3, 6):  # thaw the convolution, freeze the side; and back
                for parameter in model.conv.parameters():
                    parameter.requires_grad_(step == 3)
                for parameter in model.side.parameters():
                    parameter.requires_grad_(step == 6)
            optimizer.zero_grad()
            loss_of(model, *part(rank, n, *data(step))).backward()
            optimizer.step()
        return values(model)

    both(run, bucket_bytes=256)


def test_thawing_with_sum() -> None:
    def run(rank: int, n: int, wrap: Wrap) -> Any:
        model = net()
        for parameter in model.conv.parameters():
            parameter.requires_grad_(False)
        optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1 / n))
        for step in range(STEPS):
            for parameter in model.conv.parameters():
                parameter.requires_grad_(step >= 2)
            optimizer.zero_grad()
            loss_of(model, *part(rank, n, *data(step))).backward()
            optimizer.step()
        return values(model)

    def train(rank: int) -> Any:
        import farandole.torch as hvd

        return run(rank, 2, lambda optimizer: hvd.DistributedOptimizer(optimizer, op=hvd.Sum))

    assert_all_close(job(2, train), run(0, 1, lambda optimizer: optimizer))


def test_parameter_groups_and_a_new_one() -> None:
    def run(rank: int, n: int, wrap: Wrap) -> Any:
        model = net()
        optimizer = wrap(
            torch.optim.SGD(
                [
                    {"params": model.conv.parameters(), "lr": 0.01},
                    {"params": model.body.parameters(), "momentum": 0.5},
                ],
                lr=0.1,
            )
        )
        for step in range(6):
            if step == 3:
                optimizer.add_param_group({"params": model.side.parameters(), "lr": 0.2})
            model.zero_grad()
            loss_of(model, *part(rank, n, *data(step))).backward()
            optimizer.step()
        return values(model)

    both(run)


@pytest.mark.parametrize("op", ["Average", "Sum"])
def test_a_group_added_after_its_gradients_were_computed(op: str) -> None:
    def run(rank: int, n: int, wrap: Wrap) -> Any:
        model = net()
        optimizer = wrap(
            torch.optim.SGD(model.body.parameters(), lr=0.1 / n if op == "Sum" else 0.1)
        )
        for step in range(4):
            model.zero_grad()
            loss_of(model, *part(rank, n, *data(step))).backward()
            if step == 2:
                optimizer.add_param_group(
                    {"params": [*model.conv.parameters(), *model.side.parameters()]}
                )
            optimizer.step()
        return values(model)

    def train(rank: int) -> Any:
        import farandole.torch as hvd

        return run(
            rank, 2, lambda optimizer: hvd.DistributedOptimizer(optimizer, op=getattr(hvd, op))
        )

    assert_all_close(job(2, train), run(0, 1, lambda optimizer: optimizer))


@pytest.mark.parametrize("op", ["Average", "Sum"])
@pytest.mark.parametrize("after", ["a pass", "a loss", "backward"])
def test_a_gradient_of_a_parameter_frozen_before_the_step(op: str, after: str) -> None:
    """After the first of two passes, after one of two losses, or where a group is added before the
    step.
    """
    passes = 2 if after == "a pass" else 1

    def run(rank: int, n: int, wrap: Wrap) -> Any:
        def loss(*parts: Any) -> Any:
            factors = [rank + 1] if n > 1 else [1, 2]
            return sum(factor * each.square().sum() for factor in factors for each in parts) / (
                1 if n > 1 else 2
            )

        found = []
        for last in range(4):  # the step after which the side is frozen
            weights = [torch.nn.Parameter(torch.ones(size)) for size in (3, 4, 2)]
            body, side, head = weights
            groups = [body, side] if after == "backward" else weights
            optimizer = wrap(
                torch.optim.SGD(groups, lr=0.1 / n if op == "Sum" else 0.1, momentum=0.5)
            )
            for step in range(4):
                optimizer.zero_grad()
                loss(body, *[side] * (step <= last), *[head] * (after != "a loss")).backward()
                if step == last:
                    side.requires_grad_(False)
                    if after == "backward":
                        optimizer.add_param_group({"params": [head]})
                if after != "backward":
                    loss(*[body] * (after == "a pass"), head).backward()
                optimizer.step()
            found.append(values(torch.nn.ParameterList(weights)))
        return found

    def train(rank: int) -> Any:
        import farandole.torch as hvd

        kinds = {"op": getattr(hvd, op), "backward_passes_per_step": passes}
        return run(rank, 2, lambda optimizer: hvd.DistributedOptimizer(optimizer, **kinds))

    for found, wanted in zip(
        zip(*job(2, train), strict=True), run(0, 1, lambda optimizer: optimizer), strict=True
    ):
        assert_all_close(list(found), wanted)


def test_sparse_gradients() -> None:
    def run(rank: int, n: int, wrap: Wrap) -> Any:
        torch.manual_seed(4)
        table = torch.nn.Embedding(7, 3, sparse=n > 1)
        optimizer = wrap(torch.optim.SGD(table.parameters(), lr=0.1))
        for _ in range(3):
            optimizer.zero_grad()
            (rows,) = part(rank, n, torch.tensor([1, 2, 2, 6]))
            table(rows).square().mean().backward()
            optimizer.step()
        return values(table)

    def train(rank: int) -> Any:
        import farandole.torch as hvd

        return run(
            rank, 2, lambda optimizer: hvd.DistributedOptimizer(optimizer, sparse_as_dense=True)
        )

    assert_all_close(job(2, train), run(0, 1, lambda optimizer: optimizer))


@pytest.mark.parametrize("compression", ["none", "fp16"])
def test_sparse_gradients_sent_dense_return_sparse(compression: str) -> None:
    """For optimizers that accept only sparse gradients."""

    def run(rank: int, n: int, wrap: Wrap) -> Any:
        torch.manual_seed(4)
        table = torch.nn.Embedding(7, 3, sparse=True)
        optimizer = wrap(torch.optim.SparseAdam(list(table.parameters()), lr=0.1))
        for _ in range(3):
            optimizer.zero_grad()
            (rows,) = part(rank, n, torch.tensor([1, 2, 2, 6]))
            table(rows).sum().backward()
            if n > 1:
                assert table.weight.grad.is_sparse
                assert table.weight.grad.coalesce().indices().tolist() == [[1, 2, 6]]
                assert table.weight.grad.to_dense()[:, 0].tolist() == [0, 0.5, 1, 0, 0, 0, 0.5]
            optimizer.step()
        return values(table)

    def train(rank: int) -> Any:
        import farandole.torch as hvd

        def wrap(optimizer: Any) -> Any:
            return hvd.DistributedOptimizer(
                optimizer, sparse_as_dense=True, compression=getattr(hvd.Compression, compression)
            )

        return run(rank, 2, wrap)

    assert_all_close(job(2, train), run(0, 1, lambda optimizer: optimizer))


@pytest.mark.parametrize("op", ["Average", "Sum"])
@pytest.mark.parametrize("n", [2, 3])
def test_any_losses_on_any_rank(n: int, op: str) -> None:
    """Each rank assigns its parameters to losses, and leaves some out, differently on every rank
    and step.
    """
    count, steps = 7, 40

    def deal(rank: int, step: int) -> list[dict[int, float]]:
        """Return the losses of one rank in one step: the factors of the parameters in each."""
        generator = torch.Generator().manual_seed(1000 * rank + step)
        losses: list[dict[int, float]] = [{}, {}, {}]
        for index in range(count):
            number = int(torch.randint(0, 5, (1,), generator=generator))
            if step % 10 < 5:  # calmer times: one loss, with nearly everything in it
                number = min(number, 3) // 3 * 3
            if number < 3:
                losses[number][index] = float(torch.randint(1, 9, (1,), generator=generator))
        return [loss for loss in losses if loss]

    def train(rank: int) -> Any:
        import farandole.torch as hvd

        parameters = [torch.nn.Parameter(torch.zeros(index + 1)) for index in range(count)]
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(parameters, lr=0.0), op=getattr(hvd, op), groups=3
        )
        found = []
        for step in range(steps):
            optimizer.zero_grad(set_to_none=True)
            for loss in deal(rank, step):
                sum((parameters[index] * factor).sum() for index, factor in loss.items()).backward()
            optimizer.step()
            found.append([None if each.grad is None else each.grad.tolist() for each in parameters])
        return found

    wanted = []
    for step in range(steps):
        factors: list[list[float]] = [[] for _ in range(count)]
        for rank in range(n):
            for loss in deal(rank, step):
                for index, factor in loss.items():
                    factors[index].append(factor)
        scale = n if op == "Average" else 1
        wanted.append(
            [
                [sum(each) / scale] * (index + 1) if each else None
                for index, each in enumerate(factors)
            ]
        )
    for found in job(n, train):
        for step, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
            for one, other in zip(mine, theirs, strict=True):
                assert one == (other if other is None else pytest.approx(other, rel=1e-5)), step
