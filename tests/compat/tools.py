"""Programs under the name ``horovod``, in separate processes: nothing needs to be installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.job.launch.tools import marked

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "compat" / "src"
PROGRAMS = Path(__file__).parent / "programs"
HOROVODRUN = ("-m", "farandole.compat.horovodrun")
FARANDOLE = ("-m", "farandole.cli", "run")


def python(
    *arguments: str | Path, seconds: float = 200.0, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run ``python ARGUMENTS`` where ``horovod`` can be imported; fails if processes are left."""
    with marked() as jobs:
        path = os.pathsep.join(
            [str(SOURCE), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        ).rstrip(os.pathsep)
        process = subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            env={**jobs.env, "PYTHONPATH": path, **env},
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        return jobs.finish(process, seconds)


def horovodrun(*arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    return python(*HOROVODRUN, *arguments, **env)


def program(launcher: tuple[str, ...], *command: str | Path, np: int = 2) -> str:
    """Return the output of ``python COMMAND`` on ``np`` ranks, without the ranks' prefixes. It must
    succeed.
    """
    done = python(*launcher, "-np", str(np), sys.executable, *command, seconds=250)
    assert done.returncode == 0, done.stdout + done.stderr
    return re.sub(r"^\[\d+\]<\w+>:", "", done.stdout, flags=re.M)


def code(text: str, **env: str) -> str:
    """Return the output of ``python -c TEXT``."""
    done = python("-c", text, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()
