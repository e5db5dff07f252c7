"""``python -m farandole.launch.agents``: an agent that mpirun or srun started (``command``).

Signals that a cluster sends before it ends a job (SIGUSR1, SIGTERM) reach its processes, so the agents. They hand them
on to their ranks: programs write checkpoints then.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from farandole import registry
from farandole.errors import AuthenticationError, HorovodInternalError, RendezvousError
from farandole.launch.agents.agent import Agent
from farandole.launch.agents.command import FACTS
from farandole.store import StoreClient

HANDED_ON = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGCONT)
# The place of the agent itself in the cluster's job, which is not that of its ranks.
PRIVATE = (
    "OMPI_", "PMI", "PRTE_", "MPI_LOCAL", "HYD", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_GTIDS", "SLURM_STEP",
    "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_TASK", "SLURM_MPI_TYPE",
)  # fmt: skip


def main() -> int:
    task = json.loads(os.environ.pop(FACTS, "null"))
    if task is None:
        sys.stderr.write("farandole.launch.agents is started by a launcher (farandole run), not by hand\n")
        return 2
    here = registry.load("launcher", task["launcher"])().surroundings(os.environ)
    task |= {"index": here.rank if here is not None else 0, "hidden": PRIVATE}
    try:
        agent = Agent({**task, "address": _reached(task)}, "", {})
    except (RendezvousError, AuthenticationError, HorovodInternalError) as error:
        sys.stderr.write(f"farandole: {error}\n")
        return 1
    for number in HANDED_ON:
        signal.signal(number, lambda number, _: agent.signal(number))
    agent.run()
    return 0


def _reached(task: dict[str, Any]) -> str:
    """The first of the driver's addresses that answers."""
    *others, last = task["addresses"]
    for address in others:
        try:
            StoreClient(address, task["secret"], timeout=5.0).close()
        except (RendezvousError, AuthenticationError, HorovodInternalError):
            continue
        return str(address)
    return str(last)


if __name__ == "__main__":
    sys.exit(main())
