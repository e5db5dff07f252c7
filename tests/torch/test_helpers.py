"""Helpers of a program for several ranks: print, seeds, checkpoints, data loaders."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kits.messages import mentioning, mentions
from tests.run_job import job

torch = pytest.importorskip("torch", reason="torch is not installed")


def test_print_and_seeds_on_two_ranks() -> None:
    def check(rank: int) -> Any:
        import contextlib
        import io

        import farandole.torch as hvd

        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            hvd.print("loss", 1.5, sep=": ")
            hvd.print("on one", ranks=[1])
            hvd.print("everywhere", ranks="all", end=".")
        for wrong in ([0, 2], "none"):
            with pytest.raises(ValueError, match=mentioning("ranks 0", "1", "'all'")):
                hvd.print(ranks=wrong)
        mine = hvd.seed_everything(7)
        alike = torch.nn.Linear(2, 2).weight.tolist(), np.random.random(), random.random()
        own = torch.randn(3, generator=mine).tolist()
        again = torch.randn(3, generator=hvd.seed_everything(7)).tolist()
        for seed in (-1, 1 << 32, True, 1.5):
            with pytest.raises(ValueError, match=mentioning("0", "4294967295")):
                hvd.seed_everything(seed)  # type: ignore[arg-type]
        return text.getvalue(), alike, own, again

    (text, alike, own, again), (other_text, other_alike, other_own, other_again) = job(2, check)
    assert text == "loss: 1.5\neverywhere."
    assert other_text == "on one\neverywhere."
    assert alike == other_alike
    assert own == again != other_own == other_again


def test_rank_0_saves_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"

    def check(rank: int) -> Any:
        import farandole.torch as hvd

        hvd.save({"rank": rank, "weights": torch.ones(3)}, path)
        found = torch.load(path)["rank"]
        hvd.barrier()  # all read the file before it is written again
        broken = {"weights": torch.zeros(9), "lock": (part for part in [])}
        with pytest.raises(Exception, match=r"pickle|serialize") as caught:
            hvd.save(broken, path)
        with pytest.raises((OSError, RuntimeError), match=mentioning("No such file", "nowhere")):
            hvd.save({}, tmp_path / "nowhere" / "last.pt")
        return (
            found,
            type(caught.value).__name__,
            str(caught.value),
            torch.load(path)["weights"].tolist(),
        )

    one, other = job(2, check)
    assert [one[0], other[0]] == [0, 0]
    assert other[1] == "RuntimeError"
    assert mentions(other[2], "rank 0", f"'{path}'", str(one[1]))
    assert one[3] == other[3] == [1.0, 1.0, 1.0]
    assert [each.name for each in tmp_path.iterdir()] == ["last.pt"]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_loader_is_distributed_in_one_call(shuffle: bool) -> None:
    def check(rank: int) -> Any:
        import farandole.torch as hvd

        generator = torch.Generator().manual_seed(1)
        loader = torch.utils.data.DataLoader(
            list(range(10)),
            batch_size=2,
            shuffle=shuffle,
            drop_last=True,
            generator=generator,
            collate_fn=tuple,
        )
        mine = hvd.distribute(loader)
        kept = (
            "batch_size",
            "num_workers",
            "collate_fn",
            "drop_last",
            "generator",
            "pin_memory",
            "timeout",
        )
        assert all(getattr(mine, name) == getattr(loader, name) for name in kept)
        with pytest.raises(ValueError, match=mentioning("distribute")):
            hvd.distribute(mine)
        return len(mine), [list(mine) for _ in range(2)]

    (length, (first, second)), (_, (other, other_second)) = job(2, check)
    assert length == 2
    assert all(isinstance(batch, tuple) and len(batch) == 2 for batch in (*first, *second))
    assert len({*itertools.chain(*first, *other)}) == 8
    assert (first != second) == shuffle
    if not shuffle:
        assert [*first, *other] == [(0, 2), (4, 6), (1, 3), (5, 7)]
    assert (other != other_second) == shuffle


@pytest.mark.parametrize("random", [False, True])
def test_batches_of_a_counting_batch_sampler_stay_batches(random: bool) -> None:
    """The loader has no batch size, and a sampler that it does not use."""
    import farandole.torch as hvd

    kinds = torch.utils.data
    hvd.init()
    try:
        order = (kinds.RandomSampler if random else kinds.SequentialSampler)(DATA)
        loader = kinds.DataLoader(DATA, batch_sampler=kinds.BatchSampler(order, 3, True))
        mine = hvd.distribute(loader)
        assert (mine.batch_size, mine.drop_last) == (3, True)
        epochs = [torch.cat(list(mine)).tolist() for _ in range(8)]
        assert all(len(epoch) == 3 for epoch in epochs)
        assert (len({*map(tuple, epochs)}) > 1) == random
        with pytest.raises(ValueError, match=mentioning("distribute")):
            hvd.distribute(mine)
    finally:
        hvd.shutdown()


def test_workers_stay_and_each_epoch_is_another() -> None:
    import farandole.torch as hvd

    hvd.init()
    try:
        loader = torch.utils.data.DataLoader(
            list(range(8)),
            batch_size=4,
            shuffle=True,
            num_workers=1,
            persistent_workers=True,
            prefetch_factor=3,
        )
        mine = hvd.distribute(loader, seed=3)
        assert (mine.num_workers, mine.persistent_workers, mine.prefetch_factor) == (1, True, 3)
        epochs = [torch.cat(list(mine)).tolist() for _ in range(2)]
        assert [sorted(each) for each in epochs] == [list(range(8))] * 2
        assert epochs[0] != epochs[1]
        del mine
    finally:
        hvd.shutdown()


class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc]
    def __iter__(self) -> Any:
        return iter(range(3))


DATA = list(range(4))


@pytest.mark.parametrize(
    ("loader", "error", "text"),
    [
        (
            lambda: DATA,
            TypeError,
            "torch.utils.data.DataLoader",
        ),
        (
            lambda: torch.utils.data.DataLoader(Stream()),
            TypeError,
            ("Stream", "IterableDataset", "islice"),
        ),
        (
            lambda: torch.utils.data.DataLoader(DATA, batch_sampler=[[0, 1]]),
            ValueError,
            "batch_sampler=list",
        ),
        (
            lambda: torch.utils.data.DataLoader(
                DATA,
                batch_sampler=torch.utils.data.BatchSampler(
                    torch.utils.data.SubsetRandomSampler([1]), 2, False
                ),
            ),
            ValueError,
            "sampler=SubsetRandomSampler",
        ),
        (
            lambda: torch.utils.data.DataLoader(DATA, batch_size=None),
            ValueError,
            "batch_size=None",
        ),
        (
            lambda: torch.utils.data.DataLoader(
                DATA, sampler=torch.utils.data.SubsetRandomSampler([1])
            ),
            ValueError,
            "sampler=SubsetRandomSampler",
        ),
        (
            lambda: torch.utils.data.DataLoader(
                DATA, sampler=torch.utils.data.RandomSampler(DATA, True)
            ),
            ValueError,
            ("replacement=True", "num_samples=None"),
        ),
    ],
    ids=str,
)
def test_loaders_that_cannot_be_distributed(
    loader: Any, error: type[Exception], text: str | tuple[str, ...]
) -> None:
    import farandole.torch as hvd

    with pytest.raises(error, match=mentioning(text)):
        hvd.distribute(loader())
