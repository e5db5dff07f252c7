"""A run's view as static HTML with curves in SVG, for notebooks that are saved or lack widgets."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

_WIDTH, _HEIGHT = 320, 120  # a curve, in pixels
_LEFT, _TOP, _BOTTOM = 46, 8, 18  # space for the numbers
_COLORS = {"completed": "#2e7d32", "failed": "#c62828", "canceled": "#8a6d00"}
_ACTIVE = "#1565c0"
_CELL = "text-align:left;vertical-align:top;padding:1px 12px 1px 0;background:none"


def html_of(view: Mapping[str, Any]) -> str:
    """Return a view (see ``view.view_of``) as HTML without scripts; all texts are escaped."""
    state = str(view["state"])
    color = _COLORS.get(state, _ACTIVE)
    head = (
        f"<div><b>{_text(view['id'])}</b> "
        f"<span style='color:{color};font-weight:bold'>{_text(state)}</span></div>"
    )
    rows = "".join(
        f"<tr><th style='{_CELL};font-weight:normal;opacity:.7'>{_text(name)}</th>"
        f"<td style='{_CELL}'>{_text(value)}</td></tr>"
        for name, value in view["facts"]
    )
    curves = "".join(
        f"<span style='display:inline-block;margin:4px 12px 4px 0'>{svg_of(each)}</span>"
        for each in view["curves"]
    )
    return (
        "<div style='font-family:sans-serif;font-size:13px'>"
        f"{head}<table style='border:none'>{rows}</table>"
        f"{_block('Cause', [view['cause']], '#c62828')}"
        f"{_block('Findings', view['findings'], '#8a6d00')}"
        f"<div>{curves}</div>{_log(str(view['log']))}</div>"
    )


def svg_of(curve: Mapping[str, Any]) -> str:
    """Return a curve, a mapping with ``name``, ``x`` and ``y``, as SVG below its name."""
    points = [
        (float(x), float(y))
        for x, y in zip(curve["x"], curve["y"], strict=True)
        if y is not None and math.isfinite(y)
    ]
    name = _text(curve["name"])
    head = (
        f"<div style='font-size:12px'>{name}{f'  {points[-1][1]:.4g}' if points else ''}</div>"
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{_WIDTH}' height='{_HEIGHT}' role='img'"
        f" aria-label='{name}'>"
    )
    if not points:
        return f"{head}</svg>"
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low, high = min(ys), max(ys)
    right, bottom = _WIDTH - 8, _HEIGHT - _BOTTOM
    across = _scale(min(xs), max(xs), _LEFT, right)
    down = _scale(low, high, bottom, _TOP)
    line = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in points)
    mark = f"<circle cx='{across(xs[-1]):.1f}' cy='{down(ys[-1]):.1f}' r='2.5' fill='{_ACTIVE}'/>"
    numbers = "".join(
        f"<text x='{x}' y='{y}' text-anchor='{anchor}' font-size='10' fill='currentColor'>"
        f"{value:.4g}</text>"
        for x, y, anchor, value in (
            (_LEFT - 4, _TOP + 8, "end", high),
            (_LEFT - 4, bottom, "end", low),
            (_LEFT, _HEIGHT - 4, "start", min(xs)),
            (right, _HEIGHT - 4, "end", max(xs)),
        )
    )
    axes = (
        f"<path d='M{_LEFT} {_TOP}V{bottom}H{right}' fill='none' stroke='currentColor'"
        " opacity='.3'/>"
    )
    return (
        f"{head}{axes}<polyline points='{line}' fill='none' stroke='{_ACTIVE}'"
        f" stroke-width='1.5'/>{mark}{numbers}</svg>"
    )


def _scale(low: float, high: float, begin: float, end: float) -> Any:
    """Return the linear function from a range of values to pixels."""
    span = high - low
    if not span or not math.isfinite(span):
        return lambda value: (begin + end) / 2
    return lambda value: begin + (value - low) / span * (end - begin)


def _block(title: str, texts: Sequence[str], color: str) -> str:
    items = "".join(
        f"<div style='white-space:pre-wrap;border-left:3px solid {color};padding-left:8px;"
        f"margin:4px 0'>{_text(text)}</div>"
        for text in texts
        if text
    )
    return f"<div><span style='opacity:.7'>{title}</span>{items}</div>" if items else ""


def _log(text: str) -> str:
    if not text:
        return ""
    return (
        "<pre style='font-size:11px;max-height:240px;overflow:auto;margin:4px 0'>"
        f"{_text(text)}</pre>"
    )


def _text(value: Any) -> str:
    return html.escape(str(value))
