"""Programs around the optimizer: clipping, closures, mixed precision, compiled models,
checkpoints.
"""

from __future__ import annotations

import warnings
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

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch", reason="torch is not installed")


def test_clipping_with_and_without_synchronize() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, *data(step)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()

    def train(rank: int) -> Any:
        import farandole.torch as hvd

        with warnings.catch_warnings():  # the process runs other tests, too
            warnings.simplefilter("error")
            model = net()
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
            for step in range(STEPS):
                optimizer.zero_grad()
                loss_of(model, *part(rank, 2, *data(step))).backward()
                if step % 2:
                    optimizer.synchronize()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                if step % 2:
                    with optimizer.skip_synchronize():
                        optimizer.step()
                else:
                    optimizer.step()
        return values(model)

    assert_all_close(job(2, train), values(model))


@pytest.mark.parametrize("op", ["Average", "Sum"])
def test_step_after_synchronize_warns_and_does_not_reduce_twice(op: str) -> None:
    def train(rank: int) -> Any:
        import farandole.torch as hvd

        model = net()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1 if op == "Average" else 0.05),
            op=getattr(hvd, op),
        )
        loss_of(model, *part(rank, 2, *data())).backward()
        optimizer.synchronize()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            optimizer.step()
        (warning,) = caught
        text = (
            "optimizer.step() called without optimizer.skip_synchronize() context after"
            " optimizer.synchronize()"
        )
        assert str(warning.message).startswith(text)
        return values(model)

    assert_all_close(job(2, train), alone(OPTIMIZERS["sgd"], 1))


def test_closure() -> None:
    """SGD and L-BFGS: the closure's loss and gradients cover the whole batch."""
    makers = [
        lambda params: torch.optim.SGD(params, lr=0.1),
        lambda params: torch.optim.LBFGS(params, lr=0.5, max_iter=6, line_search_fn="strong_wolfe"),
    ]

    def run(rank: int, n: int, make: Callable[[Any], Any], wrap: Callable[[Any], Any]) -> Any:
        # L-BFGS looks at gradients as flat
        model = net(torch.float64).to(memory_format=torch.contiguous_format)
        optimizer = wrap(make(model.parameters()))
        losses = []
        for step in range(3):
            x, y = part(rank, n, *data(step, torch.float64))

            def closure(x: Any = x, y: Any = y) -> Any:
                optimizer.zero_grad()
                loss = loss_of(model, x, y)
                loss.backward()
                return loss

            losses.append(float(optimizer.step(closure).detach()))
        return [*values(model), torch.tensor(losses)]

    def train(rank: int) -> Any:
        import farandole.torch as hvd

        return [run(rank, 2, make, hvd.DistributedOptimizer) for make in makers]

    results = job(2, train)
    for number, make in enumerate(makers):
        assert_all_close(
            [result[number] for result in results], run(0, 1, make, lambda each: each), 1e-6
        )


def test_the_loss_of_a_closure_is_a_sum_where_gradients_are() -> None:
    """A line search compares both."""

    def run(rank: int, n: int) -> Any:
        import farandole.torch as hvd

        model = net(torch.float64).to(memory_format=torch.contiguous_format)
        optimizer = torch.optim.LBFGS(
            model.parameters(), lr=0.5, max_iter=6, line_search_fn="strong_wolfe"
        )
        if n > 1:
            optimizer = hvd.DistributedOptimizer(optimizer, op=hvd.Sum)
        x, y = part(rank, n, *data(0, torch.float64))

        def closure() -> Any:
            optimizer.zero_grad()
            loss = loss_of(model, x, y) / n
            loss.backward()
            return loss

        losses = [float(optimizer.step(closure).detach()) for _ in range(3)]
        return [*values(model), torch.tensor(losses)]

    assert_all_close(job(2, lambda rank: run(rank, 2)), run(0, 1), 1e-6)


