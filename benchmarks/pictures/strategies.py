"""Accuracy in time with slow ranks and slow links, from ``farandole bench strategies``: medians
over seeds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.pictures.charts import Axis, Panel
from benchmarks.pictures.style import Drawing

STORED = "../strategies.json"
LOW = 60.0  # percent, at the bottom of a panel
ACCURACY = Axis(LOW, 100.0, [(value, str(value)) for value in range(60, 101, 10)], "accuracy, %")


def draw(folder: Path) -> str:
    cases = json.loads((folder / STORED).read_text())["cases"]
    names = list(dict.fromkeys(case["name"] for case in cases))
    seeds = len(cases[0]["curves"])
    found = Drawing(
        760,
        320 + 318 * (len(names) - 1) + 40,
        f"Accuracy in time: medians of {seeds} seeds",
        "A panel for each condition: the last rank slow, each rank slow in turn, a slow link. A"
        " curve for each strategy and codec.",
    )
    for number, name in enumerate(names):
        runs = [case for case in cases if case["name"] == name]
        _panel(found, 96 + 318 * number, name, runs)
    return found.svg()


def _panel(found: Drawing, y: float, name: str, runs: list[dict[str, Any]]) -> None:
    ends = [run["curve"][-1][0] for run in runs]
    end = min(2 * min(ends), max(ends))
    step = 2 if end > 6 else 1
    ticks = [(second, str(second)) for second in range(0, int(end) + 1, step)]
    panel = Panel(found, 62, y, 560, 200, Axis(0, end, ticks, "seconds"), ACCURACY, name)
    panel.frame()
    last = []
    for series, run in enumerate(runs):
        curve = [(point[0], point[1]) for point in run["curve"] if point[0] <= end]
        panel.line(curve, series, "thick" if series == 0 else "")
        last.append((curve[-1], run["strategy"], series))
    for point, strategy, series in sorted(last, key=lambda each: -each[0][1]):
        panel.label((end, point[1]), strategy, series)
