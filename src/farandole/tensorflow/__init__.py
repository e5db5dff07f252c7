"""Horovod's API for TensorFlow: ``import farandole.tensorflow as hvd``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from farandole.base.types import ReduceOp
from farandole.core.api import names
from farandole.core.api.documented import documented

# not for ``*``, which would hide Python's print
from farandole.core.api.helpers import print as print
from farandole.core.api.keras_version import keras_name
from farandole.core.api.ops import reduce_op
from farandole.job.plugins import registry
from farandole.tensorflow import elastic as elastic
from farandole.tensorflow import mpi_ops as mpi_ops
from farandole.tensorflow.broadcasting import (
    BroadcastGlobalVariablesHook as BroadcastGlobalVariablesHook,
)
from farandole.tensorflow.broadcasting import allgather_object as allgather_object
from farandole.tensorflow.broadcasting import broadcast_ as broadcast_
from farandole.tensorflow.broadcasting import (
    broadcast_global_variables as broadcast_global_variables,
)
from farandole.tensorflow.broadcasting import broadcast_object as broadcast_object
from farandole.tensorflow.broadcasting import broadcast_object_fn as broadcast_object_fn
from farandole.tensorflow.broadcasting import broadcast_variables as broadcast_variables
from farandole.tensorflow.differentiable import allgather as allgather
from farandole.tensorflow.differentiable import allreduce as allreduce
from farandole.tensorflow.differentiable import alltoall as alltoall
from farandole.tensorflow.differentiable import broadcast as broadcast
from farandole.tensorflow.differentiable import gather as gather
from farandole.tensorflow.differentiable import grouped_allgather as grouped_allgather
from farandole.tensorflow.differentiable import grouped_allreduce as grouped_allreduce
from farandole.tensorflow.differentiable import grouped_reducescatter as grouped_reducescatter
from farandole.tensorflow.differentiable import reducescatter as reducescatter
from farandole.tensorflow.functions import Compression as Compression
from farandole.tensorflow.gradient_aggregation import (
    LocalGradientAggregationHelper as LocalGradientAggregationHelper,
)
from farandole.tensorflow.mpi_ops import *  # noqa: F403
from farandole.tensorflow.optimizer import DistributedOptimizer as DistributedOptimizer
from farandole.tensorflow.seeds import seed_everything as seed_everything
from farandole.tensorflow.tape import DistributedGradientTape as DistributedGradientTape
from farandole.tensorflow.tape import (
    PartialDistributedGradientTape as PartialDistributedGradientTape,
)


@documented("op")
def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> ReduceOp:
    """Return the reduction for ``op`` and the older ``average``. Raises ValueError if both are
    given.
    """
    return reduce_op(average, op)


def __getattr__(name: str) -> Any:
    """Load SyncBatchNormalization lazily, because it loads Keras."""
    if name == "SyncBatchNormalization":
        return registry.load("batch_norm", keras_name())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if not TYPE_CHECKING:
    __all__ = names.listed(
        mpi_ops.__all__,
        names.COLLECTIVES,
        names.OBJECTS,
        (
            "BroadcastGlobalVariablesHook",
            "Compression",
            "DistributedGradientTape",
            "DistributedOptimizer",
            "LocalGradientAggregationHelper",
            "PartialDistributedGradientTape",
            "broadcast_",
            "broadcast_global_variables",
            "broadcast_object_fn",
            "broadcast_variables",
            "elastic",
            "gather",
            "handle_average_backwards_compatibility",
            "mpi_ops",
            "seed_everything",
        ),
    )
