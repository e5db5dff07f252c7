from farandole.compat.basics import HorovodBasics
from farandole.torch import *  # noqa: F403
from farandole.torch import __all__ as _names

_basics = HorovodBasics()

__all__ = [*_names]
