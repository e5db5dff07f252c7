"""Optimizers whose ranks exchange weights now and then."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest

from farandole.strategies.codecs import codec as codec_of
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


def test_a_resumed_run_goes_on_bit_for_bit() -> None:
    def fn(rank: int) -> None:
        import farandole.torch as hvd

        ends = []
        for resumed in (False, True):
            model = net()
            strategy = LocalSGD(2, outer="nesterov", lr=0.7)
            codec = codec_of("topk:0.3")
            optimizer = hvd.DistributedOptimizer(
                OPTIMIZERS["adam"](model.parameters()), strategy=strategy, codec=codec
            )
            steps_of(rank, 2, model, optimizer, 0, 3)
            if resumed:
                file = io.BytesIO()
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
                file.seek(0)
                loaded = torch.load(file)
                model = net()
                model.load_state_dict(loaded["model"])
                plain = OPTIMIZERS["adam"](model.parameters())
                plain.load_state_dict(loaded["optimizer"])  # it loads without Farandole, too
                residuals = codec.state_dict()
                codec = codec_of("topk:0.3")
                codec.load_state_dict(residuals)
                optimizer = hvd.DistributedOptimizer(
                    OPTIMIZERS["adam"](model.parameters()), strategy=strategy, codec=codec
                )
                optimizer.load_state_dict(loaded["optimizer"])
                other = hvd.DistributedOptimizer(
                    OPTIMIZERS["adam"](net().parameters()), strategy="local_sgd:2"
                )
                with pytest.raises(
                    ValueError,
                    match=(mentioning("outer=nesterov", "'local_sgd:2'")),
                ):
                    other.load_state_dict(loaded["optimizer"])
            steps_of(rank, 2, model, optimizer, 3, 7)
            ends.append(values(model))
        assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))

    job(2, fn)


@pytest.mark.parametrize(
    "strategy", ["local_sgd:4", "diloco:3", "bmuf:3", "easgd:3", "gossip:exponential"]
)
def test_rank_0_alone_may_load_a_checkpoint(strategy: str) -> None:
    """Horovod's way: rank 0 loads, and gives the others what it has."""

    def fn(rank: int) -> Any:
        import farandole.torch as hvd

        model = net()
        optimizer = hvd.DistributedOptimizer(
            OPTIMIZERS["momentum"](model.parameters()), strategy=strategy
        )
        # all ranks alike, so that a checkpoint of one is one of all
        steps_of(0, 1, model, optimizer, 0, 6)
        saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        ends = []
        for loads in (True, rank == 0):
            model = net()
            optimizer = hvd.DistributedOptimizer(
                OPTIMIZERS["momentum"](model.parameters()), strategy=strategy
            )
            if loads:
                model.load_state_dict(saved[0])
                optimizer.load_state_dict(copy.deepcopy(saved[1]))
            if ends:
                hvd.broadcast_parameters(model.state_dict(), root_rank=0)
                hvd.broadcast_optimizer_state(optimizer, root_rank=0)
            steps_of(rank, 2, model, optimizer, 6, 13)
            ends.append(values(model))
        assert optimizer.state_dict()["farandole"]["step"] == 13
        return ends

    for told, wanted in ((ends[1], ends[0]) for ends in job(2, fn)):
        assert all(torch.equal(one, other) for one, other in zip(told, wanted, strict=True))


@pytest.mark.parametrize(
    "strategy", ["local_sgd:2 int8", "diloco:2", "easgd:2", "gossip:ring topk:0.5", "ps"]
)
def test_a_state_of_another_model_is_refused(strategy: str) -> None:
    """numpy would stretch what was kept of a head with one output over one with three."""

    def fn(rank: int) -> None:
        import farandole.torch as hvd

        spec, _, codec = strategy.partition(" ")
        found = []
        for count in (1, 3):
            model = torch.nn.Linear(4, count)
            plain = torch.optim.SGD(model.parameters(), lr=0.1)
            optimizer = hvd.DistributedOptimizer(
                plain, model.named_parameters(), strategy=spec, codec=codec
            )
            found.append((model, optimizer))

        def two_steps(model: Any, optimizer: Any) -> None:
            for _ in range(2):
                model(torch.ones(2, 4)).sum().backward()
                optimizer.step()

        two_steps(*found[0])
        found[1][1].load_state_dict(found[0][1].state_dict())
        with pytest.raises(ValueError, match=mentioning("(1, 4)", "'weight'", "(3, 4)")):
            two_steps(*found[1])

    job(2, fn, store=True)


