"""An agent that mpirun or srun started (``command``), once the driver's Farandole is there
(``boot.begin``).

Signals that a cluster sends before it ends a job (SIGUSR1, SIGTERM) reach its processes, so the
agents. They hand them on to their ranks: programs write checkpoints then.
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
    """Until the driver lets it go; its status. See ``agent.Agent``."""
    here = registry.load("launcher", task["launcher"])().placement(os.environ)
    # Where Open MPI starts an agent for each rank, the rank takes its place, and may call MPI.
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
