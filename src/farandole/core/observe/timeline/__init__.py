"""The timeline: what the engine did and when, as a Chrome trace (opens in Perfetto and
chrome://tracing).

The engine's thread only records what happened; another one makes events of it (``trace``) and
writes them (``file``).
"""

from __future__ import annotations

from farandole.core.observe.timeline.clock import ahead
from farandole.core.observe.timeline.merge import merge, read, write
from farandole.core.observe.timeline.recorder import Timeline

__all__ = ["Timeline", "ahead", "merge", "read", "write"]
