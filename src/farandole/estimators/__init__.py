"""Spark ML estimators: ``fit`` on a DataFrame or Parquet files returns a model that adds columns of
predictions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farandole.base import lazy

if TYPE_CHECKING:
    from farandole.estimators.backend import Backend, LocalBackend, SparkBackend
    from farandole.estimators.callback import Callback
    from farandole.estimators.keras import KerasEstimator, KerasModel
    from farandole.estimators.lightning import LightningEstimator, LightningModel
    from farandole.estimators.model_function import HorovodEstimator
    from farandole.estimators.torch import TorchEstimator, TorchModel

__all__ = [
    "Backend",
    "Callback",
    "HorovodEstimator",
    "KerasEstimator",
    "KerasModel",
    "LightningEstimator",
    "LightningModel",
    "LocalBackend",
    "SparkBackend",
    "TorchEstimator",
    "TorchModel",
]

__getattr__, __dir__ = lazy.names(
    __name__,
    {
        "backend": ("Backend", "LocalBackend", "SparkBackend"),
        "callback": ("Callback",),
        "keras": ("KerasEstimator", "KerasModel"),
        "model_function": ("HorovodEstimator",),
        "lightning": ("LightningEstimator", "LightningModel"),
        "torch": ("TorchEstimator", "TorchModel"),
    },
)
