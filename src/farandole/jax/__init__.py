"""Horovod's API for JAX: ``import farandole.jax as hvd``."""

from __future__ import annotations

from farandole.frontend import basics
from farandole.frontend.basics import *  # noqa: F403
from farandole.jax.collectives import (
    Compression,
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    join,
    reducescatter,
)
from farandole.jax.gradients import reduce_gradients
from farandole.jax.native import AXIS, init_distributed, mesh, spmd, use_native
from farandole.jax.optimizer import DistributedOptimizer, distributed_gradients, grad, value_and_grad
from farandole.jax.pending import (
    allgather_async,
    allreduce_async,
    alltoall_async,
    broadcast_async,
    grouped_allgather_async,
    grouped_allreduce_async,
    grouped_reducescatter_async,
    poll,
    reducescatter_async,
    synchronize,
)
from farandole.jax.primitive import plain_errors
from farandole.jax.primitive import shutdown as shutdown  # in the place of that of basics
from farandole.jax.state import JaxState
from farandole.jax.trees import allgather_object, broadcast_object, broadcast_parameters, check_replicas

__all__ = [
    *basics.__all__,
    "AXIS",
    "Compression",
    "DistributedOptimizer",
    "JaxState",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_async",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_async",
    "broadcast_object",
    "broadcast_parameters",
    "check_replicas",
    "distributed_gradients",
    "grad",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_async",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init_distributed",
    "join",
    "mesh",
    "plain_errors",
    "poll",
    "reduce_gradients",
    "reducescatter",
    "reducescatter_async",
    "spmd",
    "synchronize",
    "use_native",
    "value_and_grad",
]
