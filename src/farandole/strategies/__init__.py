"""What becomes of gradients and weights: options, reducers, and ways to exchange weights. ``LocalSGD``, ``BMUF``,
``DiLoCo``, ``EASGD``, ``Gossip``, ``AsyncGossip``, ``ParameterServer``, ``AsyncParameterServer`` and ``SSP`` are for
``DistributedOptimizer(strategy=...)``."""

from __future__ import annotations

import importlib
from typing import Any

_MODES = {
    "LocalSGD": "local_sgd", "BMUF": "local_sgd", "DiLoCo": "local_sgd", "EASGD": "easgd", "Gossip": "gossip",
    "AsyncGossip": "gossip_async",
    "ParameterServer": "parameter_server", "AsyncParameterServer": "parameter_server", "SSP": "parameter_server",
}  # fmt: skip
__all__ = [
    "BMUF", "EASGD", "SSP", "AsyncGossip", "AsyncParameterServer", "DiLoCo", "Gossip", "LocalSGD", "ParameterServer",
]  # fmt: skip  # imported when they are used


def __getattr__(name: str) -> Any:
    if name not in _MODES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"farandole.strategies.modes.{_MODES[name]}"), name)
