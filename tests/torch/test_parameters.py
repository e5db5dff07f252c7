"""Parameters that come, go, freeze, or are not used; schedulers; state; and what a program may get
wrong.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from tests.run_job import job
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

Wrap = Callable[[Any], Any]


def both(
    run: Callable[[int, int, Wrap], Any], n: int = 2, tolerance: float = 1e-6, **settings: Any
) -> None:
    """``run(rank, n, wrap)`` gives the same values on n ranks, wrapped, as on one, not wrapped."""

    def train(rank: int) -> Any:
        import farandole.torch as hvd

        return run(rank, n, hvd.DistributedOptimizer)

    assert_all_close(job(n, train, **settings), run(0, 1, lambda optimizer: optimizer), tolerance)


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("n", [2, 3])
def test_parameters_that_only_some_ranks_use(n: int, to_none: bool) -> None:
    """Every rank skips another part of the model, and none of them uses it in every step."""

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
    """Also when ranks use different parameters, and talk of other things before they step."""

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


def test_parameters_that_nobody_uses_keep_no_gradient() -> None:
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
    """The second loss brings gradients that the first did not."""

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
def test_a_group_that_is_added_when_its_gradients_are_there(op: str) -> None:
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


@pytest.mark.parametrize("when", ["before", "after", "both"])
def test_schedulers(when: str) -> None:
    def run(rank: int, n: int, wrap: Wrap) -> Any:
        import warnings

        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedulers = []
        if when != "after":
            schedulers.append(torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5))
        optimizer = wrap(optimizer)
        if when != "before":
            schedulers.append(torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.1))
        rates = []
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for step in range(5):
                optimizer.zero_grad()
                loss_of(model, *part(rank, n, *data(step))).backward()
                optimizer.step()
                for scheduler in schedulers:
                    scheduler.step()
                rates.append(optimizer.param_groups[0]["lr"])
        return [*values(model), torch.tensor(rates)]

    both(run)


def test_an_early_scheduler_survives_load_state_dict() -> None:
    def run(rank: int, n: int, wrap: Wrap) -> Any:
        model = net()
        inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.StepLR(inner, 1, 0.5)
        optimizer = wrap(inner)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, *part(rank, n, *data(step))).backward()
            optimizer.step()
            optimizer.load_state_dict(optimizer.state_dict())
            scheduler.step()
        return [*values(model), torch.tensor(optimizer.param_groups[0]["lr"])]

    both(run)


def test_state_of_before_and_state_dict_round_trip() -> None:
    """State made before wrapping counts; a checkpoint goes to a fresh pair of model and
    optimizer.
    """

    def run(rank: int, n: int, wrap: Wrap) -> Any:
        model = net()
        inner = torch.optim.Adam(model.parameters(), lr=0.01)
        loss_of(model, *data(7)).backward()
        inner.step()
        optimizer = wrap(inner)
        for step in range(STEPS):
            if step == 2:
                saved = model.state_dict(), optimizer.state_dict()
                model = net()
                optimizer = wrap(torch.optim.Adam(model.parameters(), lr=0.5))
                model.load_state_dict(saved[0])
                optimizer.load_state_dict(saved[1])
            optimizer.zero_grad()
            loss_of(model, *part(rank, n, *data(step))).backward()
            optimizer.step()
        return values(model)

    both(run)


def test_what_kind_of_thing_it_is() -> None:
    def train(rank: int) -> Any:
        import farandole.torch as hvd

        class Mine(torch.optim.SGD):
            pass

        model = net()
        inner = Mine(model.parameters(), lr=0.1)
        hooked: list[str] = []
        inner.register_step_pre_hook(lambda *_: hooked.append("before"))
        optimizer = hvd.DistributedOptimizer(inner)
        optimizer.register_step_post_hook(lambda *_: hooked.append("after"))
        loss_of(model, *part(rank, 2, *data())).backward()
        optimizer.step()
        assert isinstance(optimizer, Mine)
        assert type(optimizer).__name__ == "Mine"
        assert optimizer.param_groups is inner.param_groups
        assert optimizer.state is inner.state
        assert optimizer.defaults is inner.defaults
        assert (optimizer.op, optimizer.backward_passes_per_step, optimizer.sparse_as_dense) == (
            hvd.Average,
            1,
            False,
        )
        assert (optimizer.gradient_predivide_factor, optimizer.process_set) == (
            1.0,
            hvd.global_process_set,
        )
        optimizer.set_backward_passes_per_step(3)
        assert optimizer.backward_passes_per_step == 3
        return hooked

    assert job(2, train) == [["before", "after"]] * 2


def test_names_of_parameters() -> None:
    def train(rank: int) -> Any:
        import farandole.torch as hvd

        first, second = torch.nn.Linear(2, 1), torch.nn.Linear(1, 1)
        groups = [{"params": list(first.parameters())}, {"params": list(second.parameters())}]
        named = [*first.named_parameters("one"), *second.named_parameters("two")]
        plain = hvd.DistributedOptimizer(torch.optim.SGD(groups, lr=0.1))
        other = hvd.DistributedOptimizer(torch.optim.SGD(groups, lr=0.1), named_parameters=named)
        return [
            [optimizer._parameter_names[parameter] for _, parameter in named]
            for optimizer in (plain, other)
        ]

    numbers = [f"allreduce.noname.{group}.{place}" for group in (0, 1) for place in (0, 1)]
    assert job(2, train) == [[numbers, ["one.weight", "one.bias", "two.weight", "two.bias"]]] * 2


def test_two_optimizers_and_one_that_is_gone() -> None:
    """Hooks go with their optimizer; a second one on the same parameters works."""

    def train(rank: int) -> Any:
        import farandole.torch as hvd

        model, other = net(), net()
        first = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        loss_of(model, *part(rank, 2, *data())).backward()
        first.step()
        gone = weakref.ref(first), weakref.ref(first._farandole.reducer)
        del first
        gc.collect()
        assert [each() for each in gone] == [None, None]
        assert all(not parameter._post_accumulate_grad_hooks for parameter in model.parameters())
        optimizers = [
            hvd.DistributedOptimizer(torch.optim.SGD(each.parameters(), lr=0.1))
            for each in (model, other)
        ]
        for step in range(STEPS):
            for each, optimizer in zip((model, other), optimizers, strict=True):
                optimizer.zero_grad()
                loss_of(each, *part(rank, 2, *data(step))).backward()
            for optimizer in optimizers:
                optimizer.step()
        return values(other)

    assert_all_close(job(2, train), alone(OPTIMIZERS["sgd"]))


def test_a_new_engine_in_the_middle() -> None:
    """After ``shutdown()`` and ``init()`` an optimizer goes on."""

    def train(rank: int) -> Any:
        import farandole.torch as hvd

        hvd.init()
        try:
            model = net()
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
            reducer = optimizer._farandole.reducer
            for step in range(3):
                optimizer.zero_grad()
                loss_of(model, *part(rank, 2, *data(step))).backward()
                optimizer.step()
            kept = reducer._session
            # what it sees after shutdown() and init(): another engine than its own
            kept.abandoned = True
            for step in range(3, 6):
                optimizer.zero_grad()
                loss_of(model, *part(rank, 2, *data(step))).backward()
                optimizer.step()
            assert reducer._session is not kept
            return values(model)
        finally:
            hvd.shutdown()

    assert_all_close(job(2, train), alone(OPTIMIZERS["sgd"], 6))


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
def test_sparse_gradients_sent_as_dense_ones_come_back_sparse(compression: str) -> None:
    """For optimizers that take nothing else."""

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


def test_nothing_to_train_and_steps_without_synchronize() -> None:
    def run(rank: int, n: int, wrap: Wrap) -> Any:
        frozen = torch.nn.Linear(2, 2).requires_grad_(False)
        optimizer = wrap(torch.optim.SGD(frozen.parameters(), lr=0.1))
        for _ in range(3):
            optimizer.zero_grad()
            optimizer.step()
        model = net()
        optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1))
        for step in range(STEPS):
            model.zero_grad(set_to_none=False)
            loss_of(model, *part(rank, n, *data(step))).backward()
            if n == 1:
                optimizer.step()
            else:
                with optimizer.skip_synchronize():  # gradients are final anyway
                    optimizer.step()
        return values(model)

    both(run)


@pytest.mark.parametrize("op", ["Average", "Sum"])
@pytest.mark.parametrize("n", [2, 3])
def test_any_losses_on_any_rank(n: int, op: str) -> None:
    """Each rank deals its parameters to some losses, and leaves some out: a different deal on every
    rank and step.
    """
    count, steps = 7, 40

    def deal(rank: int, step: int) -> list[dict[int, float]]:
        """The losses of one rank in one step: the factors of the parameters that are in each."""
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
