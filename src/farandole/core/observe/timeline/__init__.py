"""The timeline: a Chrome trace of the engine's activities (opens in Perfetto and chrome://tracing).

The engine's thread only records events; a writer thread converts them (``trace``) and writes them
(``file``).
"""

from __future__ import annotations

from farandole.core.observe.timeline.clock import ahead
from farandole.core.observe.timeline.merge import merge, read, write
from farandole.core.observe.timeline.recorder import Timeline

__all__ = ["Timeline", "ahead", "merge", "read", "write"]
