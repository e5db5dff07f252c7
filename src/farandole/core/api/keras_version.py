"""Which Keras ``tf.keras`` is, without loading either."""

from __future__ import annotations

import os


def keras_2() -> bool:
    """Is ``tf.keras`` the package ``tf_keras``, which Keras 2 lives on as? TensorFlow asks the
    same.
    """
    return os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True")


def keras_name() -> str:
    """The name of ``tf.keras`` in the registry: "keras" or "tf_keras"."""
    return "tf_keras" if keras_2() else "keras"


def keras_of(something: object) -> str:
    """Likewise, of the Keras that a model or an optimizer is of."""
    return (
        "tf_keras"
        if any(base.__module__.startswith("tf_keras.") for base in type(something).__mro__)
        else "keras"
    )
