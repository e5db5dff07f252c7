"""Optimizers whose ranks exchange weights now and then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from farandole.strategies.gossip.synchronous import Gossip
from farandole.strategies.modes.local_sgd import LocalSGD
from tests.kits.messages import mentioning
from tests.run_job import job
from tests.torch.test_optimizer import OPTIMIZERS, data, loss_of, net, part, values

torch = pytest.importorskip("torch", reason="torch is not installed")


def steps_of(rank: int, n: int, model: Any, optimizer: Any, begin: int, end: int) -> None:
    for step in range(begin, end):
        optimizer.zero_grad()
        loss_of(model, *part(rank, n, *data(step))).backward()
        optimizer.step()


def trained(n: int, kind: str, strategy: Any, steps: int = 6, **options: Any) -> list[list[Any]]:
    def fn(rank: int) -> list[Any]:
        import farandole.torch as hvd

        model = net()
        optimizer = hvd.DistributedOptimizer(
            OPTIMIZERS[kind](model.parameters()), strategy=strategy, **options
        )
        steps_of(rank, n, model, optimizer, 0, steps)
        return values(model)

    return job(n, fn)


def model_of(n: int, kind: str, every: int, steps: int = 6) -> list[list[Any]]:
    """Local SGD in one process."""
    models = [net() for _ in range(n)]
    optimizers = [OPTIMIZERS[kind](model.parameters()) for model in models]
    for step in range(1, steps + 1):
        for rank in range(n):
            steps_of(rank, n, models[rank], optimizers[rank], step - 1, step)
        if step % every == 0:
            with torch.no_grad():
                for column in zip(*[model.parameters() for model in models], strict=True):
                    mean = sum(column) / n
                    for parameter in column:
                        parameter.copy_(mean)
    return [values(model) for model in models]


def assert_close(one: list[list[Any]], two: list[list[Any]]) -> None:
    for first, second in zip(one, two, strict=True):
        for a, b in zip(first, second, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["momentum", "adam"])
def test_local_sgd_is_its_model_with_any_optimizer(kind: str) -> None:
    assert_close(trained(2, kind, LocalSGD(3)), model_of(2, kind, 3))
    assert_close(trained(3, kind, "local_sgd:4", 5), model_of(3, kind, 4, 5))


def test_averaging_weights_after_each_step_averages_gradients() -> None:
    expected = trained(2, "sgd", "allreduce")
    assert_close(trained(2, "sgd", "gossip:complete"), expected)
    # it leaves out nothing
    assert_close(trained(2, "sgd", "gossip:complete,gamma=1", codec="topk:1"), expected)


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("strategy", ["local_sgd:2", "bmuf:2,momentum=0", "gossip:complete"])
def test_memory_that_two_parameters_have_is_exchanged_once(strategy: str, frozen: bool) -> None:
    """Weights are tied by their data in old programs. All ranks have the same rows: the mean is
    what each one has.
    """

    def run(wrap: Callable[[Any], Any]) -> list[Any]:
        model = torch.nn.ModuleList(
            [torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False)]
        )
        torch.nn.init.orthogonal_(model[0].weight, generator=torch.Generator().manual_seed(2))
        model[1].weight.data = model[0].weight.data
        model[0].weight.requires_grad_(not frozen)  # the other one trains it
        optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(4):
            optimizer.zero_grad()
            (model[1](model[0](torch.ones(2, 3))) - 2).square().mean().backward()
            optimizer.step()
        return values(model)

    def fn(rank: int) -> list[Any]:
        import farandole.torch as hvd

        return run(lambda optimizer: hvd.DistributedOptimizer(optimizer, strategy=strategy))

    assert_close(job(2, fn), [run(lambda optimizer: optimizer)] * 2)


def test_parameters_that_overlap_are_refused() -> None:
    def fn(rank: int) -> None:
        import farandole.torch as hvd

        def run(strategy: str, *parts: Any) -> Any:
            weights = [torch.nn.Parameter(part) for part in parts]
            named = [(f"part{place}", weight) for place, weight in enumerate(weights)]
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(weights, lr=1.0), named, strategy=strategy
            )
            for _ in range(2):
                optimizer.zero_grad()
                (sum(weight.sum() for weight in weights) * (rank + 1.0)).backward()
                optimizer.step()

        for strategy in ("local_sgd:1", "bmuf:2", "easgd:1", "gossip", "ps"):
            for cut in (
                lambda it: (it[:4], it[2:]),
                lambda it: (it, it[3:5]),
                lambda it: (it[:3], it[:6:2]),
            ):
                with pytest.raises(ValueError, match=mentioning("'part0'", "'part1'")):
                    run(strategy, *cut(torch.zeros(6)))
        for strategy in ("allreduce", "local_sgd:1", "gossip"):
            memory = torch.zeros(6)
            run(strategy, memory[::2], memory[1::2], memory[3:3])
            assert memory.tolist() == [-3.0] * 6

    job(2, fn, store=True)


def test_the_strategy_of_the_job_and_that_of_the_program() -> None:
    def fn(rank: int) -> None:
        import farandole.torch as hvd

        model = net()
        by_job = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()))
        assert by_job._farandole._strategy.spec == "gossip:ring,every=1"
        own = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()), strategy="allreduce")
        assert own._farandole.reducer is not None
        adasum = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()), strategy="adasum")
        assert adasum.op == hvd.Average
        for options, text in [
            ({"op": hvd.Sum}, ("op=Sum", "strategy='gossip:ring,every=1'")),
            ({"op": hvd.Adasum}, ("op=Adasum", "gradients")),
            ({"compression": hvd.Compression.fp16}, ("compression=fp16", "gradients")),
            ({"strategy": "none"}, ("'none'", "strategy")),
        ]:
            with pytest.raises(ValueError, match=mentioning(text)):
                hvd.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()), **options)

    job(2, fn, strategy="gossip:ring")


def test_one_rank_steps_as_the_optimizer_does() -> None:
    (alone,) = trained(1, "adam", Gossip())
    (plain,) = trained(1, "adam", "allreduce")
    assert all(torch.equal(a, b) for a, b in zip(alone, plain, strict=True))


def test_a_step_that_a_scaler_skips_on_one_rank_counts() -> None:
    def fn(rank: int) -> None:
        import farandole.torch as hvd

        parameter = torch.nn.Parameter(torch.zeros(2))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([parameter], lr=1.0), strategy="local_sgd:2"
        )
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)
        for step in range(4):
            optimizer.zero_grad()
            factor = float("inf") if (rank, step) == (1, 0) else rank + 1.0
            scaler.scale((parameter * factor).sum()).backward()
            if step == 3:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        # rank 0 steps by 1 each time, rank 1 by 2 three times of four
        assert parameter.tolist() == [-5.0] * 2

    job(2, fn)


def test_joined_ranks_do_not_count_and_state_is_broadcast() -> None:
    def fn(rank: int) -> None:
        import farandole.torch as hvd

        parameter = torch.nn.Parameter(torch.zeros(2))
        plain = torch.optim.SGD([parameter], lr=1.0, momentum=0.5)
        optimizer = hvd.DistributedOptimizer(
            plain, strategy=LocalSGD(2, outer="momentum", momentum=0.0)
        )
        for _ in range(2 + 2 * rank):
            optimizer.zero_grad()
            (parameter * (rank + 1.0)).sum().backward()
            optimizer.step()
        hvd.join()
        # after two steps: -2.5 and -5, so -3.75; then rank 1 alone: 2 * (1.75 + 1.875)
        assert parameter.tolist() == ([-3.75] * 2 if rank == 0 else [-11.0] * 2)
        hvd.broadcast_parameters([("p", parameter)], root_rank=1)
        hvd.broadcast_optimizer_state(optimizer, root_rank=1)
        momentum = plain.state[parameter]["momentum_buffer"].tolist()
        assert (parameter.tolist(), momentum) == ([-11.0] * 2, [3.75] * 2)
        optimizer.average_weights()
        assert parameter.tolist() == [-11.0] * 2

    job(2, fn)


def test_the_end_of_an_epoch_is_reported() -> None:
    def fn(rank: int) -> None:
        import farandole.torch as hvd

        own, mean = [-1.0 - rank] * 2, [-1.5] * 2
        for strategy, stepped, ends in (
            ("local_sgd:epoch", own, mean),
            ("local_sgd:8", own, own),
            ("allreduce", mean, mean),  # the same program, started without a strategy
            ("adasum", mean, mean),
        ):
            parameter = torch.nn.Parameter(torch.zeros(2))
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([parameter], lr=1.0), strategy=strategy
            )
            (parameter * (rank + 1.0)).sum().backward()
            optimizer.step()
            assert parameter.tolist() == stepped
            optimizer.end_of_epoch()
            assert parameter.tolist() == ends
            optimizer.average_weights()
            assert parameter.tolist() == mean

    job(2, fn)


def test_complex_weights_are_exchanged_like_their_parts() -> None:
    """They stayed each rank's own, without a word."""

    def fn(rank: int) -> None:
        import farandole.torch as hvd

        for strategy in ("local_sgd:1", "ps", "gossip"):
            weight, statistics = (
                torch.nn.Parameter(torch.full((2, 1), 1j)),
                torch.full((2,), 2j * rank),
            )
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([weight], lr=1.0), strategy=strategy, buffers=[statistics]
            )
            ((-2 + 4j) * rank * weight).real.sum().backward()
            optimizer.step()
            assert weight.tolist() == [[1 + 3j]] * 2
            assert statistics.tolist() == [1j] * 2

    job(2, fn, store=True)


