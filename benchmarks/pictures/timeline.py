"""One training step in a timeline of ``farandole run --timeline-filename``, drawn as Perfetto
draws it.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.pictures.style import Drawing

STORED = "timeline.json"
LOSS = "allreduce.loss"  # the last tensor of a step
COLOURS = {"NEGOTIATE": "orange", "QUEUE": "grey", "SHM": "green"}
LEFT, WIDTH, ROW = 190, 545, 24


class Slice(NamedTuple):
    """A span of one tensor's track. ``depth``: the number of spans around it."""

    track: str
    name: str
    begin: float  # microseconds
    end: float
    depth: int


def record(folder: Path) -> None:
    """Run the program with a timeline, and store the events of the step that other programs
    disturbed least: the shortest one of the second half.
    """
    with tempfile.TemporaryDirectory() as work:
        trace = Path(work) / "trace.json"
        program = [sys.executable, "-m", "benchmarks.pictures.digits"]
        flags = ["-np", "2", "--timeline-filename", str(trace), "--bucket-mb", "0.5"]
        subprocess.run([sys.executable, "-m", "farandole.cli", "run", *flags, *program], check=True)
        events = json.loads(trace.read_text())
    store(folder, events)


def store(folder: Path, events: Sequence[Mapping[str, Any]]) -> None:
    names = {event["pid"]: event for event in events if event["name"] == "process_name"}
    losses = [pid for pid, event in names.items() if event["args"]["name"] == LOSS]
    ends = [
        event["ts"]
        for event in events
        if event["ph"] == "E" and event["name"] == "ALLREDUCE" and event["pid"] in losses
    ]
    steps = list(itertools.pairwise(ends))[len(ends) // 2 :]
    begin, end = min(steps, key=lambda step: step[1] - step[0])
    kept = [event for event in events if begin < event.get("ts", 0) <= end]
    used = {event["pid"] for event in kept}
    lines = [json.dumps(event) for event in [names[pid] for pid in sorted(used)] + kept]
    (folder / STORED).write_text("[\n" + ",\n".join(lines) + "\n]\n")


def slices(events: Sequence[Mapping[str, Any]]) -> tuple[list[Slice], list[tuple[str, str, float]]]:
    """Return the spans, and the ticks as (track, rank, microseconds), of a timeline's events."""
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    spans, ticks = [], []
    opened: dict[int, list[tuple[str, float]]] = {}
    for event in sorted((e for e in events if "ts" in e), key=lambda e: e["ts"]):
        track, stack = names[event["pid"]], opened.setdefault(event["pid"], [])
        if event["ph"] == "B":
            stack.append((event["name"], event["ts"]))
        elif event["ph"] == "E":
            name, begin = stack.pop()
            spans.append(Slice(track, name, begin, event["ts"], len(stack)))
        elif event["ph"] == "X":
            ticks.append((track, event["name"], event["ts"]))
    return spans, ticks


def draw(folder: Path) -> str:
    events = json.loads((folder / STORED).read_text())
    spans, ticks = slices(events)
    tracks = list(dict.fromkeys(span.track for span in sorted(spans, key=lambda s: s.begin)))
    begin = min(span.begin for span in spans)
    end = max(span.end for span in spans)
    height = 92 + 68 * len(tracks) + 96
    found = Drawing(
        760,
        height,
        "One training step in a timeline",
        "A track for each tensor: negotiation from the first rank's request to the last one's, then"
        " the all-reduce with its wait and its exchange in shared memory.",
    )
    scale = WIDTH / (end - begin)
    _ruler(found, end - begin, scale, height - 100)
    for number, track in enumerate(tracks):
        top = 84 + 68 * number
        found.rect(15, top, 730, 62, "lane", radius=4)
        found.text(24, top + 36, track.removeprefix("optimizer.1."), "ink code small")
        for span in (each for each in spans if each.track == track):
            _slice(found, span, LEFT + (span.begin - begin) * scale, top, scale)
        _ticks(found, track, ticks, begin, scale, top)
    _legend(found, height - 78)
    return found.svg()


def _ruler(found: Drawing, duration: float, scale: float, bottom: float) -> None:
    step = next(size for size in _sizes() if duration / size <= 6)
    for number in range(int(duration / step) + 1):
        x = LEFT + number * step * scale
        found.path(f"M{x:.1f} 66 V{bottom:g}", "grid thin")
        found.text(x, 60, f"{number * step / 1000:g} ms", "dim small", "middle")


def _sizes() -> Iterator[int]:
    for power in (10, 100, 1000, 10_000, 100_000):
        yield from (power, 2 * power, 5 * power)


def _slice(found: Drawing, span: Slice, x: float, top: float, scale: float) -> None:
    kind = COLOURS.get(span.name.split("_")[0], "blue")
    width = max((span.end - span.begin) * scale, 1.5)
    y = top + 6 + ROW * span.depth
    found.rect(x, y, width, ROW - 2, kind, radius=2)
    if width > 8 * len(span.name):
        found.text(x + width / 2, y + 15, span.name, "ink small", "middle")


def _ticks(
    found: Drawing,
    track: str,
    ticks: Sequence[tuple[str, str, float]],
    begin: float,
    scale: float,
    top: float,
) -> None:
    moments = [(LEFT + (at - begin) * scale, rank) for of, rank, at in ticks if of == track]
    for x, _ in moments:
        found.path(f"M{x:.1f} {top + 30} v14", "l-s2")
    (first, one), (last, other) = moments[0], moments[-1]
    if last - first >= 24:  # room for the names between the ticks
        found.text(first + 3, top + 43, one, "s2 b small")
        found.text(last - 3, top + 43, other, "s2 b small", "end")
    else:
        found.text(first - 4, top + 43, f"{one}, {other}", "s2 b small", "end")


def _legend(found: Drawing, y: float) -> None:
    texts = {
        "orange": "NEGOTIATE_ALLREDUCE: from the first rank's request to the last one's",
        "blue": "ALLREDUCE",
        "grey": "QUEUE",
        "green": "SHM_ALLREDUCE: the exchange",
    }
    places = ((15, y), (15, y + 28), (150, y + 28), (250, y + 28))
    for (kind, text), (x, top) in zip(texts.items(), places, strict=True):
        found.rect(x, top, 22, 16, kind, radius=3)
        found.text(x + 30, top + 13, text, "ink small")
    found.path(f"M26 {y + 56:g} v16", "l-s2")
    found.text(
        45,
        y + 69,
        "a rank asks for the tensor; the last one is the rank that the others wait for",
        "ink small",
    )
