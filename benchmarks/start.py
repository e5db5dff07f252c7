"""The cost of starting a job that does nothing, compared with ``import torch`` alone. Runs in the
driver.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.crew import BenchmarkError
from benchmarks.samples import IMPORT, OURS, TORCHRUN, Case, interleave

HERE = Path(__file__).parent
REPETITIONS = 11


def commands(size: int) -> dict[str, list[str]]:
    """Return the commands: both jobs connect all ranks and leave."""
    python = sys.executable
    run = [python, "-m", "farandole.cli", "run", "-np", str(size)]
    torchrun = [python, "-m", "torch.distributed.run", "--nproc-per-node", str(size)]
    return {
        OURS: [*run, python, str(HERE / "noop.py")],
        TORCHRUN: [*torchrun, str(HERE / "noop_torch.py")],
        IMPORT: [python, "-c", "import torch"],
    }


def cases(size: int, quick: bool) -> Iterator[Case]:
    # torchrun does not remove its logs
    with tempfile.TemporaryDirectory(prefix="farandole-bench-") as folder:
        turns = {name: partial(run, command, folder) for name, command in commands(size).items()}
        samples = interleave(turns, repetitions=1 if quick else REPETITIONS, warm_up=not quick)
        yield Case("start", f"no-op job, {size} ranks", samples)


def run(command: list[str], folder: str) -> None:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": folder},
    )
    if done.returncode:
        raise BenchmarkError(
            f"{' '.join(command)} ended with exit code {done.returncode}; it wrote:\n{done.stderr}"
        )
