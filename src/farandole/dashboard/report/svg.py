"""Charts as SVG, which contain only numbers and escaped text."""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape
from typing import Any

import numpy as np

from farandole.dashboard.report.document import Chart, Line

_WIDTH, _HEIGHT = 420, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 10, 28, 26
_TICKS = 4
COLORS = 8  # classes c0 to c7


def chart(each: Chart) -> str:
    """Return a chart as an SVG element."""
    lines = [line for line in each.lines if len(line.x)]
    across = _Scale([line.x for line in lines], _LEFT, _WIDTH - _RIGHT)
    up = _Scale([_finite(line) for line in lines], _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(each.title)}">',
        f'<text class="title" x="{_LEFT}" y="16">{escape(each.title)}</text>',
    ]
    for value in up.ticks():
        y = up.at(value)
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">')
        parts.append(f"{short(value)}</text>")
    for value in across.ticks():
        x, y = across.at(value), _HEIGHT - 8
        parts.append(f'<text class="tick" x="{x:.1f}" y="{y}" text-anchor="middle">')
        parts.append(f"{short(value)}</text>")
    for number, line in enumerate(lines):
        parts += _drawn(line, number % COLORS, across, up)
    return "".join([*parts, "</svg>"])


def _drawn(line: Line, color: int, across: _Scale, up: _Scale) -> Iterable[str]:
    if len(line.low):
        band = [(x, y) for x, y in zip(line.x, line.high, strict=True) if np.isfinite(y)]
        band += [
            (x, y) for x, y in zip(line.x[::-1], line.low[::-1], strict=True) if np.isfinite(y)
        ]
        points = " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in band)
        yield f'<polygon class="band c{color}" points="{points}"/>'
    pen, path, dots = "M", [], []
    for x, y in zip(line.x.tolist(), line.y.tolist(), strict=True):
        if not math.isfinite(y):
            pen = "M"
            continue
        path.append(f"{pen}{across.at(x):.1f} {up.at(y):.1f}")
        dots.append((x, y))
        pen = "L"
    yield f'<path class="curve c{color}" d="{"".join(path)}"/>'
    if len(dots) == 1:  # a line of one point is invisible
        x, y = dots[0]
        yield f'<circle class="dot c{color}" cx="{across.at(x):.1f}" cy="{up.at(y):.1f}" r="3"/>'


def _finite(line: Line) -> Any:
    values = np.concatenate([line.y, line.low, line.high]).astype(float)
    return values[np.isfinite(values)]


def short(value: float) -> str:
    """Return a number in few characters."""
    return f"{value:.4g}"


class _Scale:
    """The position of values on an axis, in pixels."""

    def __init__(self, values: list[Any], begin: float, end: float) -> None:
        filled = [each for each in values if len(each)]
        self.low = min((float(each.min()) for each in filled), default=0.0)
        self.high = max((float(each.max()) for each in filled), default=1.0)
        if self.low == self.high:
            room = abs(self.low) * 0.1 or 1.0
            self.low, self.high = self.low - room, self.high + room
        self._begin, self._end = begin, end

    def at(self, value: float) -> float:
        # halves, because the difference of the largest numbers is infinite
        share = (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)
        return self._begin + share * (self._end - self._begin)

    def ticks(self) -> list[float]:
        """Return round numbers on the axis."""
        span = self.high / 2 - self.low / 2
        size = 10.0 ** math.floor(math.log10(span / _TICKS * 2)) if span > 1e-300 else span
        step = next(
            (size * each for each in (1, 2, 5) if span * 2 / (size * each) <= _TICKS), 10 * size
        )
        if not (0 < step < math.inf):
            return [self.low, self.high]
        first = math.ceil(self.low / step)
        count = min(_TICKS + 1, int((self.high - first * step) / step + 1e-9) + 1)
        return [(first + each) * step for each in range(count)]
