from farandole.tensorflow.keras.callbacks import *  # noqa: F403
from farandole.tensorflow.keras.callbacks import __all__ as _names

__all__ = [*_names]
