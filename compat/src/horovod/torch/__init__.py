"""``import horovod.torch as hvd``: farandole.torch."""

from farandole.torch import *  # noqa: F403
from farandole.torch import __all__ as _names
from horovod.torch import elastic, mpi_ops

__all__ = [*_names, "elastic", "mpi_ops"]
