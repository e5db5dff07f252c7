"""``farandole.keras.elastic`` where Horovod has it."""

from __future__ import annotations

from farandole.keras.elastic import *  # noqa: F403
from farandole.keras.elastic import __all__ as _names

__all__ = [*_names]
