"""Agreement of all ranks on the collectives to run and their order."""

from __future__ import annotations

from farandole.core.engine.engine import Engine
from farandole.core.engine.handle import Entry, Handle
from farandole.core.engine.participant import Participant

__all__ = ["Engine", "Entry", "Handle", "Participant"]
