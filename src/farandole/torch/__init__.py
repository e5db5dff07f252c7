"""Horovod's API for PyTorch: ``import farandole.torch as hvd``."""

from __future__ import annotations

from farandole.core.api.helpers import print as print  # not for *: it would hide Python's
from farandole.core.api.objects import allgather_object, broadcast_object
from farandole.torch import checks as checks
from farandole.torch import dynamo, elastic, mpi_ops
from farandole.torch.differentiable import gather
from farandole.torch.functions import Compression
from farandole.torch.helpers import distribute, save, seed_everything
from farandole.torch.mpi_ops import *  # noqa: F403
from farandole.torch.optimizer import DistributedOptimizer
from farandole.torch.state import broadcast_optimizer_state, broadcast_parameters
from farandole.torch.sync_batch_norm import SyncBatchNorm, convert_sync_batchnorm

dynamo.leave_alone("farandole")

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNorm",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "convert_sync_batchnorm",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "distribute",
    "elastic",
    "gather",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_ops",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "save",
    "seed_everything",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]
