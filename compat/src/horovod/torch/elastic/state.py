from farandole.torch.elastic import *  # noqa: F403
from farandole.torch.elastic import __all__ as _names

__all__ = [*_names]
