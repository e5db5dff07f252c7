"""Elastic training by a decorator: each sample once per epoch, for any ranks."""

from __future__ import annotations

import os
from typing import Any

import pytest

import farandole
from tests.kits.messages import mentioning
from tests.run_job import job

torch = pytest.importorskip("torch", reason="torch is not installed")


def parts(size: int = 12, **options: Any) -> tuple[Any, Any, Any]:
    """Return a model, its optimizer and a loader."""
    import farandole.torch as hvd

    data = torch.utils.data.TensorDataset(torch.arange(float(size)).reshape(size, 1))
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    wrapped = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    return model, wrapped, torch.utils.data.DataLoader(data, **{"batch_size": 2, **options})


def trained(epochs: int = 2, fails: bool = False, size: int = 12, **options: Any) -> Any:
    """The samples of each epoch, the place at the end, and the commits, with a rank that may
    fail.
    """
    import farandole.torch as hvd

    hvd.init()
    started_as = int(os.environ.get("FARANDOLE_MEMBER", "-1"))
    model, optimizer, loader = parts(size, **options)
    ends: list[int] = []
    seen: list[list[float]] = [[] for _ in range(epochs)]

    @hvd.elastic.auto(
        model,
        optimizer,
        loader,
        epochs=epochs,
        after_epoch=lambda state: ends.append(state.batch),
        seen=seen,
    )
    def train(state: Any, batch: Any) -> None:
        if fails and started_as == 1 and (state.epoch, state.batch) == (1, 1):
            os._exit(1)
        optimizer.zero_grad()
        model(batch[0]).mean().backward()
        optimizer.step()
        for samples in hvd.allgather_object(batch[0].flatten().tolist()):
            state.seen[state.epoch] += samples

    state = train()
    return state.seen, state.epoch, ends, hvd.size()


@pytest.mark.parametrize("shuffle", [True, False])
def test_each_sample_is_seen_once_per_epoch(shuffle: bool) -> None:
    def check(rank: int) -> Any:
        return trained(shuffle=shuffle)

    for seen, epoch, ends, size in job(2, check):
        assert [sorted(each) for each in seen] == [list(range(12))] * 2
        assert (seen[0] == seen[1]) is not shuffle
        assert (epoch, ends, size) == (2, [3, 3], 2)


@pytest.mark.slow
def test_after_the_loss_of_a_rank_none_is_lost_or_repeated() -> None:
    results = farandole.run(
        trained, (2, True, 24), np=3, min_np=2, max_np=3, hosts="localhost:2,127.0.0.1:2"
    )
    for seen, epoch, ends, size in results:
        assert [sorted(each) for each in seen] == [list(range(24))] * 2
        assert (epoch, ends[-1], size) == (2, 6, 2)  # 1 batch of three ranks, 5 of two


def grown() -> Any:
    """Return the gradient after a second rank has joined the first."""
    import farandole.torch as hvd

    hvd.init()
    model, optimizer, _ = parts()

    @hvd.elastic.run
    def train(state: Any) -> None:
        while hvd.size() == 1:
            optimizer.zero_grad()
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step()
            state.commit()
        optimizer.zero_grad()
        model(torch.full((1, 1), 1.0 + 2 * hvd.rank())).sum().backward()
        state.gradient = model.weight.grad.item()

    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, gradient=0.0)
    train(state)
    return state.gradient, hvd.size()


@pytest.mark.slow
def test_a_rank_that_was_alone_exchanges_with_a_new_one() -> None:
    calls: list[int] = []

    def hosts() -> dict[str, int]:
        calls.append(1)
        return {"localhost": min(len(calls), 2)}

    results = farandole.run(grown, np=1, min_np=1, max_np=2, discovery=hosts)
    assert results == [(2.0, 2)] * 2


@pytest.mark.parametrize(
    ("change", "values"),
    [
        ({"epochs": 0}, ("epochs=0",)),
        ({"commit_every": 0}, ("commit_every=0",)),
        ({"optimizer": "plain"}, ("SGD", "DistributedOptimizer")),
        ({"loader": []}, ("list", "DataLoader")),
        ({"loader": "batches"}, ("batch_size=None",)),
    ],
)
def test_auto_refuses_parts_it_cannot_train(
    change: dict[str, Any], values: tuple[str, ...]
) -> None:
    import farandole.torch as hvd

    hvd.init()
    model, optimizer, loader = parts()
    given = {"optimizer": optimizer, "loader": loader, **change}
    if given["optimizer"] == "plain":
        given["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
    if given["loader"] == "batches":
        given["loader"] = parts(batch_size=None)[2]
    with pytest.raises((TypeError, ValueError), match=mentioning(*values)):
        hvd.elastic.auto(model, **given)
    hvd.shutdown()
