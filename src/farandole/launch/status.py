"""One quiet line on a terminal: how many ranks run, and for how long. Nothing anywhere else."""

from __future__ import annotations

import time
from typing import Any, TextIO

from farandole.launch.output import Streams, is_terminal

FIRST = 2.0  # seconds: a job that is over sooner needs no status
EVERY = 1.0


class StatusLine:
    def __init__(self, stream: TextIO, streams: Streams) -> None:
        self._stream = stream
        self._streams = streams
        self._console: Any = None
        self._shown = False
        self._began = time.monotonic()
        self._next = self._began + FIRST
        self._wanted = is_terminal(stream)
        if self._wanted:
            streams.before_write = self.hide

    def tick(self, running: int, size: int) -> None:
        """Draw the line anew when it is time and no rank's unfinished line is in the way."""
        now = time.monotonic()
        if not self._wanted or now < self._next or not self._streams.err.at_line_start:
            return
        self._next = now + EVERY
        if self._console is None:
            from rich.console import Console  # 50 ms, spent while the ranks run

            self._console = Console(file=self._stream)
            self._wanted = self._console.is_terminal and not self._console.is_dumb_terminal
            if not self._wanted:
                return
        seconds = int(now - self._began)
        clock = f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        self.hide()
        self._console.print(
            f"[dim]{running} of {size} ranks running, {clock}  [/dim]", end="", no_wrap=True, overflow="ellipsis",
            highlight=False,
        )  # fmt: skip
        self._shown = True

    def hide(self) -> None:
        if self._shown:
            self._shown = False
            self._stream.write("\r\x1b[2K")
            self._stream.flush()
