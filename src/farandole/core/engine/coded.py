"""An allreduce that a codec compresses."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from farandole.base.contracts import Codec, Part, Transport
from farandole.core.engine.fusion import Unit
from farandole.job.plugins import registry

if TYPE_CHECKING:
    from farandole.core.engine.handle import Entry


def allreduce(unit: Unit, entries: Sequence[Entry], scale: float, transport: Transport) -> None:
    """Add up the unit's tensors, times ``scale``, by the codec that all ranks have asked for."""
    spec = unit.requests[0].codec
    codec = entries[0].codec or _without_state(spec)
    codec.allreduce([_part(entry) for entry in entries], scale, transport)


def _part(entry: Entry) -> Part:
    key = (entry.key or entry.request.name) if entry.codec is not None else ""
    return Part(key, entry.request.shape, entry.buffer, entry.given)


@functools.lru_cache(maxsize=16)
def _without_state(spec: str) -> Codec:
    """For a rank that has joined, and may never have seen this codec. Raises SettingsError if it is
    not registered.
    """
    made: Codec = registry.make("codec", spec)
    return made
