"""Plots of cases."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes

from benchmarks.report import COLUMNS, TITLES, seconds
from benchmarks.samples import (
    AGAIN,
    ALLREDUCE,
    ALONE,
    BARE_STAGE,
    DATALOADER,
    DEEPSPEED,
    FARANDOLE_RUN,
    GLOO,
    GLOO_FLAT,
    IMPORT,
    IN_ORDER,
    INTEL,
    KEPT,
    MPI,
    MPICH,
    NCCL,
    ONE_HOST,
    OURS,
    PARTS,
    PEERS,
    PETASTORM,
    PREDICT_BATCH,
    ROW_BY_ROW,
    SHUFFLED,
    SSH_ALONE,
    STEPS,
    TF_DATA,
    TIMELINE,
    TOGETHER,
    TORCH_DISTRIBUTOR,
    TORCHRUN,
    TRACKERS,
    TUNED,
    UNWATCHED,
    Case,
    Found,
    Run,
)

COLOURS = {
    OURS: "#d1495b",
    GLOO: "#30638e",
    TORCHRUN: "#30638e",
    GLOO_FLAT: "#7ea8be",
    MPI: "#edae49",
    MPICH: "#8d6a9f",
    INTEL: "#5b8e7d",
    DEEPSPEED: "#6c584c",
    ALONE: "#b0b0b0",
    TOGETHER: "#808080",
    IMPORT: "#b0b0b0",
    BARE_STAGE: "#b0b0b0",
    TORCH_DISTRIBUTOR: "#30638e",
    ONE_HOST: "#30638e",
    SSH_ALONE: "#b0b0b0",
    NCCL: "#30638e",
    STEPS: "#d9d9d9",
    IN_ORDER: "#bd7880",
    KEPT: "#e8a0a8",
    SHUFFLED: "#7ea8be",
    DATALOADER: "#30638e",
    TF_DATA: "#edae49",
    PETASTORM: "#b0b0b0",
    PREDICT_BATCH: "#30638e",
    ROW_BY_ROW: "#b0b0b0",
    UNWATCHED: "#b0b0b0",
    TIMELINE: "#30638e",
    TUNED: "#edae49",
    **dict.fromkeys((FARANDOLE_RUN, AGAIN), "#b0b0b0"),
    **dict.fromkeys(TRACKERS, "#30638e"),
    **dict.fromkeys(PEERS, "#30638e"),
    **dict(zip(PARTS, ("#7ea8be", "#30638e", "#b0b0b0"), strict=True)),
}


def draw(path: Path, found: Sequence[Found], size: int) -> None:
    """Draw a panel per benchmark or condition; allreduce's many small tensors have a separate
    one.
    """
    runs = [each for each in found if isinstance(each, Run)]
    if runs:
        draw_runs(path, runs)
        return
    panels: dict[str, list[Case]] = {}
    for case in found:
        assert isinstance(case, Case)
        kind = "many" if case.benchmark == "allreduce" and "x" in case.name else case.benchmark
        panels.setdefault(kind, []).append(case)
    columns = 2 if len(panels) > 1 else 1
    lines_of_panels = -(-len(panels) // columns)
    figure, axes = pyplot.subplots(
        lines_of_panels, columns, figsize=(5.4 * columns, 3.8 * lines_of_panels), squeeze=False
    )
    places = list(axes.flat)
    for spare in places[len(panels) :]:
        spare.remove()
    for axis, (kind, rows) in zip(places, panels.items(), strict=False):
        if kind == "allreduce" and len(rows) > 1:
            lines(axis, rows)
        else:
            bars(axis, rows)
        title = TITLES.get(kind, "many tensors at once, float32")
        axis.set_title(f"{title}, {size} ranks: median and 10th-90th percentile", fontsize=9)
        axis.grid(alpha=0.3, axis="y")
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def draw_runs(path: Path, runs: Sequence[Run]) -> None:
    """Draw accuracy over time: a panel for each condition, a line for each strategy."""
    names = list(dict.fromkeys(run.name for run in runs))
    figure, axes = pyplot.subplots(1, len(names), figsize=(4.6 * len(names), 3.8), squeeze=False)
    for axis, name in zip(axes.flat, names, strict=True):
        rows = [run for run in runs if run.name == name]
        for run in rows:
            thick = (
                {"color": "#202020", "linewidth": 2.5, "zorder": 3}
                if run.strategy == ALLREDUCE
                else {}
            )
            times, accuracy = zip(*run.curve, strict=True)
            axis.plot(times, accuracy, label=run.strategy, **{"linewidth": 1.3, **thick})
        last = min(run.curve[-1][0] for run in rows)
        axis.set_xlim(0, min(3 * last, max(run.curve[-1][0] for run in rows)))
        axis.set_ylim(60, 100)
        axis.set_title(name, fontsize=9)
        axis.set_xlabel("seconds", fontsize=8)
        axis.set_ylabel("accuracy (%)", fontsize=8)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=7, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def lines(axis: Axes, rows: Sequence[Case]) -> None:
    for name in rows[0].samples:
        sizes = [case.bytes for case in rows]
        colour = COLOURS[name]
        spreads = [case.spread(name) for case in rows]
        axis.fill_between(
            sizes,
            [low for low, _ in spreads],
            [high for _, high in spreads],
            color=colour,
            alpha=0.2,
        )
        medians = [case.median(name) for case in rows]
        axis.plot(
            sizes, medians, "o-", label=name, color=colour, linewidth=2.5 if name == OURS else 1.5
        )
    axis.set_xscale("log", base=2)
    axis.set_xticks([case.bytes for case in rows], [case.name for case in rows])
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(lambda value, _: seconds(value))
    axis.legend(frameon=False, fontsize=8)


def bars(axis: Axes, rows: Sequence[Case]) -> None:
    names = sorted(rows[0].samples, key=COLUMNS.index)
    width = 0.8 / len(names)
    for number, name in enumerate(names):
        places = [index + (number - (len(names) - 1) / 2) * width for index in range(len(rows))]
        medians = [case.median(name) for case in rows]
        below = [max(0.0, case.median(name) - case.spread(name)[0]) for case in rows]
        above = [max(0.0, case.spread(name)[1] - case.median(name)) for case in rows]
        colour = COLOURS[name]
        axis.bar(
            places,
            medians,
            width,
            yerr=[below, above],
            label=name,
            color=colour,
            error_kw={"linewidth": 1},
        )
    axis.set_xticks(range(len(rows)), [case.name for case in rows])
    axis.yaxis.set_major_formatter(lambda value, _: seconds(value))
    axis.legend(frameon=False, fontsize=8)
