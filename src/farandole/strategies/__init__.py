"""Options, reducers and strategies for the exchange of gradients and weights.

``LocalSGD``, ``BMUF``, ``DiLoCo``, ``EASGD``, ``Gossip``, ``AsyncGossip``, ``ParameterServer``,
``AsyncParameterServer`` and ``SSP`` are values for ``DistributedOptimizer(strategy=...)``. The
contracts for custom strategies and codecs are also exported here.
"""

from __future__ import annotations

from farandole.base import lazy
from farandole.base.contracts import (
    Codec,
    Consolidating,
    Encoding,
    ExchangeContext,
    Packed,
    Part,
    Peers,
    PushCodec,
    SharedReference,
    Strategy,
)

__all__ = [
    "BMUF",
    "EASGD",
    "SSP",
    "AsyncGossip",
    "AsyncParameterServer",
    "CentreReference",
    "Codec",
    "Consolidating",
    "DiLoCo",
    "Encoding",
    "EnginePeers",
    "ExchangeContext",
    "FirstSlotReference",
    "Gossip",
    "LastWeightsReference",
    "LocalSGD",
    "NoReference",
    "Packed",
    "ParameterServer",
    "Part",
    "PeerSession",
    "Peers",
    "PushCodec",
    "SenderReference",
    "SharedReference",
    "Strategy",
    "WholeEncoding",
]

__getattr__, __dir__ = lazy.names(
    __name__,
    {
        "modes.local_sgd": ("LocalSGD", "BMUF", "DiLoCo"),
        "modes.easgd": ("EASGD",),
        "gossip.synchronous": ("Gossip",),
        "gossip.background": ("AsyncGossip",),
        "modes.parameter_server": ("ParameterServer", "AsyncParameterServer", "SSP"),
        "references": (
            "NoReference",
            "LastWeightsReference",
            "FirstSlotReference",
            "SenderReference",
            "CentreReference",
        ),
        "encodings": ("WholeEncoding",),
        "peers": ("EnginePeers", "PeerSession"),
    },
)
