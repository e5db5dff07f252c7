"""``farandole.keras.callbacks`` under Horovod's name; the Keras 2 callbacks if the program uses
Keras 2.
"""

from __future__ import annotations

from typing import Any

from farandole.core.api.keras_version import keras_name
from farandole.job.plugins import registry

_callbacks = registry.load("callbacks", keras_name())
__all__ = [*_callbacks.__all__]


def __getattr__(name: str) -> Any:
    return getattr(_callbacks, name)
