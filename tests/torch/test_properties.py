"""Every operation, type and shape class on one to four ranks, against numpy; and training against
one rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.run_job import job

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch", reason="torch is not installed")

DTYPES = [
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "bool",
]
CLASSES = ["scalar", "empty", "one", "odd", "large", "transposed", "strided", "expanded"]
OPS = ["Average", "Sum", "Min", "Max", "Product"]
UFUNCS: dict[str, Any] = {
    "Sum": np.add,
    "Min": np.minimum,
    "Max": np.maximum,
    "Product": np.multiply,
}


def tensor(kind: str, dtype: str, rank: int, seed: int) -> Any:
    """Return a tensor of a shape class with small integers, whose sums and products are exact in
    every type.
    """
    generator = np.random.default_rng([seed, rank])
    rows = {
        "scalar": (),
        "empty": (0, 3),
        "one": (1,),
        "odd": (7, 3),
        "large": (60, 701),
        "transposed": (5, 8),
    }
    shape = rows.get(kind, (8, 6))
    numbers = generator.integers(0, 2 if dtype == "bool" else 3, shape)
    made = torch.from_numpy(np.asarray(numbers)).to(getattr(torch, dtype))
    if kind == "transposed":
        return made.t()
    if kind == "strided":
        return made[::2, 1::2]
    if kind == "expanded":
        return made[:, :1].expand(-1, 4)
    return made


def wide(value: Any) -> Any:
    return (value.double() if value.is_floating_point() else value.long()).numpy()


def reduced(op: str, dtype: str, values: list[Any]) -> Any:
    """Return the reduction of the ranks' values, computed by numpy."""
    if op == "Average":
        total = sum(values) / len(values)
        return total if "float" in dtype else np.trunc(total)
    total = values[0]
    for value in values[1:]:
        total = UFUNCS[op](total, value)
    return (total != 0).astype(np.int64) if dtype == "bool" else total


def assert_same(found: Any, wanted: Any, dtype: str) -> None:
    assert found.dtype == getattr(torch, dtype)
    assert tuple(found.shape) == np.shape(wanted)
    tolerance = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6}.get(
        dtype, 1e-12 if "float" in dtype else 0
    )
    np.testing.assert_allclose(wide(found), wanted, rtol=tolerance, atol=0)


def cases(dtype: str, rank: int, n: int) -> Iterator[tuple[str, Any, list[Any]]]:
    """Yield the shape class, this rank's tensor, and the values of all ranks."""
    for seed, kind in enumerate(CLASSES):
        yield (
            kind,
            tensor(kind, dtype, rank, seed),
            [wide(tensor(kind, dtype, each, seed)) for each in range(n)],
        )


def check_reductions(rank: int, n: int, dtype: str) -> None:
    """Check every reduction of every shape class, in all its forms."""
    import farandole.torch as hvd

    for _, mine, values in cases(dtype, rank, n):
        for op in OPS:
            if dtype == "bool" and op == "Average":
                continue
            wanted, code = reduced(op, dtype, values), getattr(hvd, op)
            assert_same(hvd.allreduce(mine, op=code), wanted, dtype)
            kept = mine.clone(memory_format=torch.preserve_format)
            assert hvd.allreduce_(kept, op=code) is kept
            assert_same(kept, wanted, dtype)
            first, second = hvd.grouped_allreduce([mine, mine], op=code)
            assert torch.equal(first, kept)
            assert torch.equal(second, kept)
            if op in ("Average", "Sum") and mine.dim():
                own = np.array_split(wanted, n)[rank]
                assert_same(hvd.reducescatter(mine, op=code), own, dtype)
                assert_same(hvd.grouped_reducescatter([mine], op=code)[0], own, dtype)


