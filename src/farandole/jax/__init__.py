"""Horovod's API for JAX: ``import farandole.jax as hvd``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farandole.core.api import names
from farandole.core.api.basics import *  # noqa: F403
from farandole.core.api.helpers import print as print  # not in *: it would hide Python's print
from farandole.jax import elastic as elastic
from farandole.jax.collectives import Compression as Compression
from farandole.jax.collectives import allgather as allgather
from farandole.jax.collectives import allreduce as allreduce
from farandole.jax.collectives import alltoall as alltoall
from farandole.jax.collectives import barrier as barrier
from farandole.jax.collectives import broadcast as broadcast
from farandole.jax.collectives import gather as gather
from farandole.jax.collectives import grouped_allgather as grouped_allgather
from farandole.jax.collectives import grouped_allreduce as grouped_allreduce
from farandole.jax.collectives import grouped_reducescatter as grouped_reducescatter
from farandole.jax.collectives import join as join
from farandole.jax.collectives import reducescatter as reducescatter
from farandole.jax.gradients import reduce_gradients as reduce_gradients
from farandole.jax.native import AXIS as AXIS
from farandole.jax.native import init_distributed as init_distributed
from farandole.jax.native import mesh as mesh
from farandole.jax.native import spmd as spmd
from farandole.jax.native import use_native as use_native
from farandole.jax.optimizer import DistributedOptimizer as DistributedOptimizer
from farandole.jax.optimizer import distributed_gradients as distributed_gradients
from farandole.jax.optimizer import grad as grad
from farandole.jax.optimizer import value_and_grad as value_and_grad
from farandole.jax.pending import allgather_async as allgather_async
from farandole.jax.pending import allreduce_async as allreduce_async
from farandole.jax.pending import alltoall_async as alltoall_async
from farandole.jax.pending import broadcast_async as broadcast_async
from farandole.jax.pending import grouped_allgather_async as grouped_allgather_async
from farandole.jax.pending import grouped_allreduce_async as grouped_allreduce_async
from farandole.jax.pending import grouped_reducescatter_async as grouped_reducescatter_async
from farandole.jax.pending import poll as poll
from farandole.jax.pending import reducescatter_async as reducescatter_async
from farandole.jax.pending import synchronize as synchronize
from farandole.jax.primitive import plain_errors as plain_errors
from farandole.jax.primitive import shutdown as shutdown  # replaces the one of basics
from farandole.jax.seeds import seed_everything as seed_everything
from farandole.jax.state import JaxState as JaxState
from farandole.jax.trees import allgather_object as allgather_object
from farandole.jax.trees import broadcast_object as broadcast_object
from farandole.jax.trees import broadcast_parameters as broadcast_parameters
from farandole.jax.trees import check_replicas as check_replicas

if not TYPE_CHECKING:
    __all__ = names.listed(
        names.BASICS,
        names.COLLECTIVES,
        names.ASYNCHRONOUS,
        names.OBJECTS,
        (
            "AXIS",
            "Compression",
            "DistributedOptimizer",
            "JaxState",
            "broadcast_parameters",
            "check_replicas",
            "distributed_gradients",
            "elastic",
            "gather",
            "grad",
            "init_distributed",
            "mesh",
            "plain_errors",
            "reduce_gradients",
            "seed_everything",
            "spmd",
            "use_native",
            "value_and_grad",
        ),
    )
