"""``farandole.keras`` under Horovod's name: ``import farandole.tensorflow.keras as hvd``.

With TF_USE_LEGACY_KERAS=1, when ``tf.keras`` is Keras 2, this is ``farandole.keras.tf_keras``.
"""

from __future__ import annotations

from typing import Any

from farandole.core.api import names
from farandole.core.api.keras_version import keras_2, keras_name
from farandole.job.plugins import registry

_api = registry.load("api", keras_name())


def __getattr__(name: str) -> Any:
    return getattr(_api, name)


__all__ = names.listed(names.KERAS_2 if keras_2() else names.KERAS_3)
