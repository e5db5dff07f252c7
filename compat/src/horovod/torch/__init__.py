"""``import horovod.torch as hvd``: farandole.torch."""

from importlib import import_module as _import

from farandole.torch import *  # noqa: F403

# with this import, hvd.mpi_ops is horovod's module
from horovod.torch.mpi_ops import _basics as _basics
from horovod.torch.optimizer import _DistributedOptimizer as _DistributedOptimizer

_import("horovod.torch.elastic")  # replaces farandole's module
