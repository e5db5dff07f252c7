"""Programs of ``programs/``, copied to a folder of a test and run there."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.compat_azureml.tools import python

PROGRAMS = Path(__file__).parent / "programs"


def copied(name: str, tmp_path: Path) -> Path:
    """Return a copy of a program's folder, in which the program may write."""
    return Path(shutil.copytree(PROGRAMS / name, tmp_path / name))


def submitted(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``submit.py`` of a program to its end."""
    done = python("submit.py", *arguments, cwd=folder, seconds=500.0)
    assert done.returncode == 0, done.stdout + done.stderr
    return done
