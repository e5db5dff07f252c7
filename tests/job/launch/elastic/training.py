"""Training for tests of elastic jobs: numpy, a commit in each step, and faults at given steps."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import farandole.numpy as hvd
from farandole.core.api import elastic
from farandole.core.api.state import ObjectState
from farandole.job.elastic.discovery import FixedHosts, FunctionDiscovery, HostDiscovery
from farandole.job.elastic.options import ElasticOptions
from farandole.job.elastic.plan import ElasticPlan
from farandole.job.launch import driver
from farandole.job.launch.display import Display
from farandole.job.launch.job import Job, settings_for

STEPS = 12


class Fault(NamedTuple):
    """The end of a process in the middle of a step: by a signal, or with an exception."""

    process: int
    step: int
    signal: int = signal.SIGKILL


class Done(NamedTuple):
    """A rank's view of its job: its last place, and the sizes of the job by step."""

    process: int
    rank: int
    size: int
    total: float
    sizes: dict[int, int]
    start_rank: int
    local_rank: int
    resets: int


def train(
    folder: str,
    faults: list[Fault],
    pause: float = 0.02,
    gates: Mapping[int, int] = {},
    slow: int = -1,
) -> Done:
    """Add the mean of 1.0 over all ranks ``STEPS`` times; the total shows lost and repeated steps.

    A file ``<step>`` in ``folder`` marks a step. ``gates``: the sizes of the job that steps wait
    for. ``slow``: a process that prepares its training until the others have made five steps.
    """
    start_rank, process = int(os.environ["HOROVOD_RANK"]), int(os.environ["FARANDOLE_MEMBER"])
    hvd.init()
    while process == slow and not Path(folder, "5").exists():
        time.sleep(0.01)
    state, sizes, resets = ObjectState(step=0, total=0.0), dict[int, int](), list[int]()
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])
    mine = [each for each in faults if each.process == process]

    @elastic.run
    def steps(state: Any) -> None:
        while state.step < STEPS:
            for fault in mine:
                if fault.step == state.step:
                    if fault.signal:
                        os.kill(os.getpid(), fault.signal)
                    raise ValueError(f"fault in process {process}")
            sizes[state.step] = hvd.size()
            mean = hvd.allreduce(np.full(3, 1.0), op=hvd.Average, name="mean")
            if hvd.size() == gates.get(state.step, hvd.size()):
                state.total += float(mean[0])
                state.step += 1
            time.sleep(pause)
            if hvd.rank() == 0:
                Path(folder, str(state.step)).touch()
            state.commit()

    steps(state)
    place = hvd.rank(), hvd.size()
    return Done(process, *place, state.total, sizes, start_rank, hvd.local_rank(), len(resets))


def run_job(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    options: ElasticOptions,
    hosts: Mapping[str, int] | Callable[[], Mapping[str, int]],
) -> tuple[list[Any], str]:
    """Run an elastic job of a function; return the results and the driver's messages."""
    source: HostDiscovery = FunctionDiscovery(hosts) if callable(hosts) else FixedHosts(hosts)
    said = io.StringIO()
    job = Job(
        np=options.np,
        settings=settings_for({}, {"grace_seconds": 2.0}),
        display=Display(say=said),
        call=(function, args, {}),
        elastic=ElasticPlan(options, source),
    )
    with contextlib.redirect_stdout(io.StringIO()):
        results = driver.run(job)
    return results, said.getvalue()
