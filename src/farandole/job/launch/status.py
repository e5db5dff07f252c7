"""A job's progress: one line on a terminal, one updated line in a notebook cell, otherwise
nothing.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Any, ClassVar, TextIO

from farandole.base.durations import readable
from farandole.job.launch.output import OutputStreams, is_terminal

FIRST = 2.0  # seconds: a shorter job shows no status
EVERY = 1.0


class Status:
    """A status without a display, for output that is not watched.

    - ``shown``: Whether the status is visible.
    - ``places``: The places of the ranks.
    - ``progress``: The progress that rank 0 has reported.
    """

    shown: ClassVar[bool] = False
    pictures: ClassVar[bool] = False  # whether the display supports images

    def __init__(self) -> None:
        self.places = ""
        self.progress: Mapping[str, Any] = {}
        self._began = time.monotonic()
        self._next = self._began + FIRST

    def tick(self, doing: str) -> None:
        """Update the display if it is due. ``doing`` is the job's activity in a few words."""

    def figure(self, png: bytes) -> None:
        """Show an image if the display supports it."""

    def close(self, how: str = "ended") -> None:
        """Show the final state: ended, failed or interrupted (``how``)."""

    def _due(self) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + EVERY
        return True

    def _text(self, doing: str) -> str:
        where = f" on {self.places}" if self.places else ""
        return ", ".join(
            [f"{doing}{where}", *described(self.progress), clock(time.monotonic() - self._began)]
        )


def described(progress: Mapping[str, Any]) -> list[str]:
    """Format progress: ``{"epoch": 2, "epochs": 5, "rate": 17.53, "left": 61}`` gives "epoch
    2/5", "17.5 steps/s", "1:01 min left".
    """
    found = []
    for name in ("epoch", "step"):
        if progress.get(name) is not None:
            of = progress.get(f"{name}s")
            found.append(f"{name} {progress[name]}{f'/{of}' if of else ''}")
    if progress.get("loss") is not None:
        found.append(f"loss {progress['loss']:.4g}")
    if progress.get("rows"):
        found.append(f"{progress['rows']:,.0f} rows/s")
    elif progress.get("rate"):
        found.append(f"{progress['rate']:.3g} steps/s")
    if progress.get("left"):
        found.append(f"{readable(progress['left'])} left")
    return found


def clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


class StatusLine(Status):
    """A status line on a terminal, shown while no rank has an unfinished line there."""

    shown = True

    def __init__(self, stream: TextIO, streams: OutputStreams) -> None:
        super().__init__()
        self._stream = stream
        self._streams = streams
        self._console: Any = None
        self._shown = False
        self._dumb = False
        streams.before_write = self.hide

    def tick(self, doing: str) -> None:
        if self._dumb or not self._streams.err.at_line_start or not self._due():
            return
        if self._console is None:
            from rich.console import Console  # takes 50 ms, while the ranks run

            self._console = Console(file=self._stream)
            self._dumb = not self._console.is_terminal or self._console.is_dumb_terminal
            if self._dumb:
                return
        self.hide()
        self._console.print(
            f"[dim]{self._text(doing)}  [/dim]",
            end="",
            no_wrap=True,
            overflow="ellipsis",
            highlight=False,
        )
        self._shown = True

    def hide(self) -> None:
        if self._shown:
            self._shown = False
            self._stream.write("\r\x1b[2K")
            self._stream.flush()

    def close(self, how: str = "ended") -> None:
        self.hide()


class StatusCell(Status):
    """A status in a notebook cell: a separate display that remains after the job."""

    shown = pictures = True

    def __init__(self, shell: Any) -> None:
        super().__init__()
        self._publish = shell.display_pub.publish
        self._id = os.urandom(16).hex()
        self._doing = ""

    def tick(self, doing: str) -> None:
        if self._due():
            shown, self._doing = bool(self._doing), doing
            self._show(self._text(doing), update=shown)

    def figure(self, png: bytes) -> None:
        import base64  # imported here because jobs outside notebooks show no images

        data = {"image/png": base64.b64encode(png).decode(), "text/plain": "a figure of rank 0"}
        self._publish(data=data, metadata={})

    def close(self, how: str = "ended") -> None:
        if self._doing:
            self._show(self._text(how), update=True)
            self._doing = ""

    def _show(self, text: str, *, update: bool) -> None:
        import html  # imported here for the same reason

        data = {"text/plain": text, "text/html": f"<small>{html.escape(text)}</small>"}
        self._publish(data=data, metadata={}, transient={"display_id": self._id}, update=update)


def status(stream: TextIO, streams: OutputStreams) -> Status:
    """Return the status that suits this environment: notebook, terminal or neither."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if hasattr(shell, "kernel"):
        return StatusCell(shell)
    return StatusLine(stream, streams) if is_terminal(stream) else Status()
