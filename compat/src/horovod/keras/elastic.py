from farandole.keras.elastic import *  # noqa: F403
from farandole.keras.elastic import __all__ as _names

__all__ = [*_names]
