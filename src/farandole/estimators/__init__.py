"""Spark ML estimators: a DataFrame (or Parquet files) in, a trained model out, which adds columns of predictions."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farandole.estimators.backend import Backend, LocalBackend, SparkBackend
    from farandole.estimators.callback import Callback
    from farandole.estimators.keras import KerasEstimator, KerasModel
    from farandole.estimators.lightning import LightningEstimator, LightningModel
    from farandole.estimators.model_function import HorovodEstimator
    from farandole.estimators.torch import TorchEstimator, TorchModel

__all__ = [
    "Backend", "Callback", "HorovodEstimator", "KerasEstimator", "KerasModel", "LightningEstimator",
    "LightningModel", "LocalBackend", "SparkBackend", "TorchEstimator", "TorchModel",
]  # fmt: skip

# Imported when they are used: each brings its framework.
_LATER = {
    "backend": ("Backend", "LocalBackend", "SparkBackend"),
    "callback": ("Callback",),
    "keras": ("KerasEstimator", "KerasModel"),
    "model_function": ("HorovodEstimator",),
    "lightning": ("LightningEstimator", "LightningModel"),
    "torch": ("TorchEstimator", "TorchModel"),
}


def __getattr__(name: str) -> Any:
    for module, names in _LATER.items():
        if name in names:
            return getattr(importlib.import_module(f"farandole.estimators.{module}"), name)
    raise AttributeError(f"module 'farandole.estimators' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
