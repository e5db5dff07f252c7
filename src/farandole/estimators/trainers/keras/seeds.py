"""Random numbers of Keras training."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np


def seed_all(keras: Any, seed: int) -> None:
    """Seed as ``keras.utils.set_random_seed`` does, without importing TensorFlow.

    Keras imports TensorFlow to seed it wherever it is installed, on any backend, which takes some
    500 MB of memory per rank.
    """
    # in Keras 3, whose ``tf`` imports TensorFlow on first use
    module: Any = sys.modules.get("keras.src.utils.rng_utils")
    if "tensorflow" in sys.modules or not hasattr(module, "tf"):
        keras.utils.set_random_seed(seed)
        return
    tensorflow, module.tf = module.tf, SimpleNamespace(available=False)
    try:
        keras.utils.set_random_seed(seed)
    finally:
        module.tf = tensorflow


def seed_layers(model: Any, numbers: np.random.Generator) -> None:
    """Set new seeds in layers without a user seed, because Keras 3's seeds came with the model."""
    for layer in model._flatten_layers():
        for each in getattr(layer, "_seed_generators", ()):
            if each.get_config()["seed"] is None:
                each.state.assign([int(numbers.integers(2**31)), 0])