def test_grad_scaler_with_ranks_that_use_different_parameters() -> None:
    """An overflow on one rank is an overflow on all: they skip the same steps."""

    def train(rank: int) -> Any:
        import farandole.torch as hvd

        model = net()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        scales = []
        for step in range(STEPS):
            optimizer.zero_grad()
            x, y = part(rank, 2, *data(step))
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_of(model, x, y, side=rank == 0 or step % 2 == 0)
            if step == 1 and rank == 1:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return values(model), scales

    results = job(2, train)
    assert [scales for _, scales in results] == [[1024.0, 512.0, 512.0, 512.0]] * 2
    assert all(
        torch.equal(one, other) for one, other in zip(results[0][0], results[1][0], strict=True)
    )
    assert all(torch.isfinite(each).all() for each in results[0][0])


def test_grad_scaler_matches_one_rank_with_a_fused_optimizer() -> None:
    def run(rank: int, n: int, wrap: Callable[[Any], Any]) -> Any:
        model = net()
        optimizer = wrap(torch.optim.Adam(model.parameters(), lr=0.01, fused=True))
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        for step in range(STEPS):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, *part(rank, n, *data(step)))).backward()
            scaler.step(optimizer)
            scaler.update()
        return values(model)

    def train(rank: int) -> Any:
        import farandole.torch as hvd

        return run(rank, 2, hvd.DistributedOptimizer)

    assert_all_close(job(2, train), run(0, 1, lambda each: each), 1e-5)


def test_skipped_steps_without_zero_grad_of_the_optimizer() -> None:
    """``model.zero_grad()`` drops gradients without the optimizer."""

    def train(rank: int) -> Any:
        import farandole.torch as hvd

        model = net()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for step in range(STEPS):
            model.zero_grad()
            loss_of(model, *part(rank, 2, *data(9))).backward()  # no step uses these
            model.zero_grad()
            loss_of(model, *part(rank, 2, *data(step))).backward()
            optimizer.step()
        return values(model)

    assert_all_close(job(2, train), alone(OPTIMIZERS["sgd"]))


def test_compiled_model() -> None:
    def train(rank: int) -> Any:
        import farandole.torch as hvd

        model = net()
        compiled = torch.compile(model, backend="aot_eager")
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(compiled, *part(rank, 2, *data(step))).backward()
            optimizer.step()
        return values(model)

    assert_all_close(job(2, train), alone(OPTIMIZERS["sgd"]))


