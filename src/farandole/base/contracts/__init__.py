"""Every contract between rooms: wires, memory, codecs, strategies and observers."""

from __future__ import annotations

from farandole.base.contracts.buffers import Binding, Showing
from farandole.base.contracts.codecs import (
    Codec,
    Consensus,
    Packed,
    Part,
    PushCodec,
    Rescaling,
    Retractable,
)
from farandole.base.contracts.observers import Observer, Waiting
from farandole.base.contracts.strategies import Consolidating, Peers, Strategy
from farandole.base.contracts.wires import (
    Board,
    DeviceTransport,
    End,
    Link,
    Parts,
    Report,
    Streaming,
    Streams,
    Transport,
    Wire,
)

__all__ = [
    "Binding",
    "Board",
    "Codec",
    "Consensus",
    "Consolidating",
    "DeviceTransport",
    "End",
    "Link",
    "Observer",
    "Packed",
    "Part",
    "Parts",
    "Peers",
    "PushCodec",
    "Report",
    "Rescaling",
    "Retractable",
    "Showing",
    "Strategy",
    "Streaming",
    "Streams",
    "Transport",
    "Waiting",
    "Wire",
]
