"""How a job is shown to the user who started it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TextIO

from farandole.launch.limits import standard


@dataclass(frozen=True, kw_only=True)
class Display:
    """``show_ranks``: whose output is shown, None: everybody's; ``output_dir``: a folder that keeps all of it;
    ``verbose`` tells more of what happens, ``quiet`` nothing but errors. ``say`` is for our own messages, ``notes`` for
    those of ``log_to_driver``."""

    out: TextIO = field(default_factory=lambda: standard("stdout"))
    err: TextIO = field(default_factory=lambda: standard("stderr"))
    say: TextIO = field(default_factory=lambda: standard("stderr"))
    notes: TextIO = field(default_factory=lambda: standard("stdout"))
    output_dir: str | None = None
    prefix_timestamp: bool = False
    show_ranks: Collection[int] | None = None
    verbose: bool = False
    quiet: bool = False

    def tell(self, text: str) -> None:
        """A message of ours."""
        self.say.write(f"farandole: {text}\n")
        self.say.flush()
