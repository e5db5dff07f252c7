"""The two packages of Lightning, ``lightning.pytorch`` and ``pytorch_lightning``.

Each has its own copies of the classes and rejects the other's, so all objects are made from the
module's own package.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from farandole.estimators.trainers.lightning.epochs import Epochs
from farandole.estimators.trainers.lightning.strategy import Ranks

PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def package_of(model: Any) -> str | None:
    """Return the package of ``model``'s LightningModule class; None for a plain module."""
    for kind in type(model).__mro__:
        for package in PACKAGES:
            if kind.__name__ == "LightningModule" and kind.__module__.startswith(f"{package}."):
                return package
    return None


def classes_of(model: Any) -> tuple[Any, type, type, type]:
    """Return the package of ``model``, our strategy and callback as that package's classes, and its
    dummy logger.

    Without a logger, some callbacks (LearningRateMonitor) raise, and so does a module's
    ``self.logger.experiment``.
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
