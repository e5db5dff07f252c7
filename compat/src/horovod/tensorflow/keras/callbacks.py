from farandole.keras.callbacks import *  # noqa: F403
from farandole.keras.callbacks import __all__ as _names

__all__ = [*_names]
