"""Horovod's API for Keras 3 on TensorFlow, JAX and PyTorch: ``import farandole.keras as hvd``.

``farandole.keras.tf_keras`` has the API for Keras 2. A program for Keras 2 (TF_USE_LEGACY_KERAS=1)
imports this package as well; Keras 3 is loaded only when the program uses one of these names.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from farandole.core.api import names
from farandole.core.api.basics import *  # noqa: F403

# not for ``*``, which would hide Python's print
from farandole.core.api.helpers import print as print
from farandole.core.api.helpers import save_model
from farandole.core.api.keras_version import keras_2
from farandole.core.api.objects import allgather_object as allgather_object
from farandole.core.api.objects import broadcast_object as broadcast_object

if not keras_2():
    from farandole.keras.keras_3 import *  # noqa: F403

save = save_model

if not TYPE_CHECKING:
    __all__ = names.listed(names.KERAS_3)


def __getattr__(name: str) -> Any:
    if name == "Compression":  # the backend's Compression
        values = importlib.import_module("farandole.keras.values")
        return values.functions().Compression
    if name in names.KERAS_3:
        return getattr(importlib.import_module("farandole.keras.keras_3"), name)
    raise AttributeError(f"module 'farandole.keras' has no attribute {name!r}")
