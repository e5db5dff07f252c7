"""How a job is getting on: one quiet line on a terminal, one line that changes in a notebook's
cell, else nothing.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Any, ClassVar, TextIO

from farandole.job.launch.output import OutputStreams, is_terminal

FIRST = 2.0  # seconds: a job that is over sooner needs no status
EVERY = 1.0


class Status:
    """Nothing is shown: nobody watches. ``shown``: somebody does. ``places``: where the ranks run;
    ``progress``: what rank 0 says of its own.
    """

    shown: ClassVar[bool] = False
    pictures: ClassVar[bool] = False  # can it show any?

    def __init__(self) -> None:
        self.places = ""
        self.progress: Mapping[str, Any] = {}
        self._began = time.monotonic()
        self._next = self._began + FIRST

    def tick(self, doing: str) -> None:
        """Show it anew if it is time. ``doing``: the job's activity, in a few words."""

    def figure(self, png: bytes) -> None:
        """Show a picture, where that can be done."""

    def close(self, how: str = "ended") -> None:
        """The job has ended, failed, or been interrupted."""

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
    """``{"epoch": 2, "epochs": 5, "rate": 17.53, "left": 61}`` as "epoch 2/5", "17.5 steps/s",
    "0:01:01 left".
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
        found.append(f"{clock(progress['left'])} left")
    return found


def clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


class StatusLine(Status):
    """On a terminal, where no rank's unfinished line is in the way."""

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
            from rich.console import Console  # 50 ms, spent while the ranks run

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
    """In a notebook's cell: a display of its own, which stays when the job has ended."""

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
        import base64  # here: jobs outside notebooks show no pictures

        data = {"image/png": base64.b64encode(png).decode(), "text/plain": "a figure of rank 0"}
        self._publish(data=data, metadata={})

    def close(self, how: str = "ended") -> None:
        if self._doing:
            self._show(self._text(how), update=True)
            self._doing = ""

    def _show(self, text: str, *, update: bool) -> None:
        import html  # here, as base64

        data = {"text/plain": text, "text/html": f"<small>{html.escape(text)}</small>"}
        self._publish(data=data, metadata={}, transient={"display_id": self._id}, update=update)


def status(stream: TextIO, streams: OutputStreams) -> Status:
    """The status line that suits the place we run in."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if hasattr(shell, "kernel"):
        return StatusCell(shell)
    return StatusLine(stream, streams) if is_terminal(stream) else Status()