@pytest.mark.parametrize("strategy", ["allreduce", "diloco:3", "ps"])
def test_what_a_codec_keeps_is_in_the_checkpoint_of_its_rank(strategy: str) -> None:
    """With the codec of the job. A checkpoint of rank 0 gives the others nothing, nor does one of
    another codec.
    """

    def fn(rank: int) -> None:
        import farandole.torch as hvd

        ends = []
        for resumed in (False, True):
            model = net()
            optimizer = hvd.DistributedOptimizer(
                OPTIMIZERS["momentum"](model.parameters()), strategy=strategy
            )
            steps_of(rank, 2, model, optimizer, 0, 4)
            if resumed:
                file = io.BytesIO()
                torch.save([model.state_dict(), optimizer.state_dict()], file)
                weights, state = torch.load(io.BytesIO(file.getvalue()))
                model = net()
                model.load_state_dict(weights)
                OPTIMIZERS["momentum"](model.parameters()).load_state_dict(state)
                for spec, kept in (
                    ("topk:0.2", [False] * 2),
                    ("", [rank == 0, False]),
                    ("", [True] * 2),
                ):
                    codec = codec_of(spec or "topk:0.3")
                    plain = OPTIMIZERS["momentum"](model.parameters())
                    optimizer = hvd.DistributedOptimizer(plain, strategy=strategy, codec=codec)
                    own = all(kept)
                    optimizer.load_state_dict(state if own else hvd.broadcast_object(state))
                    assert bool(codec.state_dict()) == kept[rank]
            steps_of(rank, 2, model, optimizer, 4, 8)
            ends.append(values(model))
        assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))

    job(2, fn, codec="topk:0.3", store=True)


def test_half_types_later_groups_buffers_and_the_last_mean() -> None:
    def fn(rank: int) -> None:
        import farandole.torch as hvd

        first, late = (torch.nn.Parameter(torch.zeros(3, dtype=torch.bfloat16)) for _ in range(2))
        statistics, count = torch.full((2,), float(rank)), torch.tensor(rank)
        held = [torch.zeros(2), count]
        optimizer = torch.optim.SGD([first], lr=1.0)
        optimizer = hvd.DistributedOptimizer(
            optimizer, strategy=LocalSGD(2, outer="momentum", momentum=0.0), buffers=lambda: held
        )
        held[0] = statistics  # as ``model.to(device)`` gives a model other buffers
        for step in range(4):
            if step == 1:
                optimizer.add_param_group({"params": [late]})
            (first.sum() * (1 + rank)).backward()
            (late.sum() * 2 * rank).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert (first.tolist(), statistics.tolist(), count.item()) == ([-6.0] * 3, [0.5] * 2, rank)
        assert late.tolist() == [-4.0] * 3  # its gradient of the first step was not cleared
        (first.sum() * rank).backward()
        optimizer.step()
        assert first.tolist() == [-6.0 - rank] * 3
        optimizer.average_weights()
        assert first.tolist() == [-6.5] * 3

    job(2, fn)


def test_frozen_parameters_are_left_alone() -> None:
    """All are of one shape, so that what is kept of one would fit another. What has not been
    trained yet has other values on each rank with the codec.
    """
    ends = {
        "local_sgd:1": 3.0,
        "local_sgd:1 int8": 3.0,
        "bmuf:1": 3.0,
        "diloco:1": 2.34,
        "easgd:1": None,
        "gossip:complete": 3.0,
        "gossip_async:complete": 3.0,
        "ps": 3.0,
        "ps_async": -1.0,
        "ssp:1": -1.0,
        "gossip:complete int8": 3.0,
    }

    def fn(rank: int) -> list[Any]:
        import farandole.torch as hvd

        found = []
        for spec in ends:
            strategy, _, codec = spec.partition(" ")
            begin = 5.0 + (rank - 1 if codec else 0)
            frozen, first, late = (
                torch.nn.Parameter(torch.full((3,), value)) for value in (0.1 * rank, 0.0, begin)
            )
            frozen.requires_grad_(False)
            late.requires_grad_(False)
            told = [("frozen", frozen), ("first", first), ("late", late)]
            saved: dict[str, Any] = {}
            for step in range(3):
                if step in (0, 1):
                    plain = torch.optim.SGD([frozen, first, late], lr=1.0)
                    optimizer = hvd.DistributedOptimizer(
                        plain, told, strategy=strategy, codec=codec
                    )
                if step == 1:
                    file = io.BytesIO()
                    torch.save(saved, file)
                    optimizer.load_state_dict(torch.load(io.BytesIO(file.getvalue())))
                elif step == 2:
                    late.requires_grad_(True)
                    first.requires_grad_(False).copy_(torch.full((3,), 7.0 + rank))
                optimizer.zero_grad()
                ((late if step == 2 else first) * (rank + 1.0)).sum().backward()
                optimizer.step()
                saved = optimizer.state_dict()
            optimizer.average_weights()
            assert (frozen == 0.1 * rank).all(), spec
            assert first.tolist() == [7.0 + rank] * 3, spec
            found.append(late.tolist())
            kept = optimizer.state_dict()["farandole"]["slots"]
            assert all(
                [array is None for array in slot] == [True, False, False] for slot in kept
            ), spec
        return found

    rows = job(3, fn, store=True)
    for (spec, goal), late in zip(ends.items(), rows[0], strict=True):
        assert late[0] < 5 if goal is None else late == pytest.approx([goal] * 3, abs=0.02), spec
    assert rows[0] == rows[1] == rows[2]


