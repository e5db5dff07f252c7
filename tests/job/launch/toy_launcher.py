"""A launcher in one file: a shell starts an agent for each rank, and numbers them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from farandole.job.config import Placement
from farandole.job.launch.agents.allocation import AgentAllocation, AgentPlace
from farandole.job.launch.agents.command import Command
from farandole.job.launch.contract import JobRequest

START = 'n=0; while [ $n -lt {} ]; do TOY_PLACE=$n "$@" & n=$((n + 1)); done; wait'


class ToyLauncher:
    """The launcher of a cluster whose command is a shell loop."""

    name: ClassVar[str] = "toy"

    def affinity(self, request: JobRequest) -> int:
        return 0  # only by its name

    def allocate(self, request: JobRequest) -> AgentAllocation:
        argv = ["sh", "-c", START.format(request.np), "toy"]
        command = Command(self.name, argv, f"{request.np} ranks by a shell")
        return AgentAllocation(command, [AgentPlace(1)] * request.np, request.start_timeout)

    def placement(self, env: Mapping[str, str]) -> Placement | None:
        if "FARANDOLE_RANK" in env:
            return Placement.from_env(env)
        return Placement(rank=int(env["TOY_PLACE"])) if "TOY_PLACE" in env else None
