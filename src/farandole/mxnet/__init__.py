"""Horovod's API for MXNet 1.9: ``import farandole.mxnet as hvd``."""

from __future__ import annotations

from farandole.core.api.helpers import print as print  # not for *: it would hide Python's
from farandole.core.api.objects import allgather_object, broadcast_object
from farandole.mxnet import kvstore as kvstore  # MXNet finds it by its name
from farandole.mxnet import mpi_ops
from farandole.mxnet.functions import Compression, gather
from farandole.mxnet.helpers import save, seed_everything
from farandole.mxnet.mpi_ops import *  # noqa: F403
from farandole.mxnet.optimizer import DistributedOptimizer
from farandole.mxnet.parameters import broadcast_parameters
from farandole.mxnet.trainer import DistributedTrainer

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gather",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
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
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "save",
    "seed_everything",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
