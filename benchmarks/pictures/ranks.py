"""Training speed by number of ranks, from ``farandole bench step`` with 2, 4 and 8 ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.pictures.charts import Axis, Panel
from benchmarks.pictures.style import Drawing
from benchmarks.samples import ALONE, DDP, OURS
from benchmarks.steps import BATCH

STORED = "speed_by_ranks.json"


def draw(folder: Path) -> str:
    documents = json.loads((folder / STORED).read_text())
    found = Drawing(
        760,
        410,
        "Training speed by number of ranks",
        "Samples per second of an MLP and of a conv net with 1, 2, 4 and 8 ranks, for Farandole and"
        " for DDP on Gloo, with the line of perfect scaling.",
    )
    machine = documents[0]["machine"]
    found.text(
        15,
        46,
        f"One rank per core, {machine['cores']} cores ({machine['processor']}), batch {BATCH} per"
        " rank, medians",
        "dim small",
    )
    titles = [case["name"] for case in documents[0]["cases"]]
    for x, title in zip((65, 430), titles, strict=True):
        _panel(found, x, title, documents)
    return found.svg()


def speeds(documents: list[dict[str, Any]], title: str, contender: str) -> list[tuple[int, float]]:
    """Return (ranks, samples per second of all ranks); one rank is a single process."""
    points = []
    for document in documents:
        (case,) = (each for each in document["cases"] if each["name"] == title)
        if not points:
            points.append((1, BATCH / case["contenders"][ALONE]["median"]))
        seconds = case["contenders"][contender]["median"]
        points.append((document["np"], document["np"] * BATCH / seconds))
    return points


def _panel(found: Drawing, x: int, title: str, documents: list[dict[str, Any]]) -> None:
    ours, theirs = (speeds(documents, title, name) for name in (OURS, DDP))
    one = ours[0][1]
    ideal = [(ranks, ranks * one) for ranks, _ in ours]
    top = 1.04 * ideal[-1][1]
    step = next(size for size in (1000, 2000, 5000, 10000) if top / size <= 8)
    up = [(value, f"{value:,}") for value in range(0, int(top) + 1, step)]
    panel = Panel(
        found,
        x,
        112,
        225,
        240,
        Axis(0, 8.4, [(ranks, str(ranks)) for ranks, _ in ours], "ranks"),
        Axis(0, top, up, "samples/s"),
        title,
    )
    panel.frame()
    for points, series, kind in ((ideal, 0, "thin"), (ours, 2, "thick"), (theirs, 1, "")):
        found.path(
            "M" + " L".join("{:.1f} {:.1f}".format(*panel.place(*point)) for point in points),
            f"l-s{series} {kind}".rstrip(),
            **({"stroke_dasharray": "3 4"} if series == 0 else {}),
        )
        for point in points if series else ():
            found.circle(*panel.place(*point), 4, f"s{series}")
    ends = sorted(
        [(ideal[-1], "perfect", 0), (ours[-1], "Farandole", 2), (theirs[-1], "DDP on Gloo", 1)],
        reverse=True,
    )
    for point, name, series in ends:
        panel.label(point, name, series)