def test_compiled_step_with_its_collectives() -> None:
    """The graph ends before each call of ours; the engine is not traced."""

    def train(rank: int) -> Any:
        import farandole.torch as hvd

        model = net()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

        @torch.compile(backend="eager")
        def stepped(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            loss.backward()
            optimizer.step()
            return hvd.allreduce(loss.detach() * 2.0, op=hvd.Sum) / 4.0

        for step in range(STEPS):
            parts = part(rank, 2, *data(step))
            before = loss_of(model, *parts).detach()
            assert torch.allclose(stepped(*parts), hvd.allreduce(before))
        return values(model)

    assert_all_close(job(2, train), alone(OPTIMIZERS["sgd"]))


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpoints(reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    def train(rank: int) -> Any:
        import farandole.torch as hvd

        torch.manual_seed(2)
        layers = [torch.nn.Linear(4, 4) for _ in range(3)]
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([each for layer in layers for each in layer.parameters()], lr=0.1)
        )
        rounds = []
        for step in range(STEPS):
            optimizer.zero_grad()
            torch.manual_seed(3 + step)
            (h,) = part(rank, 2, torch.randn(8, 4, requires_grad=True))
            for layer in layers:
                h = checkpoint(layer, h, use_reentrant=reentrant)
            session = optimizer._farandole.reducer._session  # None before the first gradient
            before = session.rounds if session is not None else 0
            h.square().mean().backward()
            rounds.append(optimizer._farandole.reducer._session.rounds - before)
            optimizer.step()
        assert rounds == [1] * STEPS  # not one per checkpoint
        return [value for layer in layers for value in values(layer)]

    torch.manual_seed(2)
    layers = [torch.nn.Linear(4, 4) for _ in range(3)]
    optimizer = torch.optim.SGD([each for layer in layers for each in layer.parameters()], lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        torch.manual_seed(3 + step)
        h = torch.randn(8, 4, requires_grad=True)
        for layer in layers:
            h = layer(h)
        h.square().mean().backward()
        optimizer.step()
    assert_all_close(job(2, train), [value for layer in layers for value in values(layer)])


@pytest.mark.parametrize("overlap", ["on", "off"])
def test_hooks_that_change_gradients_after_farandoles(overlap: str) -> None:
    """Ranks exchange the hooks' results, in later steps as in the first."""

    def change(model: Any) -> None:
        def replace(parameter: Any) -> None:
            parameter.grad = parameter.grad * 3

        def overwrite(parameter: Any) -> None:
            parameter.grad.mul_(0.5)

        for number, parameter in enumerate(model.parameters()):
            parameter.register_post_accumulate_grad_hook(overwrite if number % 3 else replace)

    def steps(model: Any, optimizer: Any, rank: int, n: int) -> Any:
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, *part(rank, n, *data(step))).backward()
            optimizer.step()
        return values(model)

    def train(rank: int) -> Any:
        import farandole.torch as hvd

        model = net()
        optimizer = hvd.DistributedOptimizer(OPTIMIZERS["momentum"](model.parameters()))
        change(model)
        return steps(model, optimizer, rank, 2)

    model = net()
    change(model)
    wanted = steps(model, OPTIMIZERS["momentum"](model.parameters()), 0, 1)
    assert_all_close(job(2, train, overlap=overlap), wanted)


def test_a_hook_that_steps_when_a_gradient_is_ready() -> None:
    """Optimizers in the backward pass, whose gradients need no separate memory."""

    def steps(wrap: Callable[[Any], Any], rank: int, n: int) -> Any:
        model = net()
        for parameter in model.parameters():
            optimizer = wrap(OPTIMIZERS["momentum"]([parameter]))

            def step(parameter: Any, optimizer: Any = optimizer) -> None:
                optimizer.step()
                optimizer.zero_grad()

            parameter.register_post_accumulate_grad_hook(step)
        for number in range(STEPS):
            loss_of(model, *part(rank, n, *data(number))).backward()
        return values(model)

    def train(rank: int) -> Any:
        import farandole.torch as hvd

        return steps(hvd.DistributedOptimizer, rank, 2)

    assert_all_close(job(2, train), steps(lambda optimizer: optimizer, 0, 1))


def test_an_optimizer_with_custom_step_methods() -> None:
    """Like SAM: two gradients for each step, and ``step`` is never called. Recorded data must not
    grow.
    """

    class TwoSteps(torch.optim.SGD):
        def first_step(self) -> None:
            with torch.no_grad():
                self.before = [
                    (one, one.clone()) for group in self.param_groups for one in group["params"]
                ]
                for one, _ in self.before:
                    one.add_(one.grad, alpha=0.1)
            self.zero_grad()

        def second_step(self) -> None:
            with torch.no_grad():
                for one, old in self.before:
                    one.copy_(old).sub_(one.grad, alpha=0.1)
            self.zero_grad()

    def train(rank: int, n: int, wrap: Any) -> Any:
        model = net()
        optimizer = wrap(TwoSteps(model.parameters(), lr=0.1))
        for step in range(STEPS):
            for move in (optimizer.first_step, optimizer.second_step):
                loss_of(model, *part(rank, n, *data(step))).backward()
                move()
        if n > 1:
            assert len(optimizer._farandole.reducer._session.arrivals) == len(values(model))
        return values(model)

    def distributed(rank: int) -> Any:
        import farandole.torch as hvd

        return train(rank, 2, hvd.DistributedOptimizer)

    assert_all_close(job(2, distributed), train(0, 1, lambda optimizer: optimizer))
