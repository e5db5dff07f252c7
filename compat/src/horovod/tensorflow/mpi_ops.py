from farandole.compat.basics import HorovodBasics
from farandole.compat.internals import part_of_sum as _reducescatter  # noqa: F401
from farandole.compat.internals import parts_of_sums as _grouped_reducescatter  # noqa: F401
from farandole.compat.internals import sum_of as _allreduce  # noqa: F401
from farandole.compat.internals import sums_of as _grouped_allreduce  # noqa: F401
from farandole.tensorflow import allgather as allgather
from farandole.tensorflow import alltoall as alltoall
from farandole.tensorflow import broadcast as broadcast
from farandole.tensorflow import broadcast_ as broadcast_
from farandole.tensorflow import grouped_allgather as grouped_allgather
from farandole.tensorflow import grouped_reducescatter as grouped_reducescatter
from farandole.tensorflow import (
    handle_average_backwards_compatibility as handle_average_backwards_compatibility,
)
from farandole.tensorflow import reducescatter as reducescatter
from farandole.tensorflow.mpi_ops import *  # noqa: F403
from farandole.tensorflow.mpi_ops import check_num_rank_power_of_2 as check_num_rank_power_of_2

_basics = HorovodBasics()
