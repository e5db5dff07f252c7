"""A panel with two axes, linear or logarithmic, in a drawing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.pictures.style import Drawing

# for readers who cannot distinguish the colours
STROKES = ("", "8 3", "2 3", "9 3 2 3", "5 2", "3 2", "12 3")


@dataclass(frozen=True)
class Axis:
    """The values between ``low`` and ``high``, with labelled ticks."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    title: str
    logarithmic: bool = False

    def share(self, value: float) -> float:
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class Panel:
    """A plot at (``x``, ``y``), ``width`` by ``height`` pixels without its labels."""

    drawing: Drawing
    x: float
    y: float
    width: float
    height: float
    across: Axis
    up: Axis
    title: str = ""
    _taken: list[float] = field(default_factory=list)

    def place(self, across: float, up: float) -> tuple[float, float]:
        """Return the pixels of a point. Values outside the axes are moved to the border."""
        shares = (
            min(max(axis.share(value), 0.0), 1.0)
            for axis, value in ((self.across, across), (self.up, up))
        )
        right, top = shares
        return self.x + right * self.width, self.y + (1 - top) * self.height

    def frame(self) -> None:
        draw = self.drawing
        for value, label in self.up.ticks:
            _, y = self.place(self.across.low, value)
            draw.path(f"M{self.x:g} {y:.1f} H{self.x + self.width:g}", "grid thin")
            draw.text(self.x - 7, y + 4, label, "dim small", "end")
        bottom = self.y + self.height
        for value, label in self.across.ticks:
            x, _ = self.place(value, self.up.low)
            draw.path(f"M{x:.1f} {bottom:g} v5", "l-dim thin")
            draw.text(x, bottom + 20, label, "dim small", "middle")
        draw.path(f"M{self.x:g} {bottom:g} h{self.width:g}", "l-dim thin")
        draw.text(self.x + self.width / 2, bottom + 40, self.across.title, "dim small", "middle")
        if self.up.title:
            draw.text(self.x - 38, self.y - 12, self.up.title, "dim small")
        if self.title:
            draw.text(self.x + self.width / 2, self.y - 32, self.title, "ink b", "middle")

    def line(self, points: Sequence[tuple[float, float]], series: int, kind: str = "") -> None:
        """Draw a curve; parts below the vertical axis are cut off."""
        route, pen = [], "M"
        for before, point in zip([points[0], *points], points, strict=False):
            if point[1] < self.up.low:
                pen = "M"
                continue
            if before[1] < self.up.low:  # enters the panel between two points
                share = (self.up.low - before[1]) / (point[1] - before[1])
                entry = self.place(before[0] + share * (point[0] - before[0]), self.up.low)
                route.append(f"M{entry[0]:.1f} {entry[1]:.1f}")
                pen = "L"
            x, y = self.place(*point)
            route.append(f"{pen}{x:.1f} {y:.1f}")
            pen = "L"
        stroke = STROKES[series % len(STROKES)]
        more = {"stroke_dasharray": stroke} if stroke else {}
        self.drawing.path(" ".join(route), f"l-s{series} {kind}".rstrip(), **more)

    def label(self, point: tuple[float, float], text: str, series: int) -> None:
        """Write a curve's name right of its end, below names that were written there before."""
        x, y = self.place(*point)
        y += 4
        while any(abs(y - other) < 15 for other in self._taken):
            y += 1
        self._taken.append(y)
        self.drawing.text(x + 8, y, text, f"s{series} small")
