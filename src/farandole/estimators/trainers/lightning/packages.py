"""Lightning is two packages, ``lightning.pytorch`` and ``pytorch_lightning``, with the same classes
twice, of which neither knows the other's: all that is made here is of the module's own package.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from farandole.estimators.trainers.lightning.epochs import Epochs
from farandole.estimators.trainers.lightning.strategy import Ranks

PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def package_of(model: Any) -> str | None:
    """The package whose LightningModule ``model`` is; None if it is a plain module."""
    for kind in type(model).__mro__:
        for package in PACKAGES:
            if kind.__name__ == "LightningModule" and kind.__module__.startswith(f"{package}."):
                return package
    return None


def classes_of(model: Any) -> tuple[Any, type, type, type]:
    """The package of ``model``, our strategy and callback as classes of its kind, and its logger
    that logs nothing: without any, callbacks (LearningRateMonitor) raise, and
    ``self.logger.experiment`` of modules.
    """
    return _classes(package_of(model) or PACKAGES[0])


@functools.cache
def _classes(package: str) -> tuple[Any, type, type, type]:
    pl, strategies = (
        importlib.import_module(package),
        importlib.import_module(f"{package}.strategies"),
    )
    return (
        pl,
        type("Ranks", (Ranks, strategies.SingleDeviceStrategy), {}),
        type("Epochs", (Epochs, pl.callbacks.Checkpoint), {}),
        importlib.import_module(f"{package}.loggers.logger").DummyLogger,
    )
