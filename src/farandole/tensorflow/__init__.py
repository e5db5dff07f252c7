"""Horovod's API for TensorFlow: ``import farandole.tensorflow as hvd``."""

from __future__ import annotations

from typing import Any

from farandole.base.types import ReduceOp
from farandole.core.api.documented import documented
from farandole.core.api.helpers import print as print  # not for *: it would hide Python's
from farandole.core.api.keras_version import keras_name
from farandole.core.api.ops import reduce_op
from farandole.job.plugins import registry
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
    gather,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
from farandole.tensorflow.functions import Compression
from farandole.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from farandole.tensorflow.mpi_ops import *  # noqa: F403
from farandole.tensorflow.optimizer import DistributedOptimizer
from farandole.tensorflow.seeds import seed_everything
from farandole.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape


@documented("op")
def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> ReduceOp:
    """What ``op`` and ``average`` (old) say together. Raises ValueError if both are given."""
    return reduce_op(average, op)


def __getattr__(name: str) -> Any:
    """SyncBatchNormalization is Keras's, and so loads it."""
    if name == "SyncBatchNormalization":
        return registry.load("batch_norm", keras_name())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "HorovodInternalError",
    "LocalGradientAggregationHelper",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "ccl_built",
    "check_num_rank_power_of_2",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "gather",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_ops",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "seed_everything",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]
