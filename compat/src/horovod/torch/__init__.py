"""``import horovod.torch as hvd``: farandole.torch."""

from importlib import import_module as _import

from farandole.torch import *  # noqa: F403
from horovod.torch.mpi_ops import _basics as _basics  # and with it hvd.mpi_ops is horovod's
from horovod.torch.optimizer import _DistributedOptimizer as _DistributedOptimizer

_import("horovod.torch.elastic")  # in the place of farandole's
