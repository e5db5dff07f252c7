"""Horovod's API for PyTorch: ``import farandole.torch as hvd``."""

from __future__ import annotations

from farandole.frontend.objects import allgather_object, broadcast_object
from farandole.torch import elastic, mpi_ops
from farandole.torch.functions import Compression
from farandole.torch.mpi_ops import *  # noqa: F403
from farandole.torch.optimizer import DistributedOptimizer
from farandole.torch.state import broadcast_optimizer_state, broadcast_parameters
from farandole.torch.sync_batch_norm import SyncBatchNorm, convert_sync_batchnorm

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "SyncBatchNorm",
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "convert_sync_batchnorm",
    "elastic",
    "mpi_ops",
    *mpi_ops.__all__,
]
