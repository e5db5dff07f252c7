"""Horovod's API for Keras 2, which lives on as the package ``tf_keras``: what
``farandole.tensorflow.keras`` is with TF_USE_LEGACY_KERAS=1, as ``tf.keras`` is ``tf_keras`` then.
"""

from __future__ import annotations

from farandole.core.api import basics
from farandole.core.api.basics import *  # noqa: F403
from farandole.core.api.helpers import print as print  # not for *: it would hide Python's
from farandole.core.api.helpers import save_model as save
from farandole.core.api.objects import allgather_object, broadcast_object
from farandole.keras.tf_keras import callbacks, elastic
from farandole.keras.tf_keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from farandole.keras.tf_keras.saving import load_model
from farandole.keras.tf_keras.sync_batch_norm import SyncBatchNormalization
from farandole.keras.tf_keras.values import (
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    reducescatter,
)
from farandole.tensorflow.broadcasting import broadcast_variables
from farandole.tensorflow.capabilities import cuda_built, nccl_built, rocm_built
from farandole.tensorflow.functions import Compression
from farandole.tensorflow.mpi_ops import barrier
from farandole.tensorflow.seeds import seed_everything

__all__ = [
    *basics.__all__,
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "SyncBatchNormalization",
    "allgather",
    "allgather_object",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "cuda_built",
    "elastic",
    "load_model",
    "nccl_built",
    "reducescatter",
    "rocm_built",
    "save",
    "seed_everything",
]
