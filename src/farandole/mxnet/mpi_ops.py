"""The operations under the name of the module that Horovod has them in: ``hvd.mpi_ops``."""

from __future__ import annotations

from farandole.frontend import basics
from farandole.frontend.basics import *  # noqa: F403
from farandole.mxnet.built import cuda_built, nccl_built, rocm_built
from farandole.mxnet.functions import (
    allgather,
    allreduce,
    allreduce_,
    alltoall,
    barrier,
    broadcast,
    broadcast_,
    grouped_allgather,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_reducescatter,
    join,
    reducescatter,
)

__all__ = [
    *basics.__all__,
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "cuda_built",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "join",
    "nccl_built",
    "reducescatter",
    "rocm_built",
]
