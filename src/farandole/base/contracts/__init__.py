"""Contracts between packages: wires, memory, codecs, strategies and observers."""

from __future__ import annotations

from farandole.base.contracts.buffers import Binding, PeerMemory
from farandole.base.contracts.codecs import (
    Codec,
    Consensus,
    Momentum,
    MomentumAware,
    Packed,
    Part,
    PushCodec,
    Rescaling,
    Retractable,
    Voting,
)
from farandole.base.contracts.observers import Observer, Waiting
from farandole.base.contracts.strategies import (
    Consolidating,
    Encoding,
    ExchangeContext,
    Peers,
    SharedReference,
    Strategy,
)
from farandole.base.contracts.wires import (
    Board,
    ByteStreams,
    DeviceTransport,
    End,
    Link,
    Parts,
    Report,
    Streaming,
    Transport,
    Wire,
)

__all__ = [
    "Binding",
    "Board",
    "ByteStreams",
    "Codec",
    "Consensus",
    "Consolidating",
    "DeviceTransport",
    "Encoding",
    "End",
    "ExchangeContext",
    "Link",
    "Momentum",
    "MomentumAware",
    "Observer",
    "Packed",
    "Part",
    "Parts",
    "PeerMemory",
    "Peers",
    "PushCodec",
    "Report",
    "Rescaling",
    "Retractable",
    "SharedReference",
    "Strategy",
    "Streaming",
    "Transport",
    "Voting",
    "Waiting",
    "Wire",
]
