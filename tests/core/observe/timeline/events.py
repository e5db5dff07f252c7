"""Read and check the events of a timeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from farandole.base.types import Buffer, DType, Kind, Request
from farandole.core.engine import Engine, Entry
from farandole.core.observe.timeline import Timeline, read
from farandole.core.observe.timeline.trace import (
    Scope,
    Trace,
)
from farandole.job.config import Settings
from tests.pool import ranks

SCOPE = Scope("", "SHM", range(2))


def entry(
    name: str, array: np.ndarray, kind: Kind = Kind.ALLREDUCE, serial: int = 0, **more: Any
) -> Entry:
    flat, dtype = array.reshape(-1), DType(str(array.dtype))
    return Entry(Request(name, kind, dtype, array.shape, **more), Buffer(flat, flat, dtype), serial)


def whole(path: Path | str) -> list[dict[str, Any]]:
    """Return the events of a file, which must be nested correctly on each thread."""
    events = read(str(path))
    check(events)
    return events


def check(events: list[dict[str, Any]]) -> None:
    stacks: dict[tuple[int, int], list[tuple[str, float]]] = {}
    for event in sorted(
        (each for each in events if each["ph"] in "BE"), key=lambda each: each["ts"]
    ):
        stack = stacks.setdefault((event["pid"], event["tid"]), [])
        if event["ph"] == "B":
            stack.append((event["name"], event["ts"]))
        else:
            name, begin = stack.pop()
            assert name == event["name"]
            assert begin <= event["ts"]
    assert not any(stacks.values())


def tensors(events: list[dict[str, Any]]) -> dict[str, int]:
    return {
        event["args"]["name"]: event["pid"]
        for event in events
        if event["ph"] == "M" and event["name"] == "process_name" and event["pid"]
    }


def of(events: list[dict[str, Any]], name: str) -> list[tuple[str, str]]:
    """Return phase and name of the events of one tensor."""
    pid = tensors(events)[name]
    return [
        (event["ph"], event["name"])
        for event in events
        if event["pid"] == pid and event["ph"] != "M"
    ]


def life(kind: str, wire: str, ticks: int) -> list[tuple[str, str]]:
    """Return the events of one collective."""
    return [
        ("B", f"NEGOTIATE_{kind}"),
        *[("X", str(rank)) for rank in range(ticks)],
        ("E", f"NEGOTIATE_{kind}"),
        ("B", kind),
        ("B", "QUEUE"),
        ("E", "QUEUE"),
        ("B", f"{wire}_{kind}"),
        ("E", f"{wire}_{kind}"),
        ("E", kind),
    ]


def events_from(*records: Any, mark_cycles: bool = False) -> list[dict[str, Any]]:
    trace = Trace(0, 2, 100.0, 0.0, mark_cycles=mark_cycles)
    lines = trace.opening()
    for record in records:
        lines += trace.events((SCOPE, record))
    lines += trace.closing()
    return [json.loads(line) for line in lines]


REQUEST = Request("a", Kind.ALLREDUCE, DType.FLOAT32, (2, 3))


def traced(n: int, path: Path, fn: Any, wire: Any = ranks, **how: Any) -> list[Any]:
    """Run ``fn(engine)`` on n ranks; each writes ``path.rank<N>``."""

    def body(transport: Any) -> Any:
        timeline = Timeline(transport.rank, transport.size)
        timeline.start(f"{path}.rank{transport.rank}", **how)
        engine = Engine(transport, Settings(), [timeline.of("inproc")])
        try:
            result = fn(engine)
            engine.run([entry("meet", np.zeros(0, np.float32), Kind.BARRIER)])
            return result
        finally:
            engine.shutdown()
            timeline.stop()

    return wire(n, body)
