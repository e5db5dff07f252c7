"""Folders of runs, written in a millisecond without a process."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from farandole.base.types import Slot
from farandole.job.runs.folder import RunFolder, make_private, write_json
from farandole.job.runs.home import RunsHome
from farandole.job.runs.journal import JournalWriter
from farandole.job.runs.spec import Resources, RunSpec
from farandole.job.runs.states import RunState
from farandole.jobs.rank_journal import RankJournal
from farandole.jobs.submission import write_request


def written_run(
    home: RunsHome,
    experiment: str = "study",
    state: RunState = RunState.COMPLETED,
    *,
    nodes: int = 1,
    ranks: int = 1,
    logs: Sequence[bytes] = (),
    metrics: Mapping[str, Sequence[float]] = {},
    outputs: Mapping[str, bytes] = {},
    cause: str = "",
    **spec: Any,
) -> RunFolder:
    """Write the folder of a run in a state.

    Arguments:
        nodes, ranks: The number of nodes, and of ranks on each.
        logs: The log of each rank.
        metrics: The values of the metrics of rank 0.
        outputs: The contents of output files.
        cause: The cause of its end.
        spec: Further fields of its specification.
    """
    request = RunSpec(
        experiment=experiment,
        command=spec.pop("command", ("python", "train.py")),
        resources=Resources(nodes=nodes, ranks_per_node=ranks),
        **spec,
    )
    run_id = home.new_id(experiment)
    parent = make_private(os.path.join(home.runs, experiment))
    building = RunFolder(make_private(os.path.join(parent, f".new-{run_id}")))
    write_request(building, request, home, source="")
    for rank, text in enumerate(logs):
        building.folder("user_logs")
        write(building.log_of(rank), text)
    for name, data in outputs.items():
        building.folder("outputs", *os.path.dirname(name).split("/"))
        write(building.file("outputs", name), data)
    if metrics:
        add_points(building, metrics)
    if state is not RunState.QUEUED:
        building.record("state", state="running", attempt=1)
        slots = [Slot(rank, "host-a", rank, ranks, 0, 1, ranks) for rank in range(nodes * ranks)]
        RankJournal(building).started(slots)
    if state.final:
        code = 0 if state is RunState.COMPLETED else 1
        end = {"state": state.value, "time": time.time(), "cause": cause, "exit_code": code}
        write_json(building.file("end.json"), end)
    folder = RunFolder(os.path.join(parent, run_id))
    os.rename(building.path, folder.path)
    return folder


def write(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)


def add_points(
    folder: RunFolder, metrics: Mapping[str, Sequence[float]], rank: int = 0, first: int = 0
) -> None:
    """Record values of metrics; their steps count from ``first``."""
    folder.folder("metrics")
    with JournalWriter(folder.metrics_of(rank)) as journal:
        for step in range(max(map(len, metrics.values()), default=0)):
            values = {name: each[step] for name, each in metrics.items() if step < len(each)}
            journal.append({"step": first + step, "time": 1000.0 + first + step, "values": values})


def waves(count: int) -> list[float]:
    """Return a curve of ``count`` values."""
    return [math.sin(step / 50) for step in range(count)]
