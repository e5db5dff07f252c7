"""Buckets change their size during training, as autotune requests."""

from __future__ import annotations

from typing import Any

import pytest

from tests.run_job import job

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch", reason="torch is not installed")

SIZES = [1 << 20, 200, 600, 1 << 30, 30]


def model_of() -> Any:
    torch.manual_seed(2)
    return torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(6)))


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("compression", ["none", "bf16"])
def test_rank_0_decides_and_the_memory_is_used_again(compression: str, to_none: bool) -> None:
    def fn(rank: int) -> Any:
        import farandole.torch as hvd
        from farandole.job import context

        def train(sizes: list[int]) -> tuple[list[Any], list[Any]]:
            model = model_of()
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
                compression=getattr(hvd.Compression, compression),
            )
            seen = []
            for step in range(15):
                if rank == 0 and step % 3 == 0:
                    engine.propose(engine.sizes._replace(bucket_bytes=sizes[step // 3]))
                optimizer.zero_grad(set_to_none=to_none)
                model(torch.full((2, 8), 0.1 * (step + rank))).square().mean().backward()
                optimizer.step()
                assert all(parameter.grad is not None for parameter in model.parameters())
                kept = [parameter.grad.clone() for parameter in model.parameters()]
                total = hvd.grouped_allreduce(kept)
                assert all(
                    torch.equal(one, other) for one, other in zip(kept, total, strict=True)
                ), "gradients stay"
                strategy = optimizer._farandole.reducer
                seen.append((engine.bucketed, len(strategy._layout.buckets)))
                memories.add(id(strategy._layout._memory))
                rooms.append(strategy._layout._memory)  # so that ids are not used again
            return seen, [parameter.detach().clone() for parameter in model.parameters()]

        engine, rooms = context.engine(), []
        memories: set[int] = set()
        seen, tuned = train(SIZES)
        count = len(memories)
        _, plain = train([1 << 20] * 5)
        assert all(torch.equal(one, other) for one, other in zip(tuned, plain, strict=True))
        return seen, count

    (one, count), (other, _) = job(2, fn)
    assert one == other
    assert count <= 2  # none before the first plan, then one
    assert [size for size, _ in one][2::3] == SIZES, "in force after two steps"
    assert len({number for _, number in one}) > 2


def test_parameters_of_one_bucket_have_separate_memory() -> None:
    """Accumulated gradients that are views of the old layout move out before the new one is laid
    over them.
    """

    def fn(rank: int) -> Any:
        import farandole.torch as hvd
        from farandole.job import context

        model = model_of()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), backward_passes_per_step=2
        )
        for step in range(4):
            if rank == 0:
                engine = context.engine()
                engine.propose(engine.sizes._replace(bucket_bytes=[1 << 20, 300][step % 2]))
            for number in range(2):
                model(torch.full((2, 8), 0.1 * (step + number + rank))).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        return [parameter.detach().clone() for parameter in model.parameters()]

    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        for rank in range(2):
            for number in range(2):
                (
                    model(torch.full((2, 8), 0.1 * (step + number + rank))).square().mean() / 2
                ).backward()
        optimizer.step()
    for result in job(2, fn):
        for found, wanted in zip(result, model.parameters(), strict=True):
            torch.testing.assert_close(found, wanted.detach(), rtol=1e-5, atol=1e-6)


def test_autotune_moves_the_buckets() -> None:
    def fn(rank: int) -> Any:
        import farandole.torch as hvd
        from farandole.job import context

        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(400, 400) for _ in range(4)))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))
        sizes = set()
        for step in range(5000):  # a sample takes a time, not a number of steps
            optimizer.zero_grad()
            model(torch.ones(1, 400)).square().mean().backward()
            optimizer.step()
            sizes.add(context.engine().bucketed)
            if step % 50 == 0 and int(hvd.allreduce(torch.tensor(len(sizes)), op=hvd.Min)) > 1:
                break
        return sorted(sizes)

    one, other = job(
        2,
        fn,
        autotune=True,
        autotune_steps_per_sample=2,
        autotune_warmup_samples=1,
        autotune_bayes_opt_max_samples=3,
    )
    assert one == other
    assert len(one) > 1
