"""Discovery of the nodes of a Slurm job, which ``scontrol update`` or a failed node changes."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from farandole.errors import SettingsError
from farandole.job.elastic.discovery.contract import Hosts

PATIENCE = 30.0  # seconds for one call of scontrol
# States of a node that is not usable: it failed, is being drained, or does not answer (``*``).
UNUSABLE = ("DOWN", "DRAIN", "FAIL", "REBOOT", "POWERED_DOWN", "POWERING_DOWN", "NOT_RESPONDING")


class SlurmDiscovery:
    """The nodes of the Slurm job ``job`` that are up, each with ``slots`` slots.

    ``job``: by default SLURM_JOB_ID in ``env``. ``slots``: by default the job's tasks per node.
    Raises SettingsError without a job; ``find`` raises SettingsError if ``scontrol`` fails.
    """

    def __init__(
        self, job: str = "", slots: int | None = None, env: Mapping[str, str] = os.environ
    ) -> None:
        self._job = job or env.get("SLURM_JOB_ID", "")
        if not self._job:
            raise SettingsError(
                "discovery of Slurm's nodes needs a job: SLURM_JOB_ID is not set. Run in a batch"
                " script (sbatch), or after salloc"
            )
        self._slots = slots or _tasks(env.get("SLURM_TASKS_PER_NODE", "1"))

    def describe(self) -> str:
        return f"the nodes of Slurm's job {self._job}"

    def find(self) -> Hosts:
        shown = _scontrol(["show", "job", self._job, "--oneliner"])
        nodes = node_list(shown)
        if not nodes:
            raise SettingsError(f"Slurm's job {self._job} has no nodes (scontrol show job)")
        names = _scontrol(["show", "hostnames", nodes]).split()
        states = node_states(_scontrol(["show", "node", nodes, "--oneliner"]))
        return {name: self._slots for name in names if usable(states.get(name, ""))}


def node_list(shown: str) -> str:
    """Return the nodes in the output of ``scontrol show job``: ``n[1-3]``; empty if it has none."""
    found = re.search(r"(?:^|\s)NodeList=(\S+)", shown)
    return "" if found is None or found[1] in ("(null)", "None") else found[1]


def node_states(shown: str) -> dict[str, str]:
    """Return the state of each node in the output of ``scontrol show node --oneliner``."""
    found = re.findall(r"NodeName=(\S+).*?\sState=(\S+)", shown)
    return {name: state.upper() for name, state in found}


def usable(state: str) -> bool:
    """Return whether ranks may run on a node in ``state``; true if the state is unknown."""
    return not state.endswith("*") and not any(
        part.startswith(UNUSABLE) for part in state.rstrip("*").split("+")
    )


def _tasks(text: str) -> int:
    """Return the first number of ``2(x3),1``: Slurm's tasks per node."""
    found = re.match(r"\d+", text)
    return int(found[0]) if found else 1


def _scontrol(arguments: Sequence[str]) -> str:
    import subprocess  # imported here because other discoveries start no program

    try:
        done = subprocess.run(
            ["scontrol", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SettingsError(f"scontrol {' '.join(arguments)} failed: {error}") from None
    if done.returncode:
        raise SettingsError(
            f"scontrol {' '.join(arguments)} ended with exit code {done.returncode}:"
            f" {done.stderr.strip()[-500:]}"
        )
    return done.stdout
