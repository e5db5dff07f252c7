"""The collectives on torch tensors, and compression."""

from __future__ import annotations

import torch

from farandole.base.types import DType
from farandole.core.api.collectives import Collectives
from farandole.core.api.compression import CastCompressor, Compressor, NoneCompressor
from farandole.torch.binding import DeviceBinding, TorchBinding
from farandole.torch.device import cuda

binding = TorchBinding()
anywhere = DeviceBinding(cuda)
_collectives: Collectives[torch.Tensor, torch.Tensor] = Collectives(anywhere)

allreduce = _collectives.allreduce
allreduce_ = _collectives.allreduce_
allreduce_async = _collectives.allreduce_async
allreduce_async_ = _collectives.allreduce_async_
grouped_allreduce = _collectives.grouped_allreduce
grouped_allreduce_ = _collectives.grouped_allreduce_
grouped_allreduce_async = _collectives.grouped_allreduce_async
grouped_allreduce_async_ = _collectives.grouped_allreduce_async_
allgather = _collectives.allgather
allgather_async = _collectives.allgather_async
grouped_allgather = _collectives.grouped_allgather
grouped_allgather_async = _collectives.grouped_allgather_async
broadcast = _collectives.broadcast
broadcast_ = _collectives.broadcast_
broadcast_async = _collectives.broadcast_async
broadcast_async_ = _collectives.broadcast_async_
gather_rows_async = _collectives.gather_rows_async
alltoall = _collectives.alltoall
alltoall_async = _collectives.alltoall_async
reducescatter = _collectives.reducescatter
reducescatter_async = _collectives.reducescatter_async
grouped_reducescatter = _collectives.grouped_reducescatter
grouped_reducescatter_async = _collectives.grouped_reducescatter_async
barrier = _collectives.barrier
join = _collectives.join
poll = _collectives.poll
synchronize = _collectives.synchronize


class Compression:
    """Compression of tensors for the exchange: ``none``, ``fp16``, ``bf16``, or a custom subclass
    of ``Compressor``.
    """

    Compressor = Compressor
    none = NoneCompressor

    class fp16(CastCompressor):
        __module__ = "farandole.torch"  # the public path, for pickles
        binding = binding
        dtype = DType.FLOAT16

    class bf16(CastCompressor):
        __module__ = "farandole.torch"  # the public path, for pickles
        binding = binding
        dtype = DType.BFLOAT16
