"""Strategies and parameters that are frozen, thawed, or come later."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest

from farandole.strategies.modes.local_sgd import LocalSGD
from tests.kits.messages import mentioning
from tests.run_job import job

torch = pytest.importorskip("torch", reason="torch is not installed")


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
            parameters = [("frozen", frozen), ("first", first), ("late", late)]
            saved: dict[str, Any] = {}
            for step in range(3):
                if step in (0, 1):
                    plain = torch.optim.SGD([frozen, first, late], lr=1.0)
                    optimizer = hvd.DistributedOptimizer(
                        plain, parameters, strategy=strategy, codec=codec
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
            parameters = [("one", one), ("two", two)]
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([one, two], lr=1.0), parameters, strategy=strategy
            )
            with pytest.raises(
                (ValueError, hvd.HorovodInternalError), match=mentioning("one", "two")
            ):
                optimizer.step()

    job(2, fn, store=True)


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
