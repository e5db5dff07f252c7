"""``python -m benchmarks.scale FILE``: measure the points behind the predictions of
docs/scaling.md, and write them to a file.

Simulated ranks need only one machine; rings need network namespaces (root, ip, tc, nsenter).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks import hosts, model, report, simulated
from benchmarks.crew import measure
from benchmarks.samples import OURS

DIRECT, TREES = (2, 8, 32, 64), (64, 128, 256, 512, 1024, 2048)
MEETINGS = (256, 1024, 4096)
MESH = 24
RINGS = ((2, 1e9), (4, 1e9), (2, 0.0))  # hosts, bit/s; 0: no limit


def points() -> dict[str, Any]:
    """Return all points; see ``model.fitted`` for their use."""
    machine = report.machine()
    return {
        "machine": machine,
        "rounds": [simulated.measure(size, direct=direct)._asdict() for size, direct in _boards()],
        "meetings": [simulated.meeting(size)._asdict() for size in MEETINGS],
        "connection": simulated.connection(MESH),
        "allreduce": [point for number, rate in RINGS for point in _rings(number, rate)],
    }


def _boards() -> Iterator[tuple[int, bool]]:
    yield from ((size, True) for size in DIRECT)
    yield from ((size, False) for size in TREES)


def _rings(number: int, rate: float) -> Iterator[dict[str, float]]:
    with hosts.made(number, f"{rate / 1e9:g}gbit" if rate else "") as among:
        for case in measure(["ring"], number, quick=False, among=among):
            yield {"hosts": number, "rate": rate, "bytes": case.bytes, "seconds": case.median(OURS)}


def measured(found: Mapping[str, Any]) -> str:
    facts = found["machine"]
    cores, load = facts["usable_cores"], facts["load_before"]
    rows = [
        (
            f"On {cores} cores ({facts['processor']}), under a load of {load:.1f} by other"
            " programs. Rings:"
        ),
        "",
    ]
    rows += ["| hosts | link | tensor | all-reduce |", "|---|---|---|---|"]
    for point in found["allreduce"]:
        link = f"{point['rate'] / 1e9:g} Gbit/s" if point["rate"] else "no limit"
        rows.append(
            f"| {point['hosts']} | {link} | {point['bytes'] >> 20} MiB |"
            f" {report.seconds(point['seconds'])} |"
        )
    return "\n".join(rows)


def rounds_table(found: Mapping[str, Any]) -> str:
    rows = [
        "| ranks | connections | work along the longest way | messages on it |",
        "|---|---|---|---|",
    ]
    for point in found["rounds"]:
        how = "each with each" if point["steps"] == 1 else f"tree, {point['connections']}"
        rows.append(f"| {point['ranks']:,} | {how} | {_time(point['path'])} | {point['steps']} |")
    return "\n".join(rows)


def store_table(found: Mapping[str, Any]) -> str:
    rows = ["| clients | connected after | all values exchanged after |", "|---|---|---|"]
    rows += [
        f"| {point['ranks']:,} | {_time(point['connect'])} | {_time(point['exchange'])} |"
        for point in found["meetings"]
    ]
    return "\n".join(rows)


def predictions(found: Mapping[str, Any]) -> str:
    at = model.fitted(found)
    rates = [f"{rate / 1e9:g} Gbit/s" for rate in model.RATES]
    columns = [
        "ranks",
        "a round",
        *(f"start, {rate}" for rate in rates),
        *(f"100 MB, {rate}" for rate in rates),
    ]
    rows = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for ranks in model.RANKS:
        cells: list[str] = [f"{ranks:,}", _time(model.agreement(ranks, at))]
        for formula in (model.start, model.allreduce):
            cells += [_time(formula(ranks, rate, at)) for rate in model.RATES]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def constants_table(found: Mapping[str, Any]) -> str:
    at = model.fitted(found)
    values = {
        "`m`, a message of a round, at one end": _time(at.message),
        "`r`, of a round, for each rank of the job": _time(at.rank),
        "`c`, a client that connects to the store": _time(at.meet),
        "`e`, one rank's value in an exchange": _time(at.exchange),
        "`v`, a value that one rank reads in it": _time(at.value),
        "`d`, a connection between ranks, both ends": _time(at.connection),
        "`s`, a step of a ring": _time(at.step),
        "`u`, share of what a link allows that a ring fills": f"{at.link:.0%}",
        "`k`, bytes that a rank sends, receives and adds up": f"{at.copying / 1e9:.1f} GB/s",
    }
    return "\n".join(
        [
            "| constant | fitted |",
            "|---|---|",
            *(f"| {name} | {value} |" for name, value in values.items()),
        ]
    )


TABLES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "measured": measured,
    "rounds": rounds_table,
    "store": store_table,
    "constants": constants_table,
    "predictions": predictions,
}


def _time(seconds: float) -> str:
    """Format a time with two digits, the precision of predictions."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
        if seconds >= scale:
            return f"{float(f'{seconds / scale:.2g}'):,g} {unit}"
    return "0"


def main() -> int:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    Path(sys.argv[1]).write_text(json.dumps(points(), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
