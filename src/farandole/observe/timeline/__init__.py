"""The timeline: what the engine did and when, as a Chrome trace (opens in Perfetto and chrome://tracing).

The engine's thread only notes what happened; another thread makes events of it (``story``) and writes them (``file``).
"""

from __future__ import annotations

from farandole.observe.timeline.clock import ahead
from farandole.observe.timeline.merge import merge, read, write
from farandole.observe.timeline.recorder import Timeline

__all__ = ["Timeline", "ahead", "merge", "read", "write"]
