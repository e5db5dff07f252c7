"""The rate at which a core reads data just written by another core.

On a virtual machine this rate changes within minutes: the host moves the cores, which then share a
third-level cache or not. Measured on an AMD EPYC with two cores: 28 to 36 GB/s with one cache, 11
GB/s with two. Collectives within a host consist of such reads, so two runs are comparable only if
their rates are equal.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import statistics
import time
from typing import Any

NBYTES = 512 << 10  # fits into the second-level cache of the writing core
TIMES = 40
MOVED = 1.5  # ratio of two rates that exceeds noise


def between() -> float | None:
    """Return the median bytes per second; None if this process may use one core only."""
    import numpy as np

    if not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2:
        return None
    fork = multiprocessing.get_context("fork")
    written, turn = (
        np.frombuffer(fork.RawArray(ctypes.c_uint8, NBYTES), np.uint8),
        fork.RawValue(ctypes.c_int64, 0),
    )
    here, there, *_ = allowed = sorted(os.sched_getaffinity(0))
    writer = fork.Process(target=_write, args=(there, written, turn), daemon=True)
    writer.start()
    try:
        os.sched_setaffinity(0, {here})
        taken = np.zeros(NBYTES, np.uint8)
        seconds = []
        for number in range(1, 2 * TIMES, 2):  # odd: the writer's turn; even: the reader's
            turn.value = number
            while turn.value == number and writer.is_alive():
                pass
            begin = time.perf_counter()
            np.copyto(taken, written)
            seconds.append(time.perf_counter() - begin)
        return NBYTES / statistics.median(seconds)
    finally:
        os.sched_setaffinity(0, allowed)
        writer.kill()
        writer.join()


def _write(core: int, array: Any, turn: Any) -> None:
    os.sched_setaffinity(0, {core})
    parent = os.getppid()
    while os.getppid() == parent:
        if turn.value % 2:
            array.fill(turn.value & 0xFF)
            turn.value += 1


def comparison(before: float | None, after: float | None) -> str:
    """Return a line that compares two rates; empty if they were not measured."""
    if before is None or after is None:
        return ""
    speeds = f"{before / 1e9:.0f} GB/s before, {after / 1e9:.0f} GB/s after"
    line = f"a core reads data of its neighbour at {speeds}"
    if max(before, after) > MOVED * min(before, after):
        line += ": the speed changed during the run, so the results are mixed. Run it again"
    return line
