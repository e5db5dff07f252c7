"""The Slurm launcher: in an allocation, srun starts one agent on each node."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from farandole.errors import SettingsError, counted
from farandole.job.config import Placement
from farandole.job.launch.contract import JobRequest

if TYPE_CHECKING:
    from farandole.job.launch.agents.allocation import AgentAllocation


class SlurmLauncher:
    """The launcher for Slurm."""

    name: ClassVar[str] = "slurm"

    def affinity(self, request: JobRequest) -> int:
        return 0  # an existing allocation does not mean that the job should use it

    def allocate(self, request: JobRequest) -> AgentAllocation:
        import shutil  # imported here because local jobs load this file too

        from farandole.job.launch.agents.allocation import AgentAllocation, AgentPlace
        from farandole.job.launch.agents.command import Command
        from farandole.job.launch.plan import places, plan

        if request.hosts is not None:
            raise SettingsError(
                f"hosts={request.hosts!r}: the launcher slurm takes its hosts from the"
                " allocation; leave hosts out"
            )
        if "SLURM_JOB_NODELIST" not in os.environ and "SLURM_HET_SIZE" in os.environ:
            parts = os.environ["SLURM_HET_SIZE"]
            raise SettingsError(
                "the launcher slurm supports allocations of one component, and this one has"
                f" {parts} (SLURM_HET_SIZE); for one job of all components run, without farandole"
                f" run: srun --het-group=0-{int(parts) - 1} python train.py"
            )
        if "SLURM_JOB_NODELIST" not in os.environ or shutil.which("srun") is None:
            raise SettingsError(
                "the launcher slurm needs an allocation: run farandole run in a batch script"
                " (sbatch), or after salloc"
            )
        slots = plan(room(os.environ, request.np), request.np)
        nodes = [slot.host for slot in slots if slot.local_rank == 0]
        where = (
            f"{counted(request.np, 'rank')} on {places(slots)}, by srun in job"
            f" {os.environ.get('SLURM_JOB_ID')}"
        )
        each = [AgentPlace(slot.local_size, slot.host) for slot in slots if slot.local_rank == 0]
        command = Command(self.name, srun(nodes), where, request.settings.network_interfaces)
        return AgentAllocation(command, each, request.start_timeout)

    def placement(self, env: Mapping[str, str]) -> Placement | None:
        from farandole.job import bootstrap

        return (
            Placement.from_env(env)
            if "FARANDOLE_RANK" in env
            else bootstrap.slurm.SlurmBootstrap().placement(env)
        )


def room(env: Mapping[str, str], np: int) -> list[tuple[str, int]]:
    """Return the allocation's nodes with their places for ranks. Pure.

    There is a place per task or, if these are too few, per ``SLURM_CPUS_PER_TASK`` CPUs.
    """
    from farandole.job.bootstrap.slurm import expand_hosts, tasks_per_node

    nodes = expand_hosts(env["SLURM_JOB_NODELIST"])
    tasks = tasks_per_node(env.get("SLURM_TASKS_PER_NODE") or f"1(x{len(nodes)})")
    if sum(tasks) < np:
        each = int(env.get("SLURM_CPUS_PER_TASK") or 1)
        cpus = tasks_per_node(env.get("SLURM_JOB_CPUS_PER_NODE") or f"1(x{len(nodes)})")
        tasks = [max(count, number // each) for count, number in zip(tasks, cpus, strict=True)]
    return list(zip(nodes, tasks, strict=True))


def srun(nodes: list[str]) -> list[str]:
    """Return the command that starts one process on each node with all its allocated resources."""
    count = len(nodes)
    return [
        "srun",
        f"--nodes={count}",
        f"--ntasks={count}",
        "--ntasks-per-node=1",
        f"--nodelist={','.join(nodes)}",
        "--distribution=block",
        "--cpu-bind=none",
        "--mpi=none",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--quiet",
    ]
