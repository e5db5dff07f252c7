"""The version of Keras behind ``tf.keras``, determined without loading it."""

from __future__ import annotations

import os


def keras_2() -> bool:
    """Return whether ``tf.keras`` is the package ``tf_keras``, the continuation of Keras 2.
    TensorFlow checks the same variable.
    """
    return os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True")


def keras_name() -> str:
    """Return the name of ``tf.keras`` in the registry: "keras" or "tf_keras"."""
    return "tf_keras" if keras_2() else "keras"


def keras_of(something: object) -> str:
    """Return the registry name of the Keras version of a model or an optimizer."""
    return (
        "tf_keras"
        if any(base.__module__.startswith("tf_keras.") for base in type(something).__mro__)
        else "keras"
    )
