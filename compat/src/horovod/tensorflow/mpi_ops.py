from farandole.compat.basics import HorovodBasics
from farandole.tensorflow import (
    allgather,
    alltoall,
    broadcast,
    broadcast_,
    grouped_allgather,
    grouped_reducescatter,
    reducescatter,
)
from farandole.tensorflow.mpi_ops import *  # noqa: F403
from farandole.tensorflow.mpi_ops import __all__ as _names
from farandole.tensorflow.mpi_ops import check_num_rank_power_of_2 as check_num_rank_power_of_2

_basics = HorovodBasics()

__all__ = [
    *_names,
    "allgather",
    "alltoall",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_reducescatter",
    "reducescatter",
]