@pytest.mark.parametrize("strategy", ["adasum", "local_sgd:1", "gossip:complete", "ps"])
def test_freezing_between_backward_and_step_is_later(strategy: str) -> None:
    """Its step was of this rank's gradient alone, and no exchange came later: ranks had other
    weights for good.
    """

    def fn(rank: int) -> list[float]:
        import farandole.torch as hvd

        body, side = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
        named = [("body", body), ("side", side)]
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([body, side], lr=0.1), named, strategy=strategy
        )
        for step in range(4):
            optimizer.zero_grad()
            ((body.sum() + (side.sum() if step < 2 else 0.0)) * (rank + 1.0)).backward()
            side.requires_grad_(step < 1)
            optimizer.step()
        return side.tolist()

    assert job(2, fn, store=True) == [pytest.approx([0.7] * 2, abs=1e-6)] * 2


def test_parameters_frozen_before_an_exchange_take_part() -> None:
    def fn(rank: int) -> None:
        import farandole.torch as hvd

        one, two = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([one, two], lr=1.0), strategy="local_sgd:2"
        )
        for step in range(4):
            optimizer.zero_grad()
            one.requires_grad_(step == 0)
            (
                sum(parameter.sum() for parameter in (one, two) if parameter.requires_grad)
                * (rank + 1.0)
            ).backward()
            optimizer.step()
            if step == 1:
                assert one.tolist() == [-1.5] * 2
                one.copy_(torch.full((2,), float(rank)))
        assert (one.tolist(), two.tolist()) == ([rank] * 2, [-6.0] * 2)
        for strategy in ("local_sgd:1", "gossip", "ps"):
            one.requires_grad_(rank == 0)
            two.requires_grad_(rank == 1)
            one.grad = two.grad = None
            told = [("one", one), ("two", two)]
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([one, two], lr=1.0), told, strategy=strategy
            )
            with pytest.raises(
                (ValueError, hvd.HorovodInternalError), match=mentioning("one", "two")
            ):
                optimizer.step()

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


def test_the_end_of_an_epoch_is_told() -> None:
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


def test_gossip_in_the_background_keeps_what_all_have_learned() -> None:
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
        text = rf"strategy.* rank {who}, .*rank [12] .*gradients"
        with pytest.raises((hvd.HorovodInternalError, ValueError), match=text):
            steps_of(rank, 3, model, optimizer, 0, 4)

    for kinds in (("local_sgd:2", "allreduce", "adasum"), ("adasum", "allreduce")):
        job(len(kinds), fn)


def test_a_broadcast_restarts_the_strategy() -> None:
    """It took the difference for a way that a rank has gone, and went back or twice as far."""
    chosen = [
        ("diloco:2", ""),
        ("bmuf:2", "topk:0.3"),
        ("local_sgd:2", "topk:0.3"),
        ("easgd:2", ""),
        ("ps:2", ""),
        ("ps_async:2", "topk:0.3"),
        ("ssp:1,every=2", ""),
        ("gossip_async:ring,every=2", ""),
        ("gossip", "topk:0.3"),
    ]

    def fn(rank: int) -> None:
        import farandole.torch as hvd

        for strategy, codec in chosen:
            ends = []
            for goes_on in (True, False):
                parameter, other = (torch.nn.Parameter(torch.arange(6.0)) for _ in range(2))
                plain = torch.optim.SGD([parameter], lr=1.0)
                optimizer = hvd.DistributedOptimizer(
                    plain, [("p", parameter)], strategy=strategy, codec=codec
                )
                for step in range(4 + 4):
                    if step == 4:
                        # not the optimizer's
                        hvd.broadcast_parameters([("other", other)], root_rank=0)
                        with torch.no_grad():
                            parameter.copy_(torch.full((6,), 100.0 * (rank + 1)))
                        hvd.broadcast_parameters([("p", parameter)], root_rank=1)
                    if goes_on or step >= 4:
                        optimizer.zero_grad()
                        (parameter * torch.arange(6.0) * (rank + 1)).sum().backward()
                        optimizer.step()
                hvd.barrier()
                optimizer.average_weights()
                ends.append(parameter.detach().clone())
            torch.testing.assert_close(*ends, msg=f"{strategy} {codec}: {ends}")

    job(2, fn, store=True, servers=1)


