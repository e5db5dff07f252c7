"""``import horovod.torch as hvd``: farandole.torch."""

from farandole.torch import *  # noqa: F403
from farandole.torch import __all__ as _names
from horovod.torch import elastic
from horovod.torch.mpi_ops import _basics as _basics  # and with it hvd.mpi_ops is horovod's

__all__ = [*_names, "elastic"]
