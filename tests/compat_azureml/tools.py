"""Programs that import ``azureml``, in separate processes: nothing needs to be installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "compat-azureml" / "src"


def python(
    *arguments: str | Path,
    path: tuple[str | Path, ...] = (),
    cwd: Path | None = None,
    seconds: float = 120.0,
    **env: str,
) -> subprocess.CompletedProcess[str]:
    """Run ``python ARGUMENTS`` with ``azureml``, and further folders, on the path."""
    folders = [str(SOURCE), *map(str, path), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders)), **env},
        cwd=cwd,
        text=True,
        capture_output=True,
        timeout=seconds,
    )
