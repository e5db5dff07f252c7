"""The cost of starting by ssh: a no-op job with a rank on each of several hosts (namespaces of this
machine), compared with the same ranks on one host without ssh, and with ssh alone to all hosts
simultaneously. Runs in the driver.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.crew import BenchmarkError
from benchmarks.samples import ONE_HOST, OURS, SSH_ALONE, Case, interleave

REPETITIONS = 7


def cases(size: int, quick: bool) -> Iterator[Case]:
    """Yield the cases for ``size`` hosts; the driver is on the first."""
    from tests.kits import hosts

    with hosts.hosts(size) as made:
        env = {**os.environ, "FARANDOLE_SSH_OPTIONS": f"-F {made.config}", "OMP_NUM_THREADS": "1"}
        run = [sys.executable, "-m", "farandole.cli", "run", "-np", str(size)]
        everywhere = ",".join(f"{host.name}:1" for host in made)
        logins = " & ".join(f"ssh -F {made.config} {host.name} true" for host in list(made)[1:])
        commands = {
            OURS: [*run, "-H", everywhere, "true"],
            ONE_HOST: [*run, "true"],
            SSH_ALONE: ["sh", "-c", f"{logins} & wait"],
        }
        turns = {name: partial(_run, made[0], command, env) for name, command in commands.items()}
        samples = interleave(turns, repetitions=1 if quick else REPETITIONS, warm_up=not quick)
        yield Case("start", f"no-op job, {size} ssh hosts", samples)


def _run(host: Any, command: list[str], env: dict[str, str]) -> None:
    done = subprocess.run(
        host.command(*command),
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode:
        raise BenchmarkError(
            f"{' '.join(command)} ended with exit code {done.returncode}; it wrote:\n{done.stderr}"
        )
