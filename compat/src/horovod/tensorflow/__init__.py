"""``import horovod.tensorflow as hvd``: farandole.tensorflow."""

from horovod.common.util import check_extension

check_extension("horovod.tensorflow", "HOROVOD_WITH_TENSORFLOW", __file__)

from farandole.tensorflow import *  # noqa: E402,F403
from farandole.tensorflow import __all__ as _names  # noqa: E402
from farandole.tensorflow import __getattr__ as __getattr__  # noqa: E402  SyncBatchNormalization loads Keras
from horovod.tensorflow import elastic as elastic  # noqa: E402
from horovod.tensorflow.mpi_ops import _basics as _basics  # noqa: E402  and with it hvd.mpi_ops is horovod's

__all__ = [*_names]
