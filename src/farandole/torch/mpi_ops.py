"""The operations under the name of the module that Horovod has them in: ``hvd.mpi_ops``."""

from __future__ import annotations

from farandole.frontend import basics
from farandole.frontend.basics import *  # noqa: F403
from farandole.frontend.basics import _basics as _basics
from farandole.torch.built import cuda_built, nccl_built, rocm_built
from farandole.torch.differentiable import (
    allgather,
    allreduce,
    alltoall,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
from farandole.torch.functions import (
    allgather_async,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall_async,
    barrier,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather_async,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter_async,
    join,
    poll,
    reducescatter_async,
    synchronize,
)
from farandole.torch.sparse import sparse_allreduce_async

__all__ = [
    *basics.__all__,
    "allgather",
    "allgather_async",
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
    "cuda_built",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "nccl_built",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "rocm_built",
    "sparse_allreduce_async",
    "synchronize",
]
