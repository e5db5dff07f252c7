"""Bytes and accuracy by codec, from ``farandole bench learning``."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.pictures.charts import Axis, Panel
from benchmarks.pictures.style import Drawing

STORED = "../learning_mnist.json"
# Codec -> offset of its name, in pixels, and the side of the point on which the name is.
NAMES = {
    "allreduce": (0, -12, "middle"),
    "fp16": (10, 5, "start"),
    "bf16": (10, 5, "start"),
    "int8": (10, 5, "start"),
    "topk:0.05": (-10, 5, "end"),
    "threshold:0.01": (10, 5, "start"),
    "powersgd:2": (9, -4, "start"),
    "onebit": (-10, 5, "end"),
    "randomk:0.1": (10, 5, "start"),
    "sign:0.9": (10, 5, "start"),
}


def draw(folder: Path) -> str:
    cases = {case["strategy"]: case for case in json.loads((folder / STORED).read_text())["cases"]}
    found = Drawing(
        760,
        400,
        "Bytes and accuracy by codec",
        "Accuracy relative to an all-reduce of the same number of epochs, by the bytes that each"
        " rank sends. Codecs at the left send less.",
    )
    found.text(
        15,
        46,
        "MNIST, 4 ranks, means of 5 seeds; bars: standard error of the difference",
        "dim small",
    )
    ticks = [(size, f"{size:g}") for size in (10, 20, 50, 100, 200, 500)]
    points = [(value / 10, f"{value / 10:+.1f}" if value else "0") for value in range(-6, 5, 2)]
    panel = Panel(
        found,
        70,
        84,
        660,
        250,
        Axis(
            10,
            600,
            ticks,
            "MiB sent by each rank in the whole training (logarithmic)",
            logarithmic=True,
        ),
        Axis(-0.75, 0.45, points, "accuracy relative to all-reduce, percentage points"),
    )
    panel.frame()
    for name, (right, down, anchor) in NAMES.items():
        case = cases[name]
        difference, error = case["accuracy"] - case["baseline"], case.get("error", 0.0)
        sent = case["mebibytes"]
        x, y = panel.place(sent, difference)
        if error:
            _, low = panel.place(sent, difference - error)
            _, high = panel.place(sent, difference + error)
            found.path(f"M{x:.1f} {low:.1f} V{high:.1f}", "l-s1 thin")
        found.circle(x, y, 5.5, "s2" if name == "allreduce" else "s1")
        found.text(x + right, y + down, name, "ink small", anchor)
    return found.svg()
