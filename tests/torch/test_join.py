"""Ranks that run out of data."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kits.heard import listening
from tests.kits.messages import mentioning
from tests.run_job import job

torch = pytest.importorskip("torch", reason="torch is not installed")


@pytest.mark.parametrize("wire", ["shm", "tcp"])
def test_the_last_rank_is_known_to_all(wire: str) -> None:
    def fn(rank: int) -> list[Any]:
        import farandole.torch as hvd

        totals = [
            hvd.allreduce(torch.ones(3), op=hvd.Sum, name=f"step{step}")[0].item()
            for step in range(1 + rank)
        ]
        # whose absence must not be the least, nor the most, when a factor turns the order round
        if rank == 2:
            for op in (hvd.Min, hvd.Max):
                for kind in (torch.float32, torch.bfloat16, torch.int32):
                    least = hvd.allreduce(
                        torch.tensor([1, 2], dtype=kind), op=op, prescale_factor=-1.0
                    )
                    assert least.tolist() == [-1, -2], (op, kind)
        last = hvd.join()
        totals.append(hvd.allreduce(torch.ones(1), op=hvd.Sum).item())
        return [last, hvd.join(-1), *totals]

    assert job(3, fn, wire=wire) == [[2, 2, 3, 3], [2, 2, 3, 2, 3], [2, 2, 3, 2, 1, 3]]


@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("options", [{}, {"backward_passes_per_step": 2}, {"groups": 2}], ids=str)
def test_training_continues_without_ranks_that_joined(first: int, options: dict[str, Any]) -> None:
    """Rank 1 takes ``first`` steps, perhaps none; rank 0 takes three. Missing gradients of rank 1
    count as zeros.
    """
    passes = options.get("backward_passes_per_step", 1)

    def fn(rank: int) -> Any:
        import farandole.torch as hvd

        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), **options)
        for step in range(first if rank else 3):
            optimizer.zero_grad()
            for _ in range(passes):
                model(torch.full((2, 3), float(step + rank))).square().mean().backward()
            optimizer.step()
        assert hvd.join() == 0
        return [parameter.detach().clone() for parameter in model.parameters()]

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        for rank in range(2):
            if rank == 0 or step < first:
                for _ in range(passes):
                    (model(torch.full((2, 3), float(step + rank))).square().mean() / 2).backward()
        optimizer.step()
    for found, wanted in zip(job(2, fn)[0], model.parameters(), strict=True):
        torch.testing.assert_close(found, wanted.detach(), rtol=1e-5, atol=1e-6)


def test_epochs_of_different_lengths() -> None:
    """Ranks must not decide whether to exchange by exchanges that others missed."""

    def fn(rank: int) -> Any:
        import farandole.torch as hvd

        torch.manual_seed(rank)
        model = torch.nn.Linear(9, 9)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
        )
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        with listening() as texts:
            for steps in [(4, 6), (6, 4), (4, 6), (1, 3), (3, 2), (5, 5)]:
                for _ in range(steps[rank]):
                    optimizer.zero_grad()
                    model(torch.randn(3, 9)).square().mean().backward()
                    optimizer.step()
                    hvd.allreduce(torch.ones(1))
                last = hvd.join()
                assert last == steps.index(max(steps)) or steps == (5, 5)
                hvd.broadcast_parameters(model.state_dict(), last)
        return texts, model.weight.tolist()

    (texts, weights), (others, other_weights) = job(2, fn)
    assert texts == others == []
    assert weights == other_weights


EPOCHS = {  # steps of rank 0 and of rank 1
    "rank 1 begins late": [(3, 0), (3, 2), (2, 3), (3, 3)],
    "rank 0 begins late": [(0, 3), (2, 3), (3, 2), (3, 3)],
    "rank 1 ends early": [(4, 1), (2, 3), (1, 4), (3, 3)],
    "rank 0 ends early": [(1, 4), (3, 2), (4, 1), (3, 3)],
}


@pytest.mark.parametrize(
    ("overlap", "options"),
    [("on", {}), ("off", {"groups": 2}), ("on", {"op": 1, "backward_passes_per_step": 2})],
    ids=str,
)
def test_buckets_relaid_out_without_joined_ranks(overlap: str, options: dict[str, Any]) -> None:
    """Parameters that are used late, and bucket sizes that rank 0 changes (autotune), while a rank
    has joined.
    """

    def train(name: str, rank: int, hvd: Any, steps: list[tuple[int, int]]) -> None:
        from farandole.job import context

        torch.manual_seed(0)
        layers = [torch.nn.Linear(9, 9) for _ in range(6)]
        model = torch.nn.Sequential(*layers)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), **options
        )
        for epoch, pair in enumerate(steps):
            for step in range(pair[rank]):
                if rank == 0 and step == 1:
                    context.engine().bucket_bytes = (1 << 20, 400)[epoch % 2]
                optimizer.zero_grad()
                own = [torch.zeros_like(parameter) for parameter in model.parameters()]
                for _ in range(options.get("backward_passes_per_step", 1)):
                    x = torch.randn(3, 9)
                    for layer in layers[: 2 + step + epoch]:  # the last ones come late
                        x = layer(x).tanh()
                    loss = x.square().mean()
                    for total, part in zip(
                        own,
                        torch.autograd.grad(
                            loss, model.parameters(), retain_graph=True, allow_unused=True
                        ),
                        strict=True,
                    ):
                        total += 0 if part is None else part
                    loss.backward()
                optimizer.synchronize()
                for number, (parameter, mine) in enumerate(
                    zip(model.parameters(), own, strict=True)
                ):
                    wanted = hvd.allreduce(
                        mine, op=options.get("op", hvd.Average), name=f"{name}.{number}"
                    )
                    found = torch.zeros_like(wanted) if parameter.grad is None else parameter.grad
                    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
                with optimizer.skip_synchronize():
                    optimizer.step()
            hvd.broadcast_parameters(model.state_dict(), hvd.join())

    def fn(rank: int) -> None:
        import farandole.torch as hvd

        for name, steps in EPOCHS.items():
            train(name, rank, hvd, steps)

    job(2, fn, overlap=overlap, bucket_bytes=1 << 20)


def test_other_collectives_fail_after_join() -> None:
    def fn(rank: int) -> None:
        import farandole.torch as hvd

        if rank == 0:
            for call in (
                lambda: hvd.allgather(torch.ones(2)),
                lambda: hvd.broadcast(torch.ones(2), 0),
                lambda: hvd.alltoall(torch.ones(2)),
                lambda: hvd.reducescatter(torch.ones(2)),
            ):
                with pytest.raises(hvd.HorovodInternalError, match=mentioning("Join")):
                    call()
        assert hvd.join() == 0
        assert hvd.allgather(torch.ones(2)).tolist() == [1] * 4

    job(2, fn)
