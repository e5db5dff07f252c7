"""``farandole.keras`` where Horovod has it: ``import farandole.tensorflow.keras as hvd``."""

from __future__ import annotations

from farandole.keras import *  # noqa: F403
from farandole.keras import __all__ as _names

__all__ = [*_names]
