"""What becomes of gradients and weights: options, reducers, and ways to exchange weights.
``LocalSGD``, ``BMUF``, ``DiLoCo``, ``EASGD``, ``Gossip``, ``AsyncGossip``, ``ParameterServer``,
``AsyncParameterServer`` and ``SSP`` are for ``DistributedOptimizer(strategy=...)``.
"""

from __future__ import annotations

from farandole.base import lazy

__all__ = [
    "BMUF",
    "EASGD",
    "SSP",
    "AsyncGossip",
    "AsyncParameterServer",
    "DiLoCo",
    "Gossip",
    "LocalSGD",
    "ParameterServer",
]

__getattr__, __dir__ = lazy.names(
    __name__,
    {
        "modes.local_sgd": ("LocalSGD", "BMUF", "DiLoCo"),
        "modes.easgd": ("EASGD",),
        "gossip.synchronous": ("Gossip",),
        "gossip.background": ("AsyncGossip",),
        "modes.parameter_server": ("ParameterServer", "AsyncParameterServer", "SSP"),
    },
)
