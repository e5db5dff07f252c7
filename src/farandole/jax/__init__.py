"""Horovod's API for JAX: ``import farandole.jax as hvd``."""

from __future__ import annotations

from farandole.context import (
    ProcessSet,
    add_process_set,
    cross_rank,
    cross_size,
    global_process_set,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    remove_process_set,
    size,
    start_timeline,
    stop_timeline,
)
from farandole.errors import HorovodInternalError
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
from farandole.jax.primitive import plain_errors, shutdown
from farandole.jax.state import JaxState
from farandole.jax.trees import allgather_object, broadcast_object, broadcast_parameters, check_replicas
from farandole.types import ReduceOp

Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM
Adasum = ReduceOp.ADASUM
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT

__all__ = [
    "AXIS",
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "JaxState",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
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
    "cross_rank",
    "cross_size",
    "distributed_gradients",
    "global_process_set",
    "grad",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_async",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "init_distributed",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mesh",
    "plain_errors",
    "poll",
    "rank",
    "reduce_gradients",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "shutdown",
    "size",
    "spmd",
    "start_timeline",
    "stop_timeline",
    "synchronize",
    "use_native",
    "value_and_grad",
]