def test_an_epoch_that_ends_with_an_exchange_has_no_other_one() -> None:
    """An outer optimizer would take its step twice. Ranks that took another number of steps are
    waited for.
    """

    def fn(rank: int) -> None:
        import farandole.torch as hvd

        parameter = torch.nn.Parameter(torch.zeros(2))
        strategy = LocalSGD("epoch", outer="momentum", momentum=0.5, warmup=2)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([parameter], lr=1.0), strategy=strategy
        )

        def epoch(steps: int) -> None:
            for _ in range(steps):
                optimizer.zero_grad()
                (-parameter * (2 * rank + 1.0)).sum().backward()
                optimizer.step()
            optimizer.end_of_epoch()

        epoch(2)  # ways 2 and 2: velocities 2 and 3
        assert parameter.tolist() == [5.0] * 2
        optimizer.end_of_epoch()
        assert parameter.tolist() == [5.0] * 2
        epoch(rank)  # 0 and 3, so 1.5, and a velocity of 3
        assert parameter.tolist() == [8.0] * 2

    job(2, fn)


def test_parameter_servers_follow_their_model() -> None:
    """Two ranks that take turns, with an optimizer of their own each."""

    def fn(rank: int) -> list[Any]:
        import farandole.torch as hvd

        found = []
        for strategy in ("ps", "allreduce"):
            model = net()
            optimizer = hvd.DistributedOptimizer(
                OPTIMIZERS["sgd"](model.parameters()), strategy=strategy
            )
            steps_of(rank, 2, model, optimizer, 0, 4)
            found.append(values(model))
        model = net()
        statistics = torch.full((2,), float(rank))
        optimizer = hvd.DistributedOptimizer(
            OPTIMIZERS["adam"](model.parameters()), strategy="ps_async", buffers=[statistics]
        )
        optimizer.average_weights()
        for turn in range(6):
            if turn % 2 == rank:
                steps_of(rank, 2, model, optimizer, turn, turn + 1)
            hvd.barrier()
        found.append(values(model))
        optimizer.average_weights()
        return [*found, values(model), statistics.tolist()]

    one, two = job(2, fn, store=True)
    for synchronous, reduced, _, _, _ in (one, two):
        assert_close([synchronous], [reduced])
    assert all(map(torch.equal, one[3], two[3]))
    assert one[4] == two[4]
    models = [net() for _ in range(2)]
    optimizers = [OPTIMIZERS["adam"](model.parameters()) for model in models]
    centre = values(models[0])
    anchors = [centre, centre]
    for turn in range(6):
        rank = turn % 2
        steps_of(rank, 2, models[rank], optimizers[rank], turn, turn + 1)
        ways = [new - old for new, old in zip(values(models[rank]), anchors[rank], strict=True)]
        centre = [value + way for value, way in zip(centre, ways, strict=True)]
        anchors[rank] = centre
        with torch.no_grad():
            for parameter, value in zip(models[rank].parameters(), centre, strict=True):
                parameter.copy_(value)
    assert_close([one[2], two[2], one[3]], [values(models[0]), values(models[1]), centre])


