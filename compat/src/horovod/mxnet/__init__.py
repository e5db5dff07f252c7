"""``import horovod.mxnet as hvd``: farandole.mxnet."""

from horovod.common.util import check_extension

check_extension("horovod.mxnet", "HOROVOD_WITH_MXNET", __file__)

from farandole.mxnet import *  # noqa: E402,F403
from horovod.common.util import split_list as split_list  # noqa: E402

# With this import, hvd.mpi_ops is horovod's module.
from horovod.mxnet.mpi_ops import _basics as _basics  # noqa: E402
