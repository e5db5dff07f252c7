"""The view of a run as HTML that needs no script: for saved notebooks and for Databricks."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

_WIDTH, _HEIGHT = 240, 60  # pixels of a curve
_LINES = 40  # of the log


def page_of(data: Mapping[str, Any]) -> str:
    """Return the data of ``RunDetails.get_widget_data()`` as HTML."""
    facts = data["run_properties"]
    rows = {
        "Run": data["run_id"],
        "Status": data["status"],
        "Duration": facts["run_duration"] or "",
        "Script": " ".join(filter(None, (facts["script_name"], facts["arguments"]))),
        "Tags": ", ".join(f"{name}={text}" for name, text in facts["tags"].items()),
    }
    parts = [
        _table([[name, text] for name, text in rows.items() if text]),
        _children(data["child_runs"]),
        _curves(data["run_metrics"]),
        _log(data["run_logs"]),
    ]
    return f'<div style="font-family:sans-serif">{"".join(parts)}</div>'


def _table(rows: Sequence[Sequence[Any]], heads: Sequence[str] = ()) -> str:
    top = "".join(f"<th>{html.escape(each)}</th>" for each in heads)
    lines = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(each))}</td>" for each in row) + "</tr>"
        for row in rows
    )
    return f"<table>{f'<tr>{top}</tr>' if top else ''}{lines}</table>"


def _children(children: Sequence[Mapping[str, Any]]) -> str:
    if not children:
        return ""
    rows = [[each["run_id"], each["status"], each["duration"] or ""] for each in children]
    return _table(rows, ("Run", "Status", "Duration"))


def _curves(metrics: Sequence[Mapping[str, Any]]) -> str:
    """Return a curve, or the only value, of each metric of numbers."""
    rows = []
    for each in metrics:
        values = [v for v in each["series"][0]["data"] if isinstance(v, (int, float))]
        finite = [v for v in values if abs(v) != float("inf") and v == v]
        if finite:
            name = html.escape(each["name"])
            rows.append(
                f"<tr><td>{name}</td><td>{finite[-1]:.6g}</td><td>{_curve(finite)}</td></tr>"
            )
    return f"<table>{''.join(rows)}</table>" if rows else ""


def _curve(values: Sequence[float]) -> str:
    if len(values) < 2:
        return ""
    step = max(1, len(values) // _WIDTH)
    shown = values[::step]
    low, high = min(shown), max(shown)
    span = (high - low) or 1.0
    points = " ".join(
        f"{_WIDTH * place / max(1, len(shown) - 1):.1f},{_HEIGHT * (high - value) / span:.1f}"
        for place, value in enumerate(shown)
    )
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img"><polyline points="{points}"'
        ' fill="none" stroke="currentColor"/></svg>'
    )


def _log(text: str) -> str:
    lines = text.splitlines()[-_LINES:]
    if not lines:
        return ""
    shown = html.escape("\n".join(lines))
    return f"<details><summary>Log of rank 0</summary><pre>{shown}</pre></details>"
