"""Measure the peak memory of work in a new process, to detect rows that accumulate."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

ROWS = 200_000
WIDTH = 256  # float32: 1 KiB per row, 200 MB in all
MOST = 100 << 20  # bytes: half of the rows

# The peak memory of the process, in bytes.
PEAK = """
def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM:"))
"""


def grown(prepare: str, work: str) -> int:
    """Return the growth of a new process's peak memory in bytes during ``work``, after ``prepare``."""
    program = f"{PEAK}\n{prepare}\nbefore = peak()\n{work}\nprint(peak() - before)\n"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


def write(path: Path, rows: int, row_group: int) -> str:
    """Write a file with ``rows`` rows ``x`` of 1 KiB, in row groups of ``row_group`` rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kind = pa.list_(pa.float32(), WIDTH)
    with pq.ParquetWriter(
        path, pa.schema([("x", kind)]), compression="none", use_dictionary=False
    ) as writer:
        random = np.random.default_rng(0)
        for begin in range(0, rows, row_group):
            values = random.random(min(row_group, rows - begin) * WIDTH, np.float32)
            writer.write_table(
                pa.table({"x": pa.FixedSizeListArray.from_arrays(values, type=kind)})
            )
    return str(path)
