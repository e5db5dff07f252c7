"""What ranks start from: parameters, optimizer state, objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.kits.messages import mentioning, mentions
from tests.run_job import job

torch = pytest.importorskip("torch", reason="torch is not installed")


def test_broadcast_parameters() -> None:
    def check(rank: int) -> Any:
        import farandole.torch as hvd

        torch.manual_seed(rank)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(2, 2, 3).to(memory_format=torch.channels_last), torch.nn.BatchNorm2d(2)
        )
        model[1].num_batches_tracked += rank
        hvd.broadcast_parameters(model.state_dict(), root_rank=1)
        halves = [
            ("half", torch.full((2, 2), float(rank)).bfloat16()),
            ("flag", torch.tensor(rank == 1)),
        ]
        hvd.broadcast_parameters(halves, 1)
        hvd.broadcast_parameters(model.named_parameters(), 0)
        hvd.broadcast_parameters({}, 0)
        return [*model.state_dict().values(), *(tensor for _, tensor in halves)]

    one, other = job(2, check)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert (other[-1].item(), other[-2].float().sum().item()) == (True, 4.0)
    torch.manual_seed(1)
    assert torch.equal(one[0], torch.nn.Conv2d(2, 2, 3).weight)


def test_ranks_with_other_names_do_not_wait_for_each_other() -> None:
    def check(rank: int) -> str:
        import farandole.torch as hvd

        with pytest.raises(ValueError) as caught:
            hvd.broadcast_parameters({"ab"[rank]: torch.ones(2), "c": torch.ones(1)}, 0)
        return str(caught.value)

    for text in job(2, check):
        assert mentions(text, "'a'", "rank 0", "'b'", "rank 1")


def test_extra_state_of_modules_that_differs_is_found() -> None:
    def check(rank: int) -> list[tuple[str, str]]:
        import farandole.torch as hvd
        from farandole.checks import findings

        class Scaler:
            def __init__(self, *data: float) -> None:
                self.mean, self.seen = sum(data) / len(data), {str(one) for one in data}

        class Scaled(torch.nn.Linear):
            scaler: Any

            def get_extra_state(self) -> Any:
                return self.scaler

            def set_extra_state(self, state: Any) -> None:
                self.scaler = state

        model = torch.nn.ModuleDict({"a": Scaled(2, 1), "b": Scaled(2, 1)})
        model["a"].scaler = Scaler(3.0 + rank, 5.0)
        model["b"].scaler = Scaler(*[1.0, 2.0][:: -1 if rank else 1])  # equal on all ranks
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        found = [(one.code, one.text) for one in findings() if one.code == "FAR026"]
        model.load_state_dict(hvd.broadcast_object(model.state_dict(), root_rank=0))
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        assert [one.code for one in findings()].count("FAR026") == len(found)
        assert model["a"].scaler.mean == 4.0
        return found

    for found in job(2, check, check="warn"):
        assert [code for code, _ in found] == ["FAR026"], found
        assert mentions(found[0][1], "'a'", "rank 1", "rank 0")


def test_pairs_may_come_in_another_order_on_each_rank() -> None:
    def check(rank: int) -> list[Any]:
        import farandole.torch as hvd

        pairs = [("a", torch.full((2,), 1.0 + rank)), ("b", torch.full((2,), 10.0 + rank))]
        hvd.broadcast_parameters(pairs[:: -1 if rank else 1], 0)
        return [tensor.tolist() for _, tensor in pairs]

    assert job(2, check) == [[[1.0, 1.0], [10.0, 10.0]]] * 2


# one can iterate over it, and finds no tensor
SEQUENCE = torch.nn.Sequential(torch.nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("params", "text"),
    [
        *[(params, ("params", "type")) for params in (3, "weight", torch.ones(2), None, SEQUENCE)],
        (
            {"epoch": 3, "model": SEQUENCE.state_dict()},
            ("'model'", "OrderedDict"),
        ),
        ([("a", torch.ones(1)), ("model", SEQUENCE)], ("'model'", "Sequential")),
        (SEQUENCE.children(), ("'0'", "Linear")),
    ],
    ids=["int", "str", "tensor", "none", "module", "checkpoint", "pairs", "children"],
)
def test_parameters_that_are_none(params: Any, text: str | tuple[str, ...]) -> None:
    import farandole.torch as hvd

    hvd.init()
    try:
        with pytest.raises(ValueError, match=mentioning(text)):
            hvd.broadcast_parameters(params, 0)
        hvd.broadcast_parameters({"layer._extra_state": {}, "layer.w": torch.ones(1)}, 0)
        with pytest.raises(TypeError, match=mentioning("broadcast_optimizer_state")):
            hvd.broadcast_optimizer_state({"state": {}}, 0)
    finally:
        hvd.shutdown()


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "adam": lambda params: torch.optim.Adam(params, lr=0.1, amsgrad=True),
    "adam with a tensor as rate": lambda params: torch.optim.Adam(params, lr=torch.tensor(0.1)),
    "adamw": lambda params: torch.optim.AdamW(params),
    "nadam": lambda params: torch.optim.NAdam(params),
    "radam": lambda params: torch.optim.RAdam(params),
    "adamax": lambda params: torch.optim.Adamax(params),
    "adagrad": lambda params: torch.optim.Adagrad(params),
    "adadelta": lambda params: torch.optim.Adadelta(params),
    "rmsprop": lambda params: torch.optim.RMSprop(params, momentum=0.5, centered=True),
    "rprop": lambda params: torch.optim.Rprop(params),
    "asgd": lambda params: torch.optim.ASGD(params),
    "adafactor": lambda params: torch.optim.Adafactor(params),
    "lbfgs": lambda params: torch.optim.LBFGS(params, max_iter=3),
}


def stepped(make: Callable[[Any], Any], rank: int, steps: int) -> tuple[Any, Any]:
    torch.manual_seed(rank)
    model = torch.nn.Linear(3, 2).double()
    optimizer = make(model.parameters())
    for group in optimizer.param_groups:
        if isinstance(group["lr"], float):
            group["lr"] *= rank + 1
    x = torch.randn(4, 3).double()

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)
    return model, optimizer


def flat(tree: Any) -> list[Any]:
    """The leaves of a state dict, in order."""
    if isinstance(tree, dict):
        return [leaf for key in tree for leaf in (key, *flat(tree[key]))]
    if isinstance(tree, (list, tuple)):
        return [leaf for each in tree for leaf in flat(each)]
    return [tree]


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)


def test_complex_tensors_are_broadcast() -> None:
    """Parameters, some of them transposed, and the moments of an optimizer that has stepped on rank
    0 alone.
    """

    def check(rank: int) -> Any:
        import farandole.torch as hvd

        torch.manual_seed(rank)
        model = torch.nn.ParameterList(
            [torch.randn(2, 3, dtype=torch.complex64), torch.randn(3, 2, dtype=torch.complex128).T]
        )
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        if rank == 0:
            sum(weights.abs().sum() for weights in model).backward()
            optimizer.step()
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        moments = [optimizer.state[weights]["exp_avg"] for weights in model]
        return [tensor.detach().contiguous() for tensor in (*model, *moments)]

    first, second = job(2, check)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(tensor.is_complex() for tensor in second)


@pytest.mark.parametrize("steps", [(2, 2), (2, 0), (0, 2), (3, 1)])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_broadcast_optimizer_state(name: str, steps: tuple[int, int]) -> None:
    """Rank 1 gets what rank 0 has, and goes on exactly like it."""
    make = OPTIMIZERS[name]

    def check(rank: int) -> Any:
        import farandole.torch as hvd

        model, optimizer = stepped(make, rank, steps[rank])
        before = flat(optimizer.state_dict()) if rank == 0 else None
        if rank == 0:
            before = [each.clone() if isinstance(each, torch.Tensor) else each for each in before]
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        state = [
            each.clone() if isinstance(each, torch.Tensor) else each
            for each in flat(optimizer.state_dict())
        ]
        optimizer.zero_grad()
        model(torch.ones(1, 3).double()).sum().backward()
        if name != "lbfgs":
            optimizer.step()
        return before, state, [parameter.detach() for parameter in model.parameters()]

    (before, state, values), (_, other_state, other_values) = job(2, check)
    assert all(alike(a, b) for a, b in zip(before, state, strict=True))
    assert all(alike(a, b) for a, b in zip(state, other_state, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(values, other_values, strict=True))


def test_state_lies_in_memory_as_its_parameter_does() -> None:
    """Fused optimizers go through both in the order of memory, and do not look whether it is the
    same.
    """

    def check(rank: int) -> Any:
        import farandole.torch as hvd

        torch.manual_seed(0)
        model = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=True)
        x = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(1))
        for step in range(3):
            if step == 1:
                hvd.broadcast_parameters(model.state_dict(), 0)
                hvd.broadcast_optimizer_state(optimizer, 0)
            if step or rank == 0:
                optimizer.zero_grad()
                model(x).square().sum().backward()
                optimizer.step()
        assert optimizer.state[model.weight]["exp_avg"].stride() == model.weight.stride()
        return [parameter.detach() for parameter in model.parameters()]

    one, other = job(2, check)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_broadcast_state_of_a_distributed_optimizer() -> None:
    def check(rank: int) -> Any:
        import farandole.torch as hvd

        model, optimizer = stepped(OPTIMIZERS["momentum"], rank, 2 if rank == 0 else 0)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        hvd.broadcast_optimizer_state(optimizer, 0)
        hvd.broadcast_parameters(model.state_dict(), 0)
        optimizer.zero_grad()
        model(torch.ones(1, 3).double() * rank).sum().backward()
        optimizer.step()
        scheduler.step()
        return [parameter.detach() for parameter in model.parameters()], optimizer.param_groups[0][
            "lr"
        ]

    (one, rate), (other, other_rate) = job(2, check)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert rate == other_rate == 0.05


def test_an_optimizer_without_state_finds_gradients_of_zero() -> None:
    def check(rank: int) -> None:
        import farandole.torch as hvd

        frozen, mine, seen = (
            torch.nn.Parameter(torch.ones(2), requires_grad=number > 0) for number in range(3)
        )
        seen.grad = torch.ones(2)
        hvd.broadcast_optimizer_state(torch.optim.SGD([frozen, mine, seen], lr=0.1), 0)
        assert frozen.grad is None
        assert mine.grad.tolist() == [0, 0]
        assert seen.grad.tolist() == [1, 1]

    job(2, check)


def test_objects() -> None:
    def check(rank: int) -> Any:
        import farandole.torch as hvd

        factor = rank + 2
        function = hvd.broadcast_object(lambda x: x * factor, root_rank=1)
        assert function(10) == 30
        assert hvd.broadcast_object(None if rank else {"epoch": 3}, 0, name="resume") == {
            "epoch": 3
        }
        assert hvd.allgather_object(["x"] * rank) == [[], ["x"]]
        assert hvd.allgather_object(torch.full((rank,), 1.0), name="t")[1].tolist() == [1.0]

    job(2, check)
