"""Run a program by ``farandole run`` to its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run_command(folder: Path, *options: str, seconds: float = 200.0) -> str:
    """Run ``train.py`` in ``folder`` by ``farandole run`` with ``options``, and return its stderr.
    The program gets the path of the folder as its argument, and must end with exit code 0.
    """
    command = ["-m", "farandole", "run", *options, sys.executable, "train.py", str(folder)]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr
