"""Helpers for torch programs on several ranks: seeds, checkpoints, and data loaders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from farandole.core.api import helpers
from farandole.core.api.documented import documented
from farandole.data import DistributedSampler

T_co = TypeVar("T_co", covariant=True)


@helpers.seeding(
    "augmenting = hvd.seed_everything(7)\nmodel = Net()  # the same weights on all ranks\nnoise ="
    " torch.randn(3, generator=augmenting)  # different noise on each rank"
)
def seed_everything(seed: int) -> torch.Generator:
    """Seed the global generators of Python, numpy and torch (including all GPUs) with the same seed
    on all ranks, so that models begin with the same weights. Return a ``torch.Generator`` on the
    CPU, seeded per rank, for values that must differ between ranks, such as augmentation and noise.

    Dropout draws from the global generator, so its masks are the same on all ranks. For different
    masks, call ``torch.manual_seed(generator.initial_seed())`` after creating the model.
    """
    own = helpers.seeded(seed)
    torch.manual_seed(seed)
    return torch.Generator().manual_seed(own)


@helpers.saving(
    obj="the object to save, as for torch.save. Rank 0's is written; other ranks may pass None.",
    path="path of the file. Its folder must exist.",
    options="passed on to torch.save.",
    example="hvd.save({'model': model.state_dict(), 'epoch': epoch}, 'last.pt')",
)
def save(obj: Any, path: str | os.PathLike[str], **options: Any) -> None:
    """Save on rank 0 with ``torch.save``, atomically: the new file replaces the old one once it is
    on disk. All ranks call this function, and return when the file is complete.
    """
    helpers.saved_by_rank_0(lambda place: torch.save(obj, place, **options), path)


@documented(
    "init",
    "TypeError: loader is not a DataLoader, or its dataset is an IterableDataset.",
    "ValueError: loader has a batch_sampler or a custom sampler.",
    loader="a torch DataLoader, with shuffle=True or False.",
    seed="seeds the order, together with the epoch. The same on all ranks.",
    even=(
        "handling of samples that do not divide evenly among the ranks: 'pad' (repeat some) or"
        " 'drop'."
    ),
    example=(
        "loader = hvd.distribute(DataLoader(data, batch_size=32, shuffle=True))\n"
        "for epoch in range(3):\n    for batch in loader:  # a new order in every epoch"
    ),
)
def distribute(loader: DataLoader[T_co], *, seed: int = 0, even: str = "pad") -> DataLoader[T_co]:
    """Return ``loader`` with this rank's part of the dataset. Batch size (per rank), workers,
    ``collate_fn``, ``drop_last``, shuffling and all other options stay. Each iteration is a new
    epoch.
    """
    check_loader(loader)
    sampler = _Epochs(loader.dataset, shuffle=is_shuffled(loader), seed=seed, even=even)
    return with_sampler(loader, sampler)


def is_shuffled(loader: DataLoader[T_co]) -> bool:
    """Return whether a checked loader has ``shuffle=True``."""
    batches = loader.batch_sampler
    assert isinstance(batches, BatchSampler)
    return isinstance(batches.sampler, RandomSampler)


def with_sampler(loader: DataLoader[T_co], sampler: Any, dataset: Any = None) -> DataLoader[T_co]:
    """Return a loader with the same options and another sampler, of the same dataset or of
    ``dataset``.
    """
    batches = loader.batch_sampler  # the program's own, or built from the loader's options
    assert isinstance(batches, BatchSampler)
    kept = {name: getattr(loader, name) for name in _KEPT if hasattr(loader, name)}
    kept |= {"batch_size": batches.batch_size, "drop_last": batches.drop_last}
    if not loader.num_workers:
        kept = {name: value for name, value in kept.items() if name not in _WITH_WORKERS}
    return DataLoader(loader.dataset if dataset is None else dataset, sampler=sampler, **kept)


_WITH_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context")
_KEPT = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "generator",
    "pin_memory_device",
    "in_order",
    *_WITH_WORKERS,
)


class _Epochs(DistributedSampler):
    """A sampler that begins a new epoch at each iteration."""

    _begun = False

    def __iter__(self) -> Iterator[int]:
        if self._begun:
            self.set_epoch(self.epoch + 1)
        self._begun = True
        return super().__iter__()


def check_loader(loader: Any) -> None:
    """Raise TypeError or ValueError for a loader whose samples cannot be divided among ranks."""
    if not isinstance(loader, DataLoader):
        raise TypeError(
            f"distribute takes a torch.utils.data.DataLoader, not {type(loader).__name__}. For"
            " other loaders use farandole.data.DistributedSampler(dataset), which yields this"
            " rank's indices"
        )
    if isinstance(loader.dataset, IterableDataset):
        raise TypeError(
            f"{type(loader.dataset).__name__} is an IterableDataset, which determines the order of"
            " its samples. Skip the samples of other ranks in it: itertools.islice(samples,"
            " hvd.rank(), None, hvd.size())"
        )
    if loader.batch_sampler is None:
        raise ValueError(
            "the DataLoader has batch_size=None, so there are no batches to distribute. Pass"
            " batch_size=, or create it with sampler=farandole.data.DistributedSampler(dataset)"
            " and use it without distribute"
        )
    if type(loader.batch_sampler) is not BatchSampler:
        raise ValueError(
            f"the DataLoader has batch_sampler={type(loader.batch_sampler).__name__}, which"
            " determines the batches. Let it choose from the indices of"
            " farandole.data.DistributedSampler(dataset) and use the loader without distribute,"
            " or use batch_size="
        )
    sampler = loader.batch_sampler.sampler
    if isinstance(sampler, DistributedSampler):
        raise ValueError(
            "this DataLoader is already limited to this rank's part of the dataset. Call"
            " distribute only once"
        )
    if type(sampler) not in (RandomSampler, SequentialSampler):
        raise ValueError(
            f"the DataLoader has sampler={type(sampler).__name__}, whose samples distribute cannot"
            " divide among the ranks. Use shuffle=True or False, or a sampler that depends on"
            " hvd.rank()"
        )
    if isinstance(sampler, RandomSampler) and (sampler.replacement or sampler._num_samples):
        raise ValueError(
            f"the DataLoader's RandomSampler has replacement={sampler.replacement} and"
            f" num_samples={sampler._num_samples}, but distribute yields each sample once. Use"
            " shuffle=True"
        )
