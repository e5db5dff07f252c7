"""What becomes of gradients and weights: options, reducers, and ways to exchange weights. ``LocalSGD``, ``BMUF``,
``DiLoCo``, ``EASGD`` and ``Gossip`` are for ``DistributedOptimizer(strategy=...)``."""

from __future__ import annotations

import importlib
from typing import Any

_MODES = {"LocalSGD": "local_sgd", "BMUF": "local_sgd", "DiLoCo": "local_sgd", "EASGD": "easgd", "Gossip": "gossip"}
__all__ = ["BMUF", "EASGD", "DiLoCo", "Gossip", "LocalSGD"]  # imported when they are used


def __getattr__(name: str) -> Any:
    if name not in _MODES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"farandole.strategies.modes.{_MODES[name]}"), name)
