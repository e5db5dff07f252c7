"""A wrapped optimizer is an optimizer to a program: schedulers, state, names, its life."""

from __future__ import annotations

import gc
import weakref
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
from tests.torch.test_parameters import Wrap, both

torch = pytest.importorskip("torch", reason="torch is not installed")


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


def test_the_wrapper_is_an_optimizer_of_the_wrapped_class() -> None:
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
            # after shutdown() and init() it sees a different engine
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
