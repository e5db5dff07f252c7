"""Horovod's API for MXNet 1.9: ``import farandole.mxnet as hvd``."""

from __future__ import annotations

from farandole.frontend.objects import allgather_object, broadcast_object
from farandole.mxnet import mpi_ops
from farandole.mxnet.functions import Compression
from farandole.mxnet.mpi_ops import *  # noqa: F403
from farandole.mxnet.optimizer import DistributedOptimizer
from farandole.mxnet.parameters import broadcast_parameters
from farandole.mxnet.trainer import DistributedTrainer

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "allgather_object",
    "broadcast_object",
    "broadcast_parameters",
    "mpi_ops",
    *mpi_ops.__all__,
]
