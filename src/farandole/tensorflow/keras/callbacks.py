"""``farandole.keras.callbacks`` where Horovod has it."""

from __future__ import annotations

from farandole.keras.callbacks import *  # noqa: F403
from farandole.keras.callbacks import __all__ as _names

__all__ = [*_names]
