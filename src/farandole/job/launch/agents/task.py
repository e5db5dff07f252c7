"""An agent started by mpirun or srun (``command``), after ``boot.begin`` has loaded the driver's
Farandole.

Signals that a cluster sends before it ends a job (SIGUSR1, SIGTERM) reach its processes, i.e. the
agents. Agents pass them on to their ranks, whose programs then write checkpoints.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Any

from farandole.job.launch import launcher_env
from farandole.job.launch.agents.agent import Agent
from farandole.job.launch.agents.contact import contact, no_contact
from farandole.job.plugins import registry

HANDED_ON = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGCONT)


def main(task: Mapping[str, Any], folder: str, odd: Mapping[str, str]) -> int:
    """Run the agent until the driver dismisses it, and return its status. See ``agent.Agent``."""
    here = registry.load("launcher", task["launcher"])().placement(os.environ)
    # Open MPI starts one agent per rank; the rank inherits the agent's variables and may call MPI.
    hidden = launcher_env.OTHERS if task["launcher"] == "mpi" else launcher_env.PLACE
    own = {"index": here.rank if here is not None else 0, "hidden": hidden}
    address = contact(task["addresses"], task["secret"])
    if not address:
        sys.stderr.write(f"farandole: {socket.gethostname()}: {no_contact(task['addresses'])}\n")
        return 1
    agent = Agent({**task, **own, "address": address}, folder, odd)
    for number in HANDED_ON:
        signal.signal(number, lambda number, _: agent.signal(number))
    agent.run()
    return 0