def test_unpushed_changes_wait_while_others_are_frozen() -> None:
    def fn(rank: int) -> None:
        import farandole.torch as hvd

        for strategy in ("ps", "ps_async"):
            one, two = (torch.nn.Parameter(torch.zeros(10)) for _ in range(2))
            named = [("two", two), ("one", one)]
            plain = torch.optim.SGD([two, one], lr=0.5)
            optimizer = hvd.DistributedOptimizer(plain, named, strategy=strategy, codec="topk:0.1")
            for step in range(8):
                if step in (3, 6) and strategy == "ps_async":
                    optimizer.average_weights()  # rank 0's weights are all that the next centre has
                two.requires_grad_(step not in (3, 4, 5))
                optimizer.zero_grad()
                (torch.arange(1.0, 11) * (rank + 1.0) * (one + two)).sum().backward()
                optimizer.step()
            hvd.barrier()
            optimizer.average_weights()
            share = 1.5 if strategy == "ps" else 3.0  # the mean of both ranks, or the sum
            torch.testing.assert_close(one.detach(), -0.5 * 8 * share * torch.arange(1.0, 11))
            torch.testing.assert_close(two.detach(), -0.5 * 5 * share * torch.arange(1.0, 11))

    job(2, fn, store=True, servers=1)


def test_parameters_frozen_at_resume_take_part_once() -> None:
    def fn(rank: int) -> None:
        import farandole.torch as hvd

        for strategy in ("local_sgd:2", "diloco:2"):
            one, two = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
            state: Any = None
            for step in range(5):
                if step in (0, 3):  # in the middle between two exchanges
                    plain = torch.optim.SGD([one, two], lr=1.0)
                    optimizer = hvd.DistributedOptimizer(plain, strategy=strategy)
                    if state is not None:
                        optimizer.load_state_dict(copy.deepcopy(state))
                        two.requires_grad_(False)
                optimizer.zero_grad()
                ((one + two).sum() * (rank + 1.0)).backward()
                optimizer.step()
                state = optimizer.state_dict()
                if step == 3:
                    assert two.tolist() == hvd.broadcast(two.detach(), 0).tolist()
                    assert strategy != "local_sgd:2" or two.tolist() == [-4.5] * 2

    job(2, fn)


@pytest.mark.parametrize(
    ("strategy", "codec"),
    [
        ("diloco:2", ""),
        ("easgd:2", ""),
        ("gossip:complete,every=2", "topk:1"),
        ("local_sgd:2", "bf16"),
    ],
)
def test_slots_stay_with_their_parameter(strategy: str, codec: str) -> None:
    """A new head, or another order in a group."""

    def fn(rank: int) -> None:
        import farandole.torch as hvd

        def vector(number: int) -> Any:
            generator = torch.Generator().manual_seed(number)
            return torch.nn.Parameter(torch.randn(3, generator=generator))

        def optimizer_of(*parameters: Any) -> Any:
            plain = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
            return hvd.DistributedOptimizer(plain, strategy=strategy, codec=codec)

        def steps(optimizer: Any) -> None:
            for step in range(4):
                optimizer.zero_grad()
                for group in optimizer.param_groups:
                    for weight in group["params"]:
                        (weight - step - 2 * rank).square().sum().backward()
                optimizer.step()

        old, stays, new, short = vector(0), vector(1), vector(2), torch.nn.Parameter(torch.ones(2))
        optimizer = optimizer_of(old, stays)
        steps(optimizer)
        for parameters in ([stays, new], [new, short, stays], [stays]):
            optimizer.param_groups[0]["params"] = parameters
            steps(optimizer)
        alone = vector(0), vector(1), vector(2)
        for wanted, times in zip(alone, (1, 4, 2), strict=True):
            optimizer = optimizer_of(wanted)
            for _ in range(times):
                steps(optimizer)
        for found, wanted in zip((old, stays, new), alone, strict=True):
            torch.testing.assert_close(found, wanted)

    job(2, fn)
