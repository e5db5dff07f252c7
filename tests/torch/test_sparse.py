"""Gradients that come as rows."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kits.messages import mentioning, mentions
from tests.run_job import job

torch = pytest.importorskip("torch", reason="torch is not installed")


def test_sparse_tensors_are_added_up() -> None:
    def fn(rank: int) -> None:
        import farandole.torch as hvd

        mine = torch.sparse_coo_tensor(
            [[rank, 2]], [[1.0 + rank, 2.0], [4.0, 6.0]], (4, 2), check_invariants=True
        )
        wanted = torch.tensor([[1.0, 2.0], [2.0, 2.0], [8.0, 12.0], [0.0, 0.0]])
        total = hvd.sparse_allreduce_async(mine, "s", hvd.Sum)()
        assert total.is_sparse
        assert torch.equal(total.to_dense(), wanted)
        waits = [hvd.sparse_allreduce_async(mine, f"s{number}", hvd.Average) for number in range(3)]
        for wait in reversed(waits):
            assert torch.equal(wait().to_dense(), wanted / 2)
            assert wait() is wait(), "a second call gives the result again"
        assert torch.equal(
            hvd.sparse_allreduce_async(mine.to_dense(), op=hvd.Sum)().to_dense(), wanted
        )
        nothing = torch.zeros(4, 2).to_sparse(1)
        only = hvd.sparse_allreduce_async(mine if rank else nothing, "only", op=hvd.Sum)()
        assert torch.equal(only.to_dense()[1], torch.tensor([2.0, 2.0]))
        whole = torch.sparse_coo_tensor(
            [[1, rank]], torch.tensor([3, 1], dtype=torch.int8), (3,), check_invariants=True
        )
        mean = hvd.sparse_allreduce_async(whole, "whole", hvd.Average)().to_dense()
        assert mean.dtype == torch.int8
        assert mean.tolist() == [
            0,
            3,
            0,
        ], "integers are added up before they are divided and truncated"
        large = torch.tensor([2**62 + rank, -(2**63) + rank])
        large = torch.sparse_coo_tensor([[0, 2]], large, (3,), check_invariants=True)
        mean = hvd.sparse_allreduce_async(large, "large", hvd.Average)().to_dense()
        assert mean.tolist() == [2**62, 0, -(2**63) + 1], "the sum alone does not fit"
        wide = torch.sparse_coo_tensor([[2]], [1.0], (3 + rank,), check_invariants=True)
        with pytest.raises(hvd.HorovodInternalError, match=mentioning("[3]", "[4]")):
            hvd.sparse_allreduce_async(wide, "wide", hvd.Sum)()
        with pytest.raises(ValueError, match=mentioning("sparse tensors")):
            hvd.sparse_allreduce_async(mine, "s", hvd.Max)

    job(2, fn)


class Words(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table = torch.nn.Embedding(9, 3, sparse=True)
        self.other = torch.nn.Embedding(5, 3, sparse=True)
        self.head = torch.nn.Linear(3, 1)

    def forward(self, rows: Any, other: bool = True) -> Any:
        found = self.table(rows)
        return self.head(found + self.other(rows % 5) if other else found)


def batch(step: int) -> Any:
    return torch.randint(9, (8,), generator=torch.Generator().manual_seed(step))


def run(rank: int, n: int, wrap: Any, make: Any, passes: int = 1) -> list[Any]:
    model = Words()
    optimizer = wrap(make(model.parameters()))
    for step in range(4):
        optimizer.zero_grad()
        for number in range(passes):
            rows = batch(step * passes + number)
            whole = (model(rows).square().mean() + model(rows, other=False).sum() / 8) / passes
            if n > 1:
                rows = rows.chunk(n)[rank]
                whole = (
                    model(rows).square().mean() + model(rows, other=False).sum() / 8 * n
                ) / passes
            whole.backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


MAKE = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.5),
}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"op": 1},
        {"backward_passes_per_step": 2},
        {"groups": 1},
        {"gradient_predivide_factor": 2.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE.keys())
def test_rows_train_like_one_rank(options: dict[str, Any], make: Any) -> None:
    passes = options.get("backward_passes_per_step", 1)

    def train(rank: int) -> Any:
        import farandole.torch as hvd

        def wrap(optimizer: Any) -> Any:
            if "op" in options:
                for group in optimizer.param_groups:
                    group["lr"] /= 2
            return hvd.DistributedOptimizer(optimizer, **options)

        return run(rank, 2, wrap, make, passes)

    one, other = job(2, train)
    for found, same, wanted in zip(
        one, other, run(0, 1, lambda optimizer: optimizer, make, passes), strict=True
    ):
        assert torch.equal(found, same)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_rows_are_compressed_too(compression: str) -> None:
    def train(rank: int) -> Any:
        import farandole.torch as hvd

        def wrap(optimizer: Any) -> Any:
            return hvd.DistributedOptimizer(
                optimizer, compression=getattr(hvd.Compression, compression)
            )

        return run(rank, 2, wrap, MAKE["sgd"])

    one, other = job(2, train)
    for found, same, wanted in zip(
        one, other, run(0, 1, lambda optimizer: optimizer, MAKE["sgd"]), strict=True
    ):
        assert torch.equal(found, same)
        torch.testing.assert_close(found, wanted, rtol=0.05, atol=0.02)


def test_a_second_loss_after_the_first_was_exchanged() -> None:
    def losses(model: Any, rows: Any) -> tuple[Any, Any]:
        return model.table(rows).square().mean(), model.other(rows % 5).pow(3).mean()

    def train(rank: int, n: int, wrap: Any, scale: float) -> list[Any]:
        model = Words()
        optimizer = wrap(
            torch.optim.SGD(
                list(model.table.parameters()) + list(model.other.parameters()), lr=scale
            )
        )
        for step in range(3):
            optimizer.zero_grad()
            rows = batch(step).chunk(n)[rank]
            for loss in losses(model, rows):
                loss.backward()
            optimizer.step()
        return [model.table.weight.detach().clone(), model.other.weight.detach().clone()]

    def fn(rank: int) -> Any:
        import farandole.torch as hvd

        return [
            train(rank, 2, lambda optimizer: hvd.DistributedOptimizer(optimizer, op=op), lr)  # noqa: B023
            for op, lr in ((hvd.Average, 0.1), (hvd.Sum, 0.05))
        ]

    def alone(model_scale: float = 0.1) -> list[Any]:
        model = Words()
        optimizer = torch.optim.SGD(
            list(model.table.parameters()) + list(model.other.parameters()), lr=model_scale
        )
        for step in range(3):
            optimizer.zero_grad()
            for rows in batch(step).chunk(2):
                for loss in losses(model, rows):
                    (loss / 2).backward()
            optimizer.step()
        return [model.table.weight.detach().clone(), model.other.weight.detach().clone()]

    wanted = alone()
    for result in job(2, fn):
        for found in result:
            for one, other in zip(found, wanted, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_sums_stay_sums_when_other_parameters_take_their_place() -> None:
    """Rows as well; and a gradient that was thrown away since."""

    def fn(rank: int) -> Any:
        import farandole.torch as hvd

        table = torch.nn.Embedding(3, 2, sparse=True)
        kept, thrown, left = (torch.nn.Parameter(torch.ones(2)) for _ in range(3))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([table.weight, kept, thrown, left], lr=0.1), op=hvd.Sum
        )
        (table(torch.tensor([rank])).sum() + (rank + 1.0) * (kept + thrown + left).sum()).backward()
        thrown.grad = None
        optimizer.param_groups[0]["params"] = [table.weight, kept, thrown]
        optimizer.synchronize()
        return table.weight.grad.to_dense(), kept.grad, thrown.grad

    for rows, sums, nothing in job(2, fn):
        torch.testing.assert_close(rows, torch.tensor([[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]]))
        torch.testing.assert_close(sums, torch.tensor([3.0, 3.0]))
        assert nothing is None


def test_rows_while_a_rank_has_joined() -> None:
    """Rows are refused, and the option in the error solves it."""

    def train(rank: int) -> Any:
        import farandole.torch as hvd

        outcomes = []
        for options in ({}, {"sparse_as_dense": True}):
            model = Words()
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1), **options
            )
            try:
                for step in range(1 + rank):
                    model(batch(step)).sum().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                outcomes.append("")
            except hvd.HorovodInternalError as error:
                outcomes.append(str(error))
                optimizer.zero_grad()
            hvd.join()
        return outcomes

    first, second = job(2, train)
    assert first == ["", ""]
    assert mentions(second[0], "Allgather", "Join")
    assert "sparse_as_dense=True" in second[0]
    assert second[1] == ""


class Tied(torch.nn.Module):
    """Rows of a table; or the whole table, whose gradient is dense then; or both; or rows of
    another one, too.
    """

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table = torch.nn.Embedding(9, 3, sparse=sparse)
        self.other = torch.nn.Embedding(9, 3, sparse=sparse)

    def forward(self, rows: Any, use: str) -> Any:
        found = self.table.weight.sum(0, keepdim=True) if use == "all" else self.table(rows)
        return (
            found @ self.table.weight.t()
            if use == "both"
            else found + self.other(rows)
            if use == "two"
            else found
        )


USES = {
    "others have dense ones": (["all", "two", "rows", "both"], ["all", "all", "two", "rows"]),
    "in the last pass alone": (["rows", "rows", "rows", "two"], ["rows", "rows", "rows", "two"]),
    "in the last pass of one rank": (
        ["all", "rows", "both", "two"],
        ["both", "rows", "all", "rows"],
    ),
}


@pytest.mark.parametrize("uses", USES.values(), ids=USES.keys())
@pytest.mark.parametrize(
    "options", [{}, {"op": 1}, {"compression": "fp16"}, {"codec": "topk:1.0"}], ids=str
)
@pytest.mark.parametrize("passes", [1, 2])
def test_a_parameter_whose_first_sparse_gradient_comes_late(
    uses: Any, options: dict[str, Any], passes: int
) -> None:
    """It has a place in a bucket by then, in which other ranks may have dense ones of the same
    step.
    """
    n = len(uses)

    def train(ranks: Any, sparse: bool, wrap: Any) -> list[Any]:
        model = Tied(sparse)
        optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1))
        for step in range(8 // passes):
            optimizer.zero_grad()
            for number in range(step * passes, (step + 1) * passes):
                losses = [
                    model(batch(2 * number + rank), uses[rank][number % 4]).tanh().sum()
                    for rank in ranks
                ]
                (sum(losses) / len(ranks)).backward()
            optimizer.step()
        return [parameter.detach() for parameter in model.parameters()]

    def distributed(rank: int) -> list[Any]:
        import farandole.torch as hvd

        def wrap(optimizer: Any) -> Any:
            given = dict(options)
            if "compression" in given:
                given["compression"] = hvd.Compression.fp16
            if "op" in given:
                optimizer.param_groups[0]["lr"] /= n
            return hvd.DistributedOptimizer(optimizer, backward_passes_per_step=passes, **given)

        return train([rank], True, wrap)

    one, other = job(n, distributed)
    wide = (
        {"rtol": 1e-2, "atol": 5e-3} if "compression" in options else {"rtol": 1e-5, "atol": 1e-6}
    )
    for found, same, wanted in zip(
        one, other, train(range(n), False, lambda optimizer: optimizer), strict=True
    ):
        assert torch.equal(found, same)
        torch.testing.assert_close(found, wanted, **wide)


def test_sparse_gradients_without_rows_may_gain_some() -> None:
    """``zero_grad(set_to_none=False)`` leaves sparse gradients without rows, and the next backward
    adds to them.
    """

    def fn(rank: int) -> None:
        import farandole.torch as hvd

        table, head = torch.nn.Embedding(9, 3, sparse=True), torch.nn.Linear(3, 1)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([*table.parameters(), *head.parameters()], lr=0.1)
        )
        for step in range(6):
            optimizer.zero_grad(set_to_none=False)
            # no rank uses the table in step 3
            found = table(torch.tensor([rank])) if step % 3 else torch.ones(1, 3)
            head(found).sum().backward()
            optimizer.step()
        given = torch.zeros(4, 2).to_sparse(1)
        total = hvd.sparse_allreduce_async(given, "nothing", hvd.Sum)()
        for tensor in (given, total):
            tensor += torch.ones(4, 2).to_sparse(1)
            assert torch.equal(tensor.to_dense(), torch.ones(4, 2))

    job(2, fn)


@pytest.mark.parametrize("codec", ["topk:0.25", "onebit", "powersgd:1"])
@pytest.mark.parametrize("op", ["Average", "Sum"])
@pytest.mark.parametrize("late", [0, 2])
def test_residuals_are_sent_with_the_first_sparse_rows(codec: str, op: str, late: int) -> None:
    """``late``: so many steps later rank 1's gradient is sparse, too."""

    def fn(rank: int) -> None:
        import farandole.torch as hvd

        kind, rows = getattr(hvd, op), torch.tensor([1, 2])
        table, other = (torch.nn.Parameter(torch.zeros(4, 2)) for _ in range(2))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([table, other], lr=1.0),
            [("table", table), ("other", other)],
            op=kind,
            codec=codec,
        )
        numbers, total = torch.Generator().manual_seed(rank), torch.zeros(4, 2)
        off = []
        for step in range(9):
            optimizer.zero_grad()
            if 3 + late * rank <= step < 7:
                gradient = torch.randn(2, 2, generator=numbers)
                loss = (torch.nn.functional.embedding(rows, table, sparse=True) * gradient).sum()
                total[rows] += gradient
            else:
                gradient = torch.randn(4, 2, generator=numbers)
                loss, total = (table * gradient).sum(), total + gradient
            (loss + other.sum()).backward()
            optimizer.step()
            off.append(float((hvd.allreduce(total, op=kind) + table.detach()).abs().max()))
        assert min(off[:3]) > 0.01
        assert max(off[3:]) < 1e-5
        assert not [
            name
            for name in optimizer.state_dict()["farandole"]["codec"]["state"]
            if "residual/table" in name
        ]

    job(2, fn)