def check_moves(rank: int, n: int, dtype: str) -> None:
    """Check every other collective on every shape class, even and uneven."""
    import farandole.torch as hvd

    for kind, mine, values in cases(dtype, rank, n):
        for root in range(n):
            assert_same(hvd.broadcast(mine, root), values[root], dtype)
            kept = mine.clone(memory_format=torch.preserve_format)
            hvd.broadcast_(kept, root)
            assert_same(kept, values[root], dtype)
        if not mine.dim():
            continue
        assert_same(hvd.allgather(mine), np.concatenate(values), dtype)
        ragged = [value[: len(value) * each // n] for each, value in enumerate(values)]
        assert_same(hvd.allgather(mine[: len(mine) * rank // n]), np.concatenate(ragged), dtype)
        assert_same(hvd.grouped_allgather([mine, mine])[1], np.concatenate(values), dtype)
        counts = [len(part) for part in np.array_split(values[0], n)]
        out, received = hvd.alltoall(mine, torch.tensor(counts, dtype=torch.int32))
        assert received.tolist() == [counts[rank]] * n, kind
        assert_same(
            out, np.concatenate([np.array_split(value, n)[rank] for value in values]), dtype
        )
        if len(mine) % n == 0:
            assert torch.equal(hvd.alltoall(mine), out)


@pytest.mark.parametrize(
    ("n", "wire"), [(1, "shm"), (2, "shm"), (3, "shm"), (4, "shm"), (2, "tcp"), (4, "tcp")]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_reductions(dtype: str, n: int, wire: str) -> None:
    job(n, lambda rank: check_reductions(rank, n, dtype), wire=wire)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_moves(dtype: str, n: int) -> None:
    job(n, lambda rank: check_moves(rank, n, dtype))


@pytest.mark.parametrize("op", ["Average", "Sum", "Min", "Max", "Product"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_random_numbers_and_factors(dtype: str, op: str) -> None:
    n = 3

    def check(rank: int) -> None:
        import farandole.torch as hvd

        kind = getattr(torch, dtype)
        for seed in range(6):
            generator = torch.Generator().manual_seed(seed)
            shape = tuple(torch.randint(1, 40, (1 + seed % 3,), generator=generator).tolist())
            every = [torch.randn(shape, generator=generator).to(kind) for _ in range(n)]
            pre, post = [(1.0, 1.0), (0.5, 3.0), (-2.0, 0.25)][seed % 3]
            found = hvd.allreduce(
                every[rank],
                op=getattr(hvd, op),
                prescale_factor=pre,
                postscale_factor=post,
                name=f"{seed}",
            )
            wanted = reduced(op, dtype, [wide(each) * pre for each in every]) * post
            tolerance = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-5, "float64": 1e-12}[
                dtype
            ]
            np.testing.assert_allclose(wide(found), wanted, rtol=tolerance, atol=tolerance)

    job(n, check)


# Training: n ranks with B/n take the steps of one rank with B.

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01, eps=1e-4),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, eps=1e-4, weight_decay=0.1),
}
TOLERANCE = {"float64": 1e-10, "float32": 1e-4, "bfloat16": 0.05}
BATCH = 12


def trained(
    rank: int,
    n: int,
    make: Callable[[Any], Any],
    dtype: str,
    passes: int,
    wrap: Callable[[Any, Any], Any],
) -> list[Any]:
    kind = getattr(torch, dtype)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 9),
        torch.nn.Tanh(),
        torch.nn.Linear(9, 9),
        torch.nn.Tanh(),
        torch.nn.Linear(9, 2),
    ).to(kind)
    optimizer = wrap(make(model.parameters()), model)
    for step in range(4):
        optimizer.zero_grad()
        for number in range(passes):
            generator = torch.Generator().manual_seed(step * 10 + number)
            x = torch.randn(BATCH, 6, generator=generator).to(kind).chunk(n)[rank]
            y = torch.randn(BATCH, 2, generator=generator).to(kind).chunk(n)[rank]
            (torch.nn.functional.mse_loss(model(x), y) / passes).backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize(
    ("dtype", "n"),
    [("float64", 2), ("float32", 2), ("bfloat16", 2), ("float64", 3), ("float32", 4)],
)
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_training(make: Any, dtype: str, n: int) -> None:
    variants: dict[str, tuple[int, dict[str, Any]]] = {
        "plain": (1, {}),
        "accumulation": (3, {"backward_passes_per_step": 3}),
        "groups": (1, {"groups": 2}),
        "lists": (1, {"groups": "lists"}),
    }

    def fn(rank: int) -> dict[str, Any]:
        import farandole.torch as hvd

        found = {}
        for name, (passes, options) in variants.items():

            def wrap(optimizer: Any, model: Any, options: dict[str, Any] = options) -> Any:
                if options.get("groups") == "lists":
                    parameters = list(model.parameters())
                    options = {"groups": [parameters[:1] + parameters[3:4], parameters[1:3]]}
                return hvd.DistributedOptimizer(optimizer, model.named_parameters(), **options)

            found[name] = trained(rank, n, make, dtype, passes, wrap)
        return found

    results = job(n, fn)
    for name, (passes, _) in variants.items():
        wanted = trained(0, 1, make, dtype, passes, lambda optimizer, model: optimizer)
        for result in results:
            for one, same, other in zip(result[name], results[0][name], wanted, strict=True):
                assert torch.equal(one, same), "the same bits on all ranks"
                torch.testing.assert_close(one, other, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
