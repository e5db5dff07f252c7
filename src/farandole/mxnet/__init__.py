"""Horovod's API for MXNet 1.9: ``import farandole.mxnet as hvd``."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from farandole.core.api import names

# not for ``*``, which would hide Python's print
from farandole.core.api.helpers import print as print
from farandole.core.api.objects import allgather_object as allgather_object
from farandole.core.api.objects import broadcast_object as broadcast_object
from farandole.mxnet import kvstore as kvstore  # MXNet finds the store by its name
from farandole.mxnet import mpi_ops as mpi_ops
from farandole.mxnet.functions import Compression as Compression
from farandole.mxnet.functions import gather as gather
from farandole.mxnet.helpers import save as save
from farandole.mxnet.helpers import seed_everything as seed_everything
from farandole.mxnet.mpi_ops import *  # noqa: F403
from farandole.mxnet.optimizer import DistributedOptimizer as DistributedOptimizer
from farandole.mxnet.parameters import broadcast_parameters as broadcast_parameters
from farandole.mxnet.trainer import DistributedTrainer as DistributedTrainer

if TYPE_CHECKING:
    from farandole.mxnet import elastic as elastic


def __getattr__(name: str) -> Any:
    if name == "elastic":  # loaded when it is used, because most jobs have a fixed size
        return importlib.import_module("farandole.mxnet.elastic")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if not TYPE_CHECKING:
    __all__ = names.listed(
        mpi_ops.__all__,
        names.OBJECTS,
        (
            "Compression",
            "DistributedOptimizer",
            "DistributedTrainer",
            "broadcast_parameters",
            "elastic",
            "gather",
            "mpi_ops",
            "save",
            "seed_everything",
        ),
    )
