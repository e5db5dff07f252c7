"""Horovod's API for TensorFlow: ``import farandole.tensorflow as hvd``."""

from __future__ import annotations

from typing import Any

from farandole.frontend.keras_callbacks import keras_2
from farandole.frontend.ops import reduce_op
from farandole.tensorflow import elastic, mpi_ops
from farandole.tensorflow.broadcasting import (
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from farandole.tensorflow.differentiable import (
    allgather,
    allreduce,
    alltoall,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
from farandole.tensorflow.functions import Compression
from farandole.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from farandole.tensorflow.mpi_ops import *  # noqa: F403
from farandole.tensorflow.optimizer import DistributedOptimizer
from farandole.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
from farandole.types import ReduceOp


def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> ReduceOp:
    """What ``op`` and ``average`` (old) say together. Raises ValueError if both are given."""
    return reduce_op(average, op)


def __getattr__(name: str) -> Any:
    """SyncBatchNormalization is Keras's, and so loads it."""
    if name == "SyncBatchNormalization":
        if keras_2():
            from farandole.tensorflow.tf_keras import sync_batch_norm as legacy

            return legacy.SyncBatchNormalization
        from farandole.tensorflow.sync_batch_norm import SyncBatchNormalization

        return SyncBatchNormalization
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "BroadcastGlobalVariablesHook",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "LocalGradientAggregationHelper",
    "PartialDistributedGradientTape",
    "allgather_object",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "elastic",
    "handle_average_backwards_compatibility",
    "Compression",
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "mpi_ops",
    "reducescatter",
    *mpi_ops.__all__,
]