def test_background_gossip_keeps_the_changes_of_all_ranks() -> None:
    """Ranks take 3, 7 and 11 steps, of 1, 2 and 3."""

    def fn(rank: int) -> None:
        import farandole.torch as hvd

        parameter, statistics = torch.nn.Parameter(torch.zeros(2)), torch.zeros(2)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([parameter], lr=1.0),
            strategy="gossip_async:complete",
            buffers=[statistics],
        )
        for _ in range(3 + 4 * rank):
            optimizer.zero_grad()
            (parameter * (rank + 1.0)).sum().backward()
            statistics += rank
            optimizer.step()
        optimizer.average_weights()
        torch.testing.assert_close(parameter.detach(), torch.full((2,), -(3 + 14 + 33) / 3))
        torch.testing.assert_close(statistics, torch.full((2,), (7 + 22) / 3))

    job(3, fn, store=True)


def test_mixed_weights_gradients_and_adasum_are_an_error() -> None:
    def fn(rank: int) -> None:
        import farandole.torch as hvd

        model = net()
        strategy = kinds[rank]
        optimizer = hvd.DistributedOptimizer(
            OPTIMIZERS["sgd"](model.parameters()), strategy=strategy
        )
        who = f"(0 has '{kinds[0]}'|2 has 'adasum')"  # whoever looks first says it for all
        text = rf"strategy.* rank {who}.* rank [12] .*gradients"
        with pytest.raises((hvd.HorovodInternalError, ValueError), match=text):
            steps_of(rank, 3, model, optimizer, 0, 4)

    for kinds in (("local_sgd:2", "allreduce", "adasum"), ("adasum", "allreduce")):
        job(len(kinds), fn)
