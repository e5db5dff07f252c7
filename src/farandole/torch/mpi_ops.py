"""The operations under Horovod's module name: ``hvd.mpi_ops``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farandole.core.api import names
from farandole.core.api.basics import *  # noqa: F403
from farandole.core.api.basics import _basics as _basics
from farandole.torch.capabilities import cuda_built as cuda_built
from farandole.torch.capabilities import nccl_built as nccl_built
from farandole.torch.capabilities import rocm_built as rocm_built
from farandole.torch.differentiable import allgather as allgather
from farandole.torch.differentiable import allreduce as allreduce
from farandole.torch.differentiable import alltoall as alltoall
from farandole.torch.differentiable import broadcast as broadcast
from farandole.torch.differentiable import grouped_allgather as grouped_allgather
from farandole.torch.differentiable import grouped_allreduce as grouped_allreduce
from farandole.torch.differentiable import grouped_reducescatter as grouped_reducescatter
from farandole.torch.differentiable import reducescatter as reducescatter
from farandole.torch.functions import allgather_async as allgather_async
from farandole.torch.functions import allreduce_ as allreduce_
from farandole.torch.functions import allreduce_async as allreduce_async
from farandole.torch.functions import allreduce_async_ as allreduce_async_
from farandole.torch.functions import alltoall_async as alltoall_async
from farandole.torch.functions import barrier as barrier
from farandole.torch.functions import broadcast_ as broadcast_
from farandole.torch.functions import broadcast_async as broadcast_async
from farandole.torch.functions import broadcast_async_ as broadcast_async_
from farandole.torch.functions import grouped_allgather_async as grouped_allgather_async
from farandole.torch.functions import grouped_allreduce_ as grouped_allreduce_
from farandole.torch.functions import grouped_allreduce_async as grouped_allreduce_async
from farandole.torch.functions import grouped_allreduce_async_ as grouped_allreduce_async_
from farandole.torch.functions import grouped_reducescatter_async as grouped_reducescatter_async
from farandole.torch.functions import join as join
from farandole.torch.functions import poll as poll
from farandole.torch.functions import reducescatter_async as reducescatter_async
from farandole.torch.functions import synchronize as synchronize
from farandole.torch.sparse import sparse_allreduce_async as sparse_allreduce_async

if not TYPE_CHECKING:
    __all__ = names.listed(
        names.BASICS,
        names.BUILT_FOR_FRAMEWORK,
        names.COLLECTIVES,
        names.IN_PLACE,
        names.ASYNCHRONOUS,
        names.ASYNCHRONOUS_IN_PLACE,
        ("sparse_allreduce_async",),
    )
