"""PyTorch's gradients through codecs."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.kits.messages import mentioning, mentions
from tests.run_job import job
from tests.torch.test_optimizer import data, loss_of, net, part

torch = pytest.importorskip("torch", reason="torch is not installed")


def local_gradients(model: Any, rank: int, n: int, step: int) -> list[Any]:
    x, y = part(rank, n, *data(step))
    loss = loss_of(model, x, y, side=step % 2 == 0)
    return list(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True))


def test_the_votes_of_all_ranks_by_argument_and_by_setting() -> None:
    def fn(rank: int) -> None:
        import farandole.torch as hvd

        model = net()
        for codec in ("sign", None):
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1), codec=codec
            )
            for step in range(3):  # the piece at the side is not used in the second
                wanted = [
                    None
                    if any(each is None for each in of_ranks)
                    else torch.sign(sum(map(torch.sign, of_ranks)))
                    for of_ranks in zip(
                        *[local_gradients(model, other, 3, step) for other in range(3)], strict=True
                    )
                ]
                optimizer.zero_grad()
                loss_of(model, *part(rank, 3, *data(step)), side=step % 2 == 0).backward()
                for parameter, vote in zip(model.parameters(), wanted, strict=True):
                    assert (parameter.grad is None) == (vote is None)
                    assert vote is None or torch.equal(parameter.grad, vote)
                optimizer.step()

    job(3, fn, codec="sign", bucket_bytes=200)


@pytest.mark.parametrize("spec", ["topk:0.1", "powersgd:1"])
def test_residuals_are_sent_later_and_resume_bit_for_bit(
    spec: str,
) -> None:
    def fn(rank: int) -> tuple[list[Any], list[Any], dict[str, Any]]:
        import farandole.torch as hvd
        from farandole.strategies.codecs import codec

        model, chosen = net(), codec(spec)
        named = list(model.named_parameters())
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), named, codec=chosen
        )
        given = [torch.zeros_like(parameter) for _, parameter in named]
        came = [torch.zeros_like(parameter) for _, parameter in named]
        for step in range(5):
            if step == 3:
                state, weights = chosen.state_dict(), model.state_dict()
                kept = {name: each.clone() for name, each in weights.items()}
            for total, gradient in zip(given, local_gradients(model, rank, 2, 0), strict=True):
                total += gradient
            optimizer.zero_grad()
            loss_of(model, *part(rank, 2, *data(0))).backward()
            for total, (_, parameter) in zip(came, named, strict=True):
                total += parameter.grad
            optimizer.step()
        last = [parameter.detach().clone() for _, parameter in named]

        again, fresh = net(), codec(spec)
        again.load_state_dict(kept)
        fresh.load_state_dict(state)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(again.parameters(), lr=0.1), list(again.named_parameters()), codec=fresh
        )
        for _ in range(2):
            optimizer.zero_grad()
            loss_of(again, *part(rank, 2, *data(0))).backward()
            optimizer.step()
        assert all(map(torch.equal, last, [parameter.detach() for parameter in again.parameters()]))
        assert chosen.saved > 0 or spec == "powersgd:1"
        unsent = {
            name: torch.from_numpy(each)
            for name, each in chosen.state_dict().items()
            if name[0] == "r"
        }
        rest = [unsent[f"residual/{name}"] for name, _ in named]
        return (
            last,
            [total.sum() for total in came],
            [a.sum() - b.sum() for a, b in zip(given, rest, strict=True)],
        )

    (weights, came, mine), (others, _, theirs) = job(2, fn)
    assert all(map(torch.equal, weights, others))
    for arrived, one, two in zip(came, mine, theirs, strict=True):
        torch.testing.assert_close(arrived, (one + two) / 2, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("spec", ["int8", "onebit", "randomk:0.3", "sign:0.9"])
def test_resumed_runs_with_later_parameters_are_the_same(spec: str) -> None:
    def fn(rank: int) -> None:
        import farandole.torch as hvd

        def begun() -> Any:
            weights = [torch.nn.Parameter(torch.ones(40)), torch.nn.Parameter(torch.ones(30))]
            return weights, hvd.DistributedOptimizer(
                torch.optim.SGD(weights[:1], lr=0.1), codec=spec
            )

        def steps(weights: Any, optimizer: Any, begin: int, end: int) -> None:
            for step in range(begin, end):
                if len(optimizer.param_groups) == 1 and step >= 2:
                    optimizer.add_param_group({"params": weights[1:]})
                x = torch.randn(70, generator=torch.Generator().manual_seed(10 * step + rank))
                optimizer.zero_grad()
                (torch.cat(weights).sin() * x).sum().backward()
                optimizer.step()

        weights, optimizer = begun()
        steps(weights, optimizer, 0, 4)
        state = copy.deepcopy(([weight.detach() for weight in weights], optimizer.state_dict()))
        steps(weights, optimizer, 4, 6)
        again, resumed = begun()
        resumed.add_param_group({"params": again[1:]})
        for weight, kept in zip(again, state[0], strict=True):
            weight.data.copy_(kept)
        resumed.load_state_dict(state[1])
        steps(again, resumed, 4, 6)
        assert all(map(torch.equal, again, weights))

    job(2, fn)


@pytest.mark.parametrize("strategy", ["allreduce", "local_sgd:1", "ps"])
def test_loading_a_state_without_residuals_drops_them(strategy: str) -> None:
    """A diverged run is restored: old residuals must not be added to the first new gradients. A
    codec of the program stays unchanged.
    """

    def fn(rank: int) -> None:
        import farandole.torch as hvd
        from farandole.strategies.codecs import codec

        def steps(optimizer: Any, scale: float) -> None:
            for number in range(2):
                optimizer.zero_grad()
                (weight * torch.linspace(1, 2 + rank, 8) * (scale + number)).sum().backward()
                optimizer.step()

        for of_program in (False, True):
            ends = []
            for back in (False, True):
                weight, chosen = (
                    torch.nn.Parameter(torch.zeros(8)),
                    codec("topk:0.25") if of_program else "topk:0.25",
                )
                optimizer = hvd.DistributedOptimizer(
                    torch.optim.SGD([weight], lr=1.0), strategy=strategy, codec=chosen
                )
                before = torch.optim.SGD([weight], lr=1.0).state_dict()
                if back:
                    steps(optimizer, 1e6)
                    weight.data.zero_()
                    optimizer.load_state_dict(before)
                steps(optimizer, 1.0)
                optimizer.average_weights()
                ends.append(weight.detach().clone())
            kept = of_program and strategy != "ps"  # pushes restart with other weights
            assert torch.allclose(*ends) != kept

    job(2, fn, store=True)


@pytest.mark.parametrize("spec", ["topk:0.1", "net:topk:0.1", "onebit", "powersgd:1"])
def test_residuals_wait_while_no_rank_uses_a_parameter(spec: str) -> None:
    """A head that only some tasks use: a residual sent in steps of other tasks would meet no
    gradient, and be lost.
    """

    def fn(rank: int) -> Any:
        import farandole.torch as hvd
        from farandole.strategies.codecs import codec

        chosen, weights = codec(spec), [torch.nn.Parameter(torch.zeros(40, 30)) for _ in range(2)]
        named = list(zip("ab", weights, strict=True))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(weights, lr=0.1), named, codec=chosen)
        generator = torch.Generator().manual_seed(rank)
        missing = torch.zeros((), dtype=torch.float64)
        for step in range(9):
            optimizer.zero_grad()
            x = torch.randn(2, 40, 30, generator=generator)
            used = 2 if step % 3 == 0 else 1
            sum(
                (weight * each).sum() for weight, each in zip(weights[:used], x, strict=False)
            ).backward()
            assert (weights[1].grad is None) == (used == 1)
            missing += x[:used].double().sum() - sum(
                weight.grad.double().sum() for weight in weights[:used]
            )
            optimizer.step()
        return missing - sum(
            each.astype(float).sum()
            for name, each in chosen.state_dict().items()
            if name[0] in "ro"
        )

    assert abs(sum(job(2, fn))) < 1e-2


def test_momentum_of_an_unused_parameter_stays() -> None:
    """A head of a different task: its momentum must not decay in steps of other tasks. If one rank
    uses it, the gradients of the others are zeros.
    """

    def fn(rank: int) -> None:
        import farandole.torch as hvd

        body, head = (torch.nn.Parameter(torch.zeros(6)) for _ in range(2))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([body, head], lr=0.1), codec="sign:0.5"
        )
        votes = []
        for factor, users in (
            (8.0, 2),
            (0.0, 0),
            (0.0, 0),
            (0.0, 0),
            (-3.0, 2),
            (-3.0, 1),
            (0.0, 0),
            (4.0, 2),
        ):
            optimizer.zero_grad()
            (body.sum() + (factor * head.sum() if rank < users else 0)).backward()
            votes.append(None if head.grad is None else head.grad.tolist()[0])
            optimizer.step()
        # momentum of rank 0: 4, 0.5, -1.25, 1.375; of rank 1: 4, 0.5, 0.25, 2.125
        assert votes == [1, None, None, None, 1, 0, None, 1]

    job(2, fn)


def test_momentum_follows_the_scale_of_a_grad_scaler() -> None:
    def fn(rank: int) -> None:
        import farandole.torch as hvd

        weight = torch.nn.Parameter(torch.zeros(3))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([weight], lr=1.0), [("w", weight)], codec="sign:0.5"
        )
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=1)
        # momentum: 2, 0.25; as numbers at 64 and at 128 it would be 128, -32
        for factor in (4.0, -1.5):
            optimizer.zero_grad()
            scaler.scale(factor * weight.sum()).backward()
            assert weight.grad.tolist() == [1.0] * 3
            scaler.step(optimizer)
            scaler.update()

    job(2, fn)


@pytest.mark.parametrize("strategy", ["allreduce", "bmuf:1,lr=0.02"])
def test_a_codec_that_two_optimizers_take_turns_with_is_refused(strategy: str) -> None:
    """Their parameters may have equal names, so the residual of one would go to the other."""

    def fn(rank: int) -> None:
        import farandole.torch as hvd
        from farandole.strategies.codecs import codec

        def steps(spec: str) -> None:
            chosen = codec(spec)
            weights = [torch.zeros(8, requires_grad=True) for _ in range(2)]
            optimizers = [
                hvd.DistributedOptimizer(
                    torch.optim.SGD([weight], lr=0.1), strategy=strategy, codec=chosen
                )
                for weight in weights
            ]
            for step in range(3):
                for weight, optimizer in (
                    zip(weights, optimizers, strict=True) if step else [(weights[0], optimizers[0])]
                ):
                    weight.sum().backward()
                    optimizer.step()
                    optimizer.zero_grad()

        for spec in ("int8", "sign"):  # they keep nothing
            steps(spec)
        for spec in ("topk:0.25", "sign:0.9", "net:sign:0.9"):
            with pytest.raises(
                ValueError,
                match=mentioning(f"codec='{spec}'", f"name '{spec}"),
            ):
                steps(spec)

    job(2, fn)


@pytest.mark.parametrize(
    ("strategy", "spec"),
    [
        *((strategy, "topk:0.25") for strategy in ("allreduce", "local_sgd:1", "easgd:1", "ps")),
        ("bmuf:1,lr=0.02", "sign:0.5"),
    ],
)
def test_optimizers_may_share_a_codec_of_other_names(strategy: str, spec: str) -> None:
    """Their tensors have different names; or nothing is kept between exchanges, as with ``easgd``."""

    def fn(rank: int) -> list[Any]:
        import farandole.torch as hvd
        from farandole.strategies.codecs import codec

        names = ("same", "same") if strategy == "easgd:1" else ("one", "other")
        ends = []
        for chosen in ([codec(spec)] * 2, [codec(spec) for _ in range(2)]):
            weights = [torch.zeros(8, requires_grad=True) for _ in names]
            optimizers = [
                hvd.DistributedOptimizer(
                    torch.optim.SGD([weight], lr=0.1),
                    [(name, weight)],
                    strategy=strategy,
                    codec=each,
                )
                for name, weight, each in zip(names, weights, chosen, strict=True)
            ]
            generator = torch.Generator().manual_seed(rank)
            for _ in range(4):
                for weight, optimizer in zip(weights, optimizers, strict=True):
                    optimizer.zero_grad()
                    (weight * torch.randn(8, generator=generator)).sum().backward()
                    optimizer.step()
            ends.append([weight.detach().clone() for weight in weights])
        return ends

    for shared, own in job(2, fn, store=True):
        assert all(map(torch.equal, shared, own))


def test_a_codec_that_cannot_be_or_that_other_ranks_do_not_have() -> None:
    def fn(rank: int) -> str:
        import farandole.torch as hvd

        model = net()

        def distributed(**options: Any) -> Any:
            return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), **options)

        with pytest.raises(ValueError, match=mentioning("inT8", "int8")):
            distributed(codec="inT8")
        with pytest.raises(ValueError, match=mentioning("codec='int8'")):
            distributed(codec="int8", compression=hvd.Compression.fp16)
        with pytest.raises(ValueError, match=mentioning("codec='int8'", "Adasum")):
            distributed(codec="int8", op=hvd.Adasum)
        distributed(codec="int8", op=hvd.Sum)
        optimizer = distributed(codec="int8" if rank else "")
        with pytest.raises(hvd.HorovodInternalError) as error:
            loss_of(model, *part(rank, 2, *data())).backward()
        assert optimizer is not None
        return str(error.value)

    errors = job(2, fn)
    assert errors[0] == errors[1]
    assert mentions(errors[0], "Mismatched", "rank 0", "rank 1", "'int8'")


@pytest.mark.parametrize(
    "spec", ["topk:0.1", "onebit", "powersgd:1", "randomk:0.1", "threshold:0.1"]
)
def test_residuals_follow_the_scale_of_a_grad_scaler(spec: str) -> None:
    """Results plus residuals equal the inputs in true units, also if the scale changes, if a step
    is skipped for an infinite gradient (with the loss of that step), and if a run is resumed. No
    infinity is kept.
    """

    def fn(rank: int) -> None:
        import farandole.torch as hvd
        from farandole.strategies.codecs import codec

        parameter = torch.nn.Parameter(torch.zeros(40, 30))
        inputs = torch.randn(8, 40, 30, generator=torch.Generator().manual_seed(rank)) * 2.0**-6
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
        given, came, scales = torch.zeros(40, 30), torch.zeros(40, 30), []
        optimizer: Any = None
        for step in range(8):
            if step in (0, 5):
                chosen, states = (
                    codec(spec),
                    (optimizer and optimizer.state_dict(), scaler.state_dict()),
                )
                plain = torch.optim.SGD([parameter], lr=1.0)
                optimizer = hvd.DistributedOptimizer(plain, [("p", parameter)], codec=chosen)
                if step:
                    scaler = torch.amp.GradScaler("cpu")
                    optimizer.load_state_dict(states[0])
                    scaler.load_state_dict(states[1])
            optimizer.zero_grad()
            factor = float("inf") if step == 3 and rank == 1 else 1.0
            scaler.scale((parameter * inputs[step] * factor).sum()).backward()
            scale = scaler.get_scale()
            if step == 3:
                given, came = torch.zeros(40, 30), torch.zeros(40, 30)
                kept = {name: array.copy() for name, array in chosen.state_dict().items()}
                begun = unsent(kept, parameter) / scale
            else:
                given += inputs[step]
                came += parameter.grad / scale
            scales.append(scale)
            scaler.step(optimizer)
            scaler.update()
            if step >= 3:
                state = {
                    name: array.numpy()
                    for name, array in optimizer.state_dict()["farandole"]["codec"]["state"].items()
                }
                left = unsent(state, parameter) / scaler.get_scale()
                assert torch.isfinite(left).all()
                both = hvd.allreduce(torch.stack([given + begun, left]), op=hvd.Average)
                torch.testing.assert_close(both[0], came + both[1], rtol=1e-4, atol=1e-6)
        assert scales == [64.0, 64.0, 128.0, 128.0, 64.0, 64.0, 128.0, 128.0]

    job(2, fn)


def unsent(state: Any, parameter: Any) -> Any:
    """Return the residual of ``p``."""
    left = torch.from_numpy(state["residual/p"].copy())
    if "owed/p" in state:
        begin = int(state["at/p"][0])
        left[begin : begin + len(state["owed/p"])] += torch.from_numpy(state["owed/p"])
    return left.reshape(parameter.shape)


@pytest.mark.parametrize(
    ("spec", "op"), [("fp16", "Average"), ("fp16", "Sum"), ("sign", "Average")]
)
def test_late_gradients_are_encoded_once(spec: str, op: str) -> None:
    """The first gradient of a parameter that was frozen or added, or that only a second loss uses."""

    def fn(rank: int) -> None:
        import farandole.torch as hvd

        first, late, other, added = (torch.nn.Parameter(torch.zeros(2)) for _ in range(4))
        late.requires_grad_(False)
        one, two = torch.tensor([1 / 3, 1 / 7]), torch.tensor([1 / 9, 1 / 5])
        sent = [
            torch.sign(values) if spec == "sign" else values.half().float() for values in (one, two)
        ]
        factor = 1 if op == "Average" else 2
        named = [("first", first), ("late", late), ("other", other)]
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([first, late, other], lr=1.0), named, codec=spec, op=getattr(hvd, op)
        )
        for _ in range(2):
            optimizer.zero_grad()
            (first * one).sum().backward()
            optimizer.step()
        late.requires_grad_(True)
        optimizer.add_param_group({"params": [added]})
        for parameter in (first, late, other, added):
            parameter.data.zero_()
        optimizer.zero_grad()
        (late * one + added * two).sum().backward()
        assert torch.equal(late.grad, factor * sent[0])
        assert torch.equal(added.grad, factor * sent[1])
        (other * two).sum().backward()  # a second loss
        assert torch.equal(other.grad, factor * sent[1])
        assert torch.equal(late.grad, factor * sent[0])
        optimizer.step()
        for parameter, wanted in ((late, sent[0]), (added, sent[1]), (other, sent[1])):
            assert torch.equal(parameter.data, -factor * wanted)

    job(2, fn)
