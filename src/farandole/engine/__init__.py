"""Agreement: which collectives run, in which order, on all ranks."""

from __future__ import annotations

from farandole.engine.engine import Engine
from farandole.engine.handle import Entry, Handle

__all__ = ["Engine", "Entry", "Handle"]
