"""Agreement: which collectives run, in which order, on all ranks."""

from __future__ import annotations

from farandole.engine.engine import Engine
from farandole.engine.handle import Entry, Handle
from farandole.engine.stall import StallCheck

__all__ = ["Engine", "Entry", "Handle", "StallCheck"]
