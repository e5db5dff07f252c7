"""Which samples each rank sees, and loading them ahead of time."""

from __future__ import annotations

from farandole.data.loader import AsyncDataLoaderMixin, BaseDataLoader
from farandole.data.permutation import Permutation
from farandole.data.sampler import DistributedSampler, ElasticSampler

__all__ = ["AsyncDataLoaderMixin", "BaseDataLoader", "DistributedSampler", "ElasticSampler", "Permutation"]
