from farandole.compat.basics import HorovodBasics
from farandole.mxnet.mpi_ops import *  # noqa: F403
from farandole.mxnet.mpi_ops import __all__ as _names

_basics = HorovodBasics()

__all__ = [*_names]
