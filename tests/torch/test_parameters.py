"""Parameters that come, go, freeze, or are not used; schedulers; state; and what a program may get wrong."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from tests.job import job
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
)  # fmt: skip

torch = pytest.importorskip("torch", reason="torch is not installed")

Wrap = Callable[[Any], Any]


def both(run: Callable[[int, int, Wrap], Any], n: int = 2, tolerance: float = 1e-6, **settings: Any) -> None:
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
        optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1))
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
        optimizer = wrap(torch.optim.SGD([*left.parameters(), *right.parameters()], lr=0.1 / scale, momentum=0.9))
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

        return run(rank, 2, lambda optimizer: hvd.DistributedOptimizer(optimizer, op=getattr(hvd, op)))

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


def test_a_scheduler_made_before_wrapping_survives_load_state_dict() -> None:
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
    """State made before wrapping counts; a checkpoint goes to a fresh pair of model and optimizer."""

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
        return hooked

    assert job(2, train) == [["before", "after"]] * 2


def test_two_optimizers_and_one_that_is_gone() -> None:
    """Hooks go with their optimizer; a second one on the same parameters works."""

    def train(rank: int) -> Any:
        import farandole.torch as hvd

        model, other = net(), net()
        first = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        loss_of(model, *part(rank, 2, *data())).backward()
        first.step()
        gone = weakref.ref(first), weakref.ref(first._farandole.strategy)
        del first
        gc.collect()
        assert [each() for each in gone] == [None, None]
        assert all(not parameter._post_accumulate_grad_hooks for parameter in model.parameters())
        optimizers = [hvd.DistributedOptimizer(torch.optim.SGD(each.parameters(), lr=0.1)) for each in (model, other)]
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
            strategy = optimizer._farandole.strategy
            for step in range(3):
                optimizer.zero_grad()
                loss_of(model, *part(rank, 2, *data(step))).backward()
                optimizer.step()
            kept = strategy._engine
            strategy._engine = None  # what the strategy sees after shutdown() and init(): another engine than its own
            for step in range(3, 6):
                optimizer.zero_grad()
                loss_of(model, *part(rank, 2, *data(step))).backward()
                optimizer.step()
            assert strategy._engine is kept
            return values(model)
        finally:
            hvd.shutdown()

    assert_all_close(job(2, train), alone(OPTIMIZERS["sgd"], 6))


# What a program may get wrong.


def wrap_alone(**options: Any) -> Any:
    """DistributedOptimizer with these options, on one rank."""
    import farandole.torch as hvd

    hvd.init()
    try:
        model = net()
        chosen = {key: value(model) if callable(value) else value for key, value in options.items()}
        return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), **chosen)
    finally:
        hvd.shutdown()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"named_parameters": lambda model: model.parameters()}, ValueError,
         "named_parameters should be a sequence of tuples (name, parameter), usually produced by"),
        ({"named_parameters": lambda model: [("a", parameter) for parameter in model.parameters()]}, ValueError,
         "Parameter names in named_parameters must be unique. Found duplicates: a"),
        ({"named_parameters": lambda model: list(model.named_parameters())[:-1]}, ValueError,
         "named_parameters was specified, but one or more model parameters were not named"),
        ({"groups": -1}, ValueError, "groups should be a non-negative integer or a list of list of torch.Tensor."),
        ({"groups": "all"}, ValueError, "groups should be a non-negative integer or a list of list of torch.Tensor."),
        ({"groups": [[1, 2]]}, ValueError, "groups must consist of torch.Tensor."),
        ({"groups": lambda model: [[model.side.bias], [model.side.bias]]}, ValueError,
         "A parameter can only appear once in groups."),
        ({"gradient_predivide_factor": 2.0, "op": 1}, ValueError,
         "gradient_predivide_factor not supported with op != Average"),
        ({"gradient_predivide_factor": -1.0}, ValueError, "gradient_predivide_factor must be > 0"),
        ({"backward_passes_per_step": 0}, ValueError, "backward_passes_per_step must be > 0"),
        ({"op": 3}, ValueError, "use Average or Sum"),
        ({"op": 2}, NotImplementedError, "Adasum is not available"),
    ],
    ids=str,
)  # fmt: skip
def test_arguments_that_cannot_be(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=re.escape(text)):
        wrap_alone(**options)


def test_num_groups_is_deprecated_and_passes_are_checked_later_too() -> None:
    with pytest.warns(DeprecationWarning, match="num_groups"):
        optimizer = wrap_alone(num_groups=2)
    with pytest.raises(ValueError, match="backward_passes_per_step must be > 0"):
        optimizer.set_backward_passes_per_step(-1)


def test_wrapping_twice_and_wrapping_without_init() -> None:
    import farandole.torch as hvd

    with pytest.raises(ValueError, match="distributed already"):
        hvd.DistributedOptimizer(wrap_alone())
    with pytest.raises(ValueError, match=r"has not been initialized; use hvd\.init"):
        hvd.DistributedOptimizer(torch.optim.SGD(net().parameters(), lr=0.1))


def test_too_many_passes_and_dropped_gradients() -> None:
    def train(rank: int) -> Any:
        import farandole.torch as hvd

        model = net()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        batch = part(rank, 2, *data())
        loss_of(model, *batch).backward()
        with pytest.raises(AssertionError, match="Gradients were computed more than backward_passes_per_step times"):
            loss_of(model, *batch).backward()
        optimizer.zero_grad()  # all was reduced: nothing races
        optimizer.set_backward_passes_per_step(2)
        loss_of(model, *batch).backward()
        with pytest.raises(AssertionError, match=r"optimizer\.zero_grad\(\) was called after loss\.backward\(\)"):
            optimizer.zero_grad()
        loss_of(model, *batch).backward()
        optimizer.step()
        optimizer.set_backward_passes_per_step(1)
        for step in range(2):
            optimizer.zero_grad()
            loss_of(model, *part(rank, 2, *data(step))).backward()
            optimizer.step()
        return values(model)

    one, other = job(2, train)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_ranks_with_different_parameters_are_told() -> None:
    def train(rank: int) -> Any:
        import farandole.torch as hvd

        layer = torch.nn.Linear(3, 2 + rank)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(layer.parameters(), lr=0.1), named_parameters=layer.named_parameters()
        )
        with pytest.raises(ValueError, match="all ranks must optimize the same parameters") as caught:
            layer(torch.ones(1, 3)).sum().backward()
        more = torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(1 + rank))
        other = hvd.DistributedOptimizer(torch.optim.SGD(more.parameters(), lr=0.1))
        with pytest.raises(ValueError, match="rank 0 has 2 parameters, rank 1 has 4"):
            other.step()
        hvd.allreduce(torch.ones(2))  # the engine goes on
        optimizer.zero_grad()
        return str(caught.value)

    for text in job(2, train):
        assert "rank 0 has ('weight', (2, 3)" in text
        assert "rank 1 has ('weight', (3, 3)" in text


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

        table = torch.nn.Embedding(7, 3, sparse=True)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=0.1))
        with pytest.raises(ValueError, match="sparse_as_dense=True"):
            table(torch.tensor([1])).sum().backward()
        del optimizer
        return run(rank, 2, lambda optimizer: hvd.DistributedOptimizer(optimizer, sparse_as_dense=True))

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


def test_a_type_that_cannot_travel() -> None:
    def train(rank: int) -> Any:
        import farandole.torch as hvd

        with pytest.raises(ValueError, match=r"Tensor type torch.ComplexFloatTensor is not supported. \(parameter"):
            hvd.DistributedOptimizer(
                torch.optim.SGD([torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64))], lr=0.1)
            )

    job(2, train)


def test_a_rank_that_dies_ends_the_step_of_the_others() -> None:
    def train(rank: int) -> Any:
        import farandole.torch as hvd
        from farandole import context

        model = net()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        loss_of(model, *part(rank, 2, *data())).backward()
        optimizer.step()
        if rank == 1:
            context.engine().abort("rank 1 gave up")
            return None
        optimizer.zero_grad()
        with pytest.raises(hvd.HorovodInternalError):
            loss_of(model, *part(rank, 2, *data())).backward()
        return None

    job(2, train)
