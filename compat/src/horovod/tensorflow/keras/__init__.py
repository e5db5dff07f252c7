"""``import horovod.tensorflow.keras as hvd``: farandole.keras."""

from horovod.common.util import check_extension

check_extension("horovod.keras", "HOROVOD_WITH_TENSORFLOW", __file__)

from farandole.keras import *  # noqa: E402,F403
from farandole.keras import __all__ as _names  # noqa: E402
from horovod.tensorflow.keras import callbacks, elastic  # noqa: E402

__all__ = [*_names, "callbacks", "elastic"]
