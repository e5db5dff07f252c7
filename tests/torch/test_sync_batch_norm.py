"""SyncBatchNorm on n ranks is BatchNorm on one rank with the whole batch: outputs, statistics and
all gradients.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.kits.messages import mentioning
from tests.run_job import job

torch = pytest.importorskip("torch", reason="torch is not installed")

SHAPES = {"1d": (11, 3), "signals": (11, 3, 5), "2d": (11, 3, 4, 2), "3d": (11, 3, 2, 2, 2)}
PLAIN = {
    2: torch.nn.BatchNorm1d,
    3: torch.nn.BatchNorm1d,
    4: torch.nn.BatchNorm2d,
    5: torch.nn.BatchNorm3d,
}
CUTS = {2: [4, 7], 3: [5, 0, 6]}  # uneven; a rank may have nothing


def batch(shape: tuple[int, ...], step: int, dtype: Any) -> Any:
    generator = torch.Generator().manual_seed(step)
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * 2 + 3).to(dtype)


def layer(kind: Any, options: dict[str, Any], dtype: Any) -> Any:
    made = kind(3, **options).to(dtype)
    if made.affine:
        with torch.no_grad():
            made.weight.copy_(torch.tensor([0.5, 2.0, -1.0]))
            made.bias.copy_(torch.tensor([1.0, 0.0, 3.0]))
    return made


def passes(module: Any, shape: tuple[int, ...], dtype: Any, cut: Any) -> list[Any]:
    """Three steps' outputs and gradients of ``cut`` of the batch."""
    seen = []
    for step in range(3):
        whole = batch(shape, step, dtype)
        x = cut(whole).clone().requires_grad_()
        y = module(x)
        (y * cut(batch(shape, 50 + step, dtype))).sum().backward()
        seen += [y.detach(), x.grad]
    seen += [module.weight.grad, module.bias.grad] if module.affine else []
    if module.track_running_stats:
        seen += [module.running_mean, module.running_var, module.num_batches_tracked]
    return [each.clone() for each in seen]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"affine": False},
        {"track_running_stats": False},
        {"momentum": None},
        {"eps": 0.1, "momentum": 0.3},
    ],
    ids=str,
)
@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_like_one_process_with_the_whole_batch(
    shape: tuple[int, ...], n: int, options: dict[str, Any]
) -> None:
    dtype = torch.float64

    def fn(rank: int) -> Any:
        import farandole.torch as hvd

        module = layer(hvd.SyncBatchNorm, options, dtype)
        return passes(module, shape, dtype, lambda whole: whole.split(CUTS[n])[rank])

    results = job(n, fn)
    module = layer(PLAIN[len(shape)], options, dtype)
    wanted = passes(module, shape, dtype, lambda whole: whole)
    for index in range(6):
        found = torch.cat([result[index] for result in results])
        torch.testing.assert_close(found, wanted[index], rtol=1e-9, atol=1e-9)
    if module.affine:  # every rank has its part of these
        for index in (6, 7):
            torch.testing.assert_close(
                sum(result[index] for result in results), wanted[index], rtol=1e-9, atol=1e-9
            )
    for index in range(8 if module.affine else 6, len(wanted)):
        for result in results:
            torch.testing.assert_close(result[index], wanted[index], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_other_types_and_mixed_ones(dtype: str) -> None:
    kind = getattr(torch, dtype)

    def fn(rank: int) -> Any:
        import farandole.torch as hvd

        # parameters in float32, as autocast has them
        mixed = layer(hvd.SyncBatchNorm, {}, torch.float32)
        return passes(mixed, (11, 3, 4), kind, lambda whole: whole.split([4, 7])[rank])

    results = job(2, fn)
    wanted = passes(
        layer(torch.nn.BatchNorm1d, {}, torch.float64),
        (11, 3, 4),
        torch.float64,
        lambda whole: whole.to(kind).double(),
    )
    tolerance = 1e-4 if dtype == "float32" else 0.1
    for index in range(6):
        found = torch.cat([result[index] for result in results])
        assert found.dtype == kind
        torch.testing.assert_close(found.double(), wanted[index], rtol=tolerance, atol=tolerance)


def test_models_are_converted_and_train_equally() -> None:
    def model_of() -> Any:
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 3),
            torch.nn.BatchNorm2d(4),
            torch.nn.ReLU(),
            torch.nn.Sequential(
                torch.nn.Flatten(), torch.nn.Linear(16, 3), torch.nn.BatchNorm1d(3)
            ),
        )

    def run(model: Any, wrap: Any, cut: Any) -> Any:
        optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1))
        for step in range(3):
            optimizer.zero_grad()
            model(cut(batch((8, 1, 4, 4), step, torch.float32))).pow(2).sum(1).mean().backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            out = model(batch((8, 1, 4, 4), 9, torch.float32))
        return [out, *(each.detach().clone() for each in model.state_dict().values())]

    def fn(rank: int) -> Any:
        import farandole.torch as hvd

        model = model_of()
        weight = model[1].weight
        model = hvd.convert_sync_batchnorm(model)
        assert type(model[1]) is type(model[3][2]) is hvd.SyncBatchNorm
        assert model[1].weight is weight
        assert (
            hvd.convert_sync_batchnorm(torch.nn.BatchNorm1d(2)).process_set
            is hvd.global_process_set
        )
        assert copy.deepcopy(model)[1].process_set is hvd.global_process_set
        return run(model, hvd.DistributedOptimizer, lambda whole: whole.chunk(2)[rank])

    shared = torch.nn.BatchNorm1d(4)
    twice = torch.nn.ModuleDict(
        {"bn": shared, "again": shared, "inner": torch.nn.Sequential(shared)}
    )
    twice.register_module("none", None)

    def of_several_names(rank: int) -> None:
        import farandole.torch as hvd

        made = hvd.convert_sync_batchnorm(copy.deepcopy(twice))
        assert made.bn is made.again is made.inner[0], "one layer stays one"
        assert type(made.bn) is hvd.SyncBatchNorm

    job(1, of_several_names)
    one, other = job(2, fn)
    for found, same, wanted in zip(
        one, other, run(model_of(), lambda each: each, lambda whole: whole), strict=True
    ):
        assert torch.equal(found, same)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_gradients_where_ranks_hold_different_weights() -> None:
    """As between two exchanges of a strategy of weights: each sample's gradient goes by the weight
    of its own rank.
    """
    weights = torch.tensor([[0.5, 2.0, -1.0], [1.5, 0.0, 3.0]], dtype=torch.float64)
    whole, factors = batch((11, 3), 0, torch.float64), batch((11, 3), 50, torch.float64)

    def fn(rank: int) -> Any:
        import farandole.torch as hvd

        module = hvd.SyncBatchNorm(3).double()
        with torch.no_grad():
            module.weight.copy_(weights[rank])
        x = whole.split([4, 7])[rank].clone().requires_grad_()
        (module(x) * factors.split([4, 7])[rank]).sum().backward()
        return x.grad, module.weight.grad

    results = job(2, fn)
    x, own = whole.clone().requires_grad_(), weights.clone().requires_grad_()
    normal = (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt()
    (normal * own.repeat_interleave(torch.tensor([4, 7]), 0) * factors).sum().backward()
    torch.testing.assert_close(
        torch.cat([found[0] for found in results]), x.grad, rtol=1e-9, atol=1e-9
    )
    torch.testing.assert_close(
        torch.stack([found[1] for found in results]), own.grad, rtol=1e-9, atol=1e-9
    )


def test_sets_frozen_inputs_and_what_is_refused() -> None:
    def fn(rank: int) -> Any:
        import farandole.torch as hvd

        some = hvd.add_process_set([0, 2])
        if some.included():
            module = hvd.SyncBatchNorm(3, process_set=some)
            x = batch((4, 3), rank, torch.float32)
            x.requires_grad_(rank == 0)  # the other one only wants the weights' gradients
            module(x).pow(3).sum().backward()
            assert module.running_mean.tolist() == pytest.approx(
                (
                    torch.cat([batch((4, 3), each, torch.float32) for each in (0, 2)]).mean(0) / 10
                ).tolist()
            )
        whole = hvd.SyncBatchNorm(3)
        for bad in (torch.ones(3), torch.ones(())):
            with pytest.raises(ValueError, match=mentioning("2D", f"{bad.dim()}D")):
                whole(bad)
        with pytest.raises(ValueError, match=mentioning("3 channels")):
            whole(torch.ones(2, 4))
        whole.eval()
        if rank == 0:  # without an exchange
            assert whole(torch.zeros(2, 3)).tolist() == [[0.0] * 3] * 2

    job(3, fn, dynamic_process_sets=True)


def test_a_default_device_that_is_not_the_host() -> None:
    def program(rank: int) -> list[float]:
        import farandole.torch as hvd

        norm = hvd.SyncBatchNorm(2)
        x = torch.tensor([[1.0, 2.0], [3.0, 6.0]], requires_grad=True)
        with torch.device("meta"):
            norm(x + rank).square().sum().backward()
        return norm.running_mean.tolist()

    for mean in job(2, program):
        assert mean == pytest.approx([0.25, 0.45])
