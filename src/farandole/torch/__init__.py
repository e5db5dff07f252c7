"""Horovod's API for PyTorch: ``import farandole.torch as hvd``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farandole.core.api import names
from farandole.core.api.helpers import print as print  # not in *: it would hide Python's print
from farandole.core.api.objects import allgather_object as allgather_object
from farandole.core.api.objects import broadcast_object as broadcast_object
from farandole.torch import checks as checks
from farandole.torch import dynamo
from farandole.torch import elastic as elastic
from farandole.torch import mpi_ops as mpi_ops
from farandole.torch.differentiable import gather as gather
from farandole.torch.functions import Compression as Compression
from farandole.torch.helpers import distribute as distribute
from farandole.torch.helpers import save as save
from farandole.torch.helpers import seed_everything as seed_everything
from farandole.torch.mpi_ops import *  # noqa: F403
from farandole.torch.optimizer import DistributedOptimizer as DistributedOptimizer
from farandole.torch.state import broadcast_optimizer_state as broadcast_optimizer_state
from farandole.torch.state import broadcast_parameters as broadcast_parameters
from farandole.torch.sync_batch_norm import SyncBatchNorm as SyncBatchNorm
from farandole.torch.sync_batch_norm import convert_sync_batchnorm as convert_sync_batchnorm

dynamo.exclude("farandole")

if not TYPE_CHECKING:
    __all__ = names.listed(
        mpi_ops.__all__,
        names.OBJECTS,
        (
            "Compression",
            "DistributedOptimizer",
            "SyncBatchNorm",
            "broadcast_optimizer_state",
            "broadcast_parameters",
            "convert_sync_batchnorm",
            "distribute",
            "elastic",
            "gather",
            "mpi_ops",
            "save",
            "seed_everything",
        ),
    )
