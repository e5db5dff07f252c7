"""Random changes of samples (augmentation) that depend on the sample's position in the epoch, not
on the worker that loads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch.utils.data import DataLoader

from farandole.data import ElasticSampler
from farandole.strategies.shares.streams import seed_generators
from farandole.torch.helpers import with_sampler


def seeded_by_sample(loader: DataLoader[Any], sampler: ElasticSampler) -> DataLoader[Any]:
    """Return a loader whose workers seed their generators before they load each sample."""
    return with_sampler(loader, _Streams(sampler), _Seeded(loader.dataset))


class _Streams:
    """Yields (index, seed) pairs."""

    def __init__(self, sampler: ElasticSampler) -> None:
        self._sampler = sampler

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return self._sampler.streams()

    def __len__(self) -> int:
        return len(self._sampler)


class _Seeded:
    """A dataset that is read with (index, seed) pairs."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, pair: tuple[int, int]) -> Any:
        index, seed = pair
        seed_generators(seed)
        return self._dataset[index]

    def __getitems__(self, pairs: Sequence[tuple[int, int]]) -> Any:
        many = getattr(self._dataset, "__getitems__", None)
        if many is None:
            return [self[pair] for pair in pairs]
        seed_generators(pairs[0][1])
        return many([index for index, _ in pairs])
