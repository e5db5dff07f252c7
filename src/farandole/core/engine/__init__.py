"""Agreement: which collectives run, in which order, on all ranks."""

from __future__ import annotations

from farandole.core.engine.engine import Engine
from farandole.core.engine.handle import Entry, Handle
from farandole.core.engine.participant import Participant

__all__ = ["Engine", "Entry", "Handle", "Participant"]
