from farandole.compat.basics import HorovodBasics
from farandole.torch.mpi_ops import *  # noqa: F403

_basics = HorovodBasics()
