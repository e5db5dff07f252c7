from farandole.compat.basics import HorovodBasics
from farandole.torch.mpi_ops import *  # noqa: F403
from horovod.common.util import check_installed_version as check_installed_version
from horovod.common.util import (
    get_average_backwards_compatibility_fun as get_average_backwards_compatibility_fun,
)
from horovod.common.util import gpu_available as gpu_available
from horovod.common.util import num_rank_is_power_2 as num_rank_is_power_2

_basics = HorovodBasics()
