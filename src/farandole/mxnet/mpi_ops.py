"""The operations under the name of Horovod's module: ``hvd.mpi_ops``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farandole.core.api import names
from farandole.core.api.basics import *  # noqa: F403
from farandole.mxnet.capabilities import cuda_built as cuda_built
from farandole.mxnet.capabilities import nccl_built as nccl_built
from farandole.mxnet.capabilities import rocm_built as rocm_built
from farandole.mxnet.functions import allgather as allgather
from farandole.mxnet.functions import allreduce as allreduce
from farandole.mxnet.functions import allreduce_ as allreduce_
from farandole.mxnet.functions import alltoall as alltoall
from farandole.mxnet.functions import barrier as barrier
from farandole.mxnet.functions import broadcast as broadcast
from farandole.mxnet.functions import broadcast_ as broadcast_
from farandole.mxnet.functions import grouped_allgather as grouped_allgather
from farandole.mxnet.functions import grouped_allreduce as grouped_allreduce
from farandole.mxnet.functions import grouped_allreduce_ as grouped_allreduce_
from farandole.mxnet.functions import grouped_reducescatter as grouped_reducescatter
from farandole.mxnet.functions import join as join
from farandole.mxnet.functions import reducescatter as reducescatter

if not TYPE_CHECKING:
    __all__ = names.listed(
        names.BASICS, names.BUILT_FOR_FRAMEWORK, names.COLLECTIVES, names.IN_PLACE
    )
