"""One rank with batch B and n ranks with B/n take the same steps, for any use of the optimizer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from tests.run_job import job

torch = pytest.importorskip("torch", reason="torch is not installed")

STEPS = 4
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1),
    "momentum": lambda params: torch.optim.SGD(
        params, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01
    ),
    "adam": lambda params: torch.optim.Adam(params, lr=0.01),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01, weight_decay=0.1, foreach=True),
    "fused": lambda params: torch.optim.Adam(params, lr=0.01, fused=True),
}


class Net(torch.nn.Module):
    """A small net, with a part that some inputs do not use and a convolution in channels_last."""

    def __init__(self, dtype: Any = torch.float32) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(2, 3, 3, padding=1, dtype=dtype).to(
            memory_format=torch.channels_last
        )
        self.side = torch.nn.Linear(5, 5, dtype=dtype)
        self.body = torch.nn.Sequential(
            torch.nn.Linear(3 * 4 * 4, 5, dtype=dtype),
            torch.nn.Tanh(),
            torch.nn.Linear(5, 2, dtype=dtype),
        )

    def forward(self, x: Any, side: bool = True) -> Any:
        h = self.conv(x.to(memory_format=torch.channels_last)).flatten(1)
        h = self.body[1](self.body[0](h))
        return self.body[2](h + self.side(h) if side else h)


def net(dtype: Any = torch.float32) -> Any:
    torch.manual_seed(1)
    return Net(dtype)


def data(step: int = 0, dtype: Any = torch.float32, rows: int = 12) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(100 + step)
    return (
        torch.randn(rows, 2, 4, 4, generator=generator).to(dtype),
        torch.randn(rows, 2, generator=generator).to(dtype),
    )


def part(rank: int, n: int, *tensors: Any) -> Any:
    return tuple(tensor.chunk(n)[rank] for tensor in tensors)


def loss_of(model: Any, x: Any, y: Any, **options: Any) -> Any:
    return torch.nn.functional.mse_loss(model(x, **options), y)


def values(model: Any) -> list[Any]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def assert_close(found: list[Any], wanted: list[Any], tolerance: float = 1e-6) -> None:
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def assert_all_close(results: list[list[Any]], wanted: list[Any], tolerance: float = 1e-6) -> None:
    for result in results:
        assert_close(result, wanted, tolerance)
    for result in results[1:]:  # and the same bits on all ranks
        assert all(torch.equal(one, other) for one, other in zip(result, results[0], strict=True))


def alone(make: Callable[[Any], Any], steps: int = STEPS) -> list[Any]:
    """Return the result of one rank with the whole batch."""
    model = net()
    optimizer = make(model.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, *data(step)).backward()
        optimizer.step()
    return values(model)


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_n_ranks_are_one(name: str, n: int) -> None:
    make = OPTIMIZERS[name]

    def train(rank: int) -> Any:
        import farandole.torch as hvd

        model = net()
        optimizer = hvd.DistributedOptimizer(
            make(model.parameters()), named_parameters=model.named_parameters()
        )
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, *part(rank, n, *data(step))).backward()
            optimizer.step()
        return values(model)

    assert_all_close(job(n, train), alone(make))


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"groups": 2},
        {"num_groups": 3},
        {"gradient_predivide_factor": 2.0},
        {"groups": "body"},
        {"compression": "none"},
    ],
    ids=str,
)
def test_variants_of_wrapping(options: dict[str, Any], to_none: bool) -> None:
    make = OPTIMIZERS["momentum"]

    def train(rank: int) -> Any:
        import warnings

        import farandole.torch as hvd

        model = net()
        chosen = dict(options)
        if chosen.get("groups") == "body":
            chosen["groups"] = [list(model.body.parameters()), [model.conv.weight]]
        if "compression" in chosen:
            chosen["compression"] = hvd.Compression.none
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            optimizer = hvd.DistributedOptimizer(make(model.parameters()), **chosen)
        for step in range(STEPS):
            optimizer.zero_grad(set_to_none=to_none)
            loss_of(model, *part(rank, 2, *data(step))).backward()
            optimizer.step()
        return values(model)

    assert_all_close(job(2, train, bucket_bytes=256), alone(make))


def test_over_tcp() -> None:
    make = OPTIMIZERS["momentum"]

    def train(rank: int) -> Any:
        import farandole.torch as hvd

        model = net()
        optimizer = hvd.DistributedOptimizer(make(model.parameters()))
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, *part(rank, 2, *data(step))).backward()
            optimizer.step()
        return values(model)

    assert_all_close(job(2, train, wire="tcp", bucket_bytes=256), alone(make))


def test_gradients_are_views_of_buckets_from_the_second_step_on() -> None:
    def train(rank: int) -> Any:
        import farandole.torch as hvd

        model = net()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        places = []
        for step in range(3):
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            loss_of(model, *part(rank, 2, *data(step))).backward()
            places.append(
                sorted((each.grad.data_ptr(), each.grad.nbytes) for each in model.parameters())
            )
            assert model.conv.weight.grad.stride() == model.conv.weight.stride()
            optimizer.step()
        return [
            all(
                0 <= following - place - size < 64
                for (place, size), (following, _) in pairwise(each)
            )
            for each in places
        ], places[1] == places[2]

    assert job(2, train) == [([False, True, True], True)] * 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_may_be_detached_in_place_as_old_zero_grads_do(dtype: str) -> None:
    def train(rank: int) -> Any:
        import farandole.torch as hvd

        model = torch.nn.Linear(3, 2).to(getattr(torch, dtype))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(4):
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.detach_()
                    parameter.grad.zero_()
            model(torch.ones(1, 3, dtype=model.weight.dtype)).sum().backward()
            optimizer.step()
        return [parameter.grad.mean().item() for parameter in model.parameters()]

    assert job(2, train) == [[1.0, 1.0]] * 2


def _give_other_memory(model: Any) -> None:
    for parameter in model.parameters():
        parameter.grad.data = parameter.grad.data.clone()


CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "there and back": lambda model: model.double().float(),
    "layout": lambda model: model.to(memory_format=torch.contiguous_format),
    "shared": lambda model: model.share_memory(),
    "gradients": _give_other_memory,
}


def test_a_model_converted_between_steps_trains_on() -> None:
    """``model.to(...)`` replaces the memory of tensors, also of gradients that were views of
    buckets.
    """

    def train(rank: int) -> Any:
        import farandole.torch as hvd

        results = []
        for number, convert in enumerate(CONVERSIONS.values()):
            model = net()
            optimizer = hvd.DistributedOptimizer(OPTIMIZERS["momentum"](model.parameters()))
            for step in range(STEPS):
                # the layout of one rank does not concern others
                if step == 2 or (step == 3 and rank == 0):
                    convert(model)
                optimizer.zero_grad(set_to_none=number % 2 == step % 2)
                loss_of(model, *part(rank, 2, *data(step))).backward()
                assert model.conv.weight.grad.stride() == model.conv.weight.stride()
                optimizer.step()
            results.append(values(model))
        return results

    wanted = alone(OPTIMIZERS["momentum"])
    for results in zip(*job(2, train), strict=True):
        assert_all_close(list(results), wanted)


def test_gradients_with_their_negative_bit_set() -> None:
    """numpy cannot read such tensors."""

    def fn(rank: int) -> list[float]:
        import farandole.torch as hvd

        weight = torch.nn.Parameter(torch.zeros(3))
        weight.register_hook(lambda gradient: torch._neg_view(gradient))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0))
        for _ in range(3):
            optimizer.zero_grad()
            (weight * (rank + 1)).sum().backward()
            optimizer.step()
        return list(weight.tolist())

    assert job(2, fn) == [[4.5] * 3] * 2


def test_gradients_are_final_when_backward_returns() -> None:
    model = net()
    loss_of(model, *data()).backward()
    wanted = [parameter.grad for parameter in model.parameters()]

    def gradients(rank: int) -> Any:
        import farandole.torch as hvd

        model = net()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0))
        found = []
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(model, *part(rank, 2, *data())).backward()
            found.append([parameter.grad.clone() for parameter in model.parameters()])
            optimizer.step()
        return found

    for found in job(2, gradients):
        for each in found:
            assert_close(each, wanted)


def test_sum() -> None:
    def train(rank: int) -> Any:
        import farandole.torch as hvd

        model = net()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.05), op=hvd.Sum
        )
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, *part(rank, 2, *data(step))).backward()
            optimizer.step()
        return values(model)

    assert_all_close(job(2, train), alone(OPTIMIZERS["sgd"]))


@pytest.mark.parametrize("compression", ["fp16", "bf16", "own"])
def test_compression(compression: str) -> None:
    make = OPTIMIZERS["sgd"]

    def train(rank: int) -> Any:
        import farandole.torch as hvd

        class Doubled(hvd.Compression.Compressor):
            @staticmethod
            def compress(tensor: Any) -> Any:
                return tensor.double(), tensor.dtype

            @staticmethod
            def decompress(tensor: Any, ctx: Any) -> Any:
                return tensor.to(ctx)

        chosen = Doubled if compression == "own" else getattr(hvd.Compression, compression)
        model = net()
        optimizer = hvd.DistributedOptimizer(make(model.parameters()), compression=chosen)
        for step in range(STEPS):
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            loss_of(model, *part(rank, 2, *data(step))).backward()
            assert all(parameter.grad.dtype == torch.float32 for parameter in model.parameters())
            optimizer.step()
        return values(model)

    tolerance = {"fp16": 2e-3, "bf16": 2e-2, "own": 1e-6}[compression]
    assert_all_close(job(2, train), alone(make), tolerance)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_other_types(dtype: str) -> None:
    kind = getattr(torch, dtype)
    model = net(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        loss_of(model, *data(step, kind)).backward()
        optimizer.step()

    def train(rank: int) -> Any:
        import farandole.torch as hvd

        model = net(kind)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for step in range(2):
            optimizer.zero_grad()
            loss_of(model, *part(rank, 2, *data(step, kind))).backward()
            optimizer.step()
        return values(model)

    assert_all_close(job(2, train), values(model), 1e-12 if dtype == "float64" else 3e-2)


def test_mixed_types_scalars_and_empty_parameters_in_one_model() -> None:
    def build() -> Any:
        model = net()
        model.extra = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
        model.number = torch.nn.Parameter(torch.tensor(2.0))
        model.nothing = torch.nn.Parameter(torch.ones(0, 2))
        return model

    def loss(model: Any, x: Any, y: Any) -> Any:
        return (
            loss_of(model, x, y)
            + (model.extra * y.double().mean()).sum()
            + model.number**2
            + model.nothing.sum()
        )

    def run(rank: int, n: int, wrap: Callable[[Any], Any]) -> Any:
        model = build()
        optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1))
        for step in range(3):
            optimizer.zero_grad()
            loss(model, *part(rank, n, *data(step))).backward()
            optimizer.step()
        return values(model)

    def train(rank: int) -> Any:
        import farandole.torch as hvd

        return run(rank, 2, hvd.DistributedOptimizer)

    assert_all_close(job(2, train), run(0, 1, lambda optimizer: optimizer))


@pytest.mark.parametrize("op", ["Average", "Sum"])
@pytest.mark.parametrize("to_none", [True, False])
def test_accumulation(to_none: bool, op: str) -> None:
    """3 passes of a third each, with a later change to 1 pass."""
    scale = 1 if op == "Average" else 2

    def train(rank: int) -> Any:
        import farandole.torch as hvd

        model = net()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1 / scale, momentum=0.5),
            backward_passes_per_step=3,
            op=getattr(hvd, op),
        )
        for step in range(STEPS):
            optimizer.zero_grad(set_to_none=to_none)
            if step == 2:
                optimizer.set_backward_passes_per_step(1)
            x, y = part(rank, 2, *data(step))
            if step < 2:
                for each_x, each_y in zip(x.chunk(3), y.chunk(3), strict=True):
                    (loss_of(model, each_x, each_y) / 3).backward()
            else:
                loss_of(model, x, y).backward()
            optimizer.step()
        return values(model)

    assert_all_close(
        job(2, train), alone(lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.5))
    )


def test_fewer_passes_than_announced() -> None:
    def train(rank: int) -> Any:
        import farandole.torch as hvd

        model = net()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), backward_passes_per_step=2
        )
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, *part(rank, 2, *data(step))).backward()
            optimizer.step()
        return values(model)

    assert_all_close(job(2, train), alone(OPTIMIZERS["sgd"]))


def test_one_rank_passes_through() -> None:
    import farandole.torch as hvd

    hvd.init()
    try:
        make = OPTIMIZERS["momentum"]
        model = net()
        optimizer = hvd.DistributedOptimizer(make(model.parameters()), backward_passes_per_step=2)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, *data(step)).backward()
            optimizer.synchronize()
            with optimizer.skip_synchronize():
                optimizer.step()
        optimizer.set_backward_passes_per_step(1)
        assert all(not parameter._post_accumulate_grad_hooks for parameter in model.parameters())
        assert_close(values(model), alone(make), 0.0)
    finally:
        hvd.shutdown()


def test_copies_are_independent() -> None:
    """A model and its optimizer may be copied; the copy is not distributed."""

    def train(rank: int) -> Any:
        import pickle

        import farandole.torch as hvd

        model = net()
        optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.01))
        loss_of(model, *part(rank, 2, *data())).backward()
        optimizer.step()
        other, plain = copy.deepcopy((model, optimizer))
        restored = pickle.loads(pickle.dumps(optimizer))
        assert type(plain) is type(restored) is torch.optim.Adam
        assert type(copy.copy(optimizer)) is torch.optim.Adam
        assert plain.param_groups[0]["params"][0] is next(other.parameters())
        assert restored.state_dict()["state"].keys() == optimizer.state_dict()["state"].keys()
        before = values(model)
        plain.zero_grad()
        loss_of(other, *data(1)).backward()
        plain.step()
        return all(torch.equal(one, two) for one, two in zip(before, values(model), strict=True))

    assert job(2, train) == [True, True]


@pytest.mark.parametrize("op", ["average", "sum"])
def test_parameters_that_are_replaced_or_added_are_exchanged(op: str) -> None:
    """The same number of parameters, one of them replaced. An added parameter gets a place in a
    bucket.
    """

    def fn(rank: int) -> None:
        import farandole.torch as hvd

        one, two, late = (torch.nn.Parameter(torch.zeros(3, 2).t()) for _ in range(3))
        plain = torch.optim.SGD([one, two], lr=1.0)
        optimizer = hvd.DistributedOptimizer(plain, op=hvd.Average if op == "average" else hvd.Sum)
        share, made = 0.5 if op == "average" else 1.0, 0.0
        for step in range(5):
            # before the gradients are thrown away, so this step finds it; later ones in zero_grad
            if step == 2:
                optimizer.zero_grad()
                two = torch.nn.Parameter(torch.zeros(4))
                plain.param_groups[0]["params"][1] = two
                made = 0.0
            elif step == 3:
                optimizer.add_param_group({"params": [late]})
            if step != 2:
                optimizer.zero_grad()
            (one.sum() + two.sum() + (late.sum() if step > 2 else 0.0)).mul(
                1.0 + 2 * rank
            ).backward()
            optimizer.step()
            made -= 4.0 * share
            assert two.tolist() == torch.full_like(two, made).tolist(), step
            assert torch.equal(one, torch.full_like(one, -4.0 * share * (step + 1))), step
        assert torch.equal(late, torch.full_like(late, -8.0 * share))
        addresses = [each.grad.data_ptr() for each in (one, two, late)]
        optimizer.zero_grad()
        (one.sum() + two.sum() + late.sum()).backward()
        assert [each.grad.data_ptr() for each in (one, two, late)] == addresses, (
            "they are where buckets are"
        )

    job(2, fn)


def test_a_closure_whose_loss_is_a_number_keeps_its_digits() -> None:
    def fn(rank: int) -> None:
        import farandole.torch as hvd

        parameter = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=0.1))

        def closure() -> float:
            optimizer.zero_grad()
            parameter.sum().backward()
            return 1.0 + 1e-12 * (1 + rank)

        assert optimizer.step(closure) == pytest.approx(1.0 + 1.5e-12, abs=1e-15)

    job(2, fn)
