"""The contract of a target.

A *runner* executes a run: ``python -m farandole.jobs.runner <run folder> <attempt>``. The runner
prepares the environment and the inputs, starts the ranks through Farandole's launchers, and records
the end. A target decides where a runner executes, starts it, and detects its end. Local processes,
ssh hosts and Spark have their runner on this host. The runner for Slurm is inside an allocation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

from farandole.job.launch.contract import Launcher
from farandole.job.runs.folder import RunFolder
from farandole.job.runs.spec import Resources, RunSpec


@dataclass(frozen=True)
class TargetSpec:
    """A target as a user defines it; stored as ``targets/<name>.json`` below the home.

    - ``kind``: The registered kind, such as ``local``, ``ssh``, ``slurm`` or ``spark``.
    - ``min_nodes``, ``max_nodes``: Limits for targets that add and release nodes; a ``max_nodes``
      of 0 means no limit.
    - ``idle_seconds``: Seconds after which an idle node above ``min_nodes`` is released.
    - ``options``: Options of the kind, such as ``hosts`` of ``ssh`` or ``partition`` of ``slurm``.
    """

    name: str
    kind: str
    min_nodes: int = 0
    max_nodes: int = 0
    idle_seconds: float = 1800.0
    options: Mapping[str, Any] = field(default_factory=dict)


class Capacity(NamedTuple):
    """The capacity of a target whose runs wait in Farandole's own queue.

    ``memory``: in bytes; 0 means unknown.
    """

    cores: float
    memory: int
    gpus: int
    nodes: int


class NodeCounts(NamedTuple):
    """The number of nodes by state. ``preparing`` nodes start, ``leaving`` nodes stop."""

    idle: int = 0
    running: int = 0
    preparing: int = 0
    leaving: int = 0
    unusable: int = 0


class Ticket(NamedTuple):
    """The identity of a started runner, valid after a restart of the supervisor.

    ``data``: JSON data defined by the target, such as a process identity or a Slurm job number.
    """

    target: str
    data: Mapping[str, Any]


class Presence(NamedTuple):
    """The state of a runner: ``pending`` in the target's own queue, ``present`` or ``gone``.

    ``reason``: why the runner is pending or gone, such as a preemption or a time limit; empty if
    unknown. ``preempted``: whether the end was not caused by the program.
    """

    state: str
    reason: str = ""
    preempted: bool = False


class Launch(NamedTuple):
    """The arguments of ``farandole.job.launch`` with which the runner starts the ranks.

    - ``launcher``: The launcher, or its name.
    - ``hosts``: Hosts with slots, such as ``h1:2,h2:2``, or None.
    - ``settings``: Further settings of the job.
    - ``copies``: For hosts without a shared file system: a function that returns the context in
      which the ranks run; otherwise None. Its arguments are the run's folder and the paths of other
      files that the ranks read.
    """

    launcher: str | Launcher
    hosts: str | None = None
    settings: Mapping[str, Any] = {}
    copies: Callable[[RunFolder, Sequence[str]], AbstractContextManager[None]] | None = None


class RunTarget(Protocol):
    """A place for runs: one module, and a registry line or entry point (``farandole.targets``)."""

    kind: ClassVar[str]

    def __init__(self, spec: TargetSpec) -> None:
        """Raises SettingsError for invalid options."""

    def check(self, resources: Resources) -> None:
        """Raise SettingsError if the target can never provide these resources."""

    def capacity(self) -> Capacity | None:
        """Return the capacity, or None if the target has its own queue."""

    def start(self, folder: RunFolder, command: Sequence[str], env: Mapping[str, str]) -> Ticket:
        """Start ``command``, the runner for an attempt of a run, and return its ticket.

        Raises RunError if the runner cannot be started.
        """

    def presence(self, tickets: Sequence[Ticket]) -> Sequence[Presence]:
        """Return the presence of each ticket's runner, with one query for all tickets."""

    def cancel(self, ticket: Ticket, grace_seconds: float) -> None:
        """Ask the runner to stop, and kill it after ``grace_seconds``. Does not wait."""

    def nodes(self, tickets: Sequence[Ticket]) -> NodeCounts | None:
        """Return the number of nodes by state, or None if unknown to the target.

        ``tickets``: the tickets of the target's active runs. The call may take seconds.
        """

    def launch(self, spec: RunSpec) -> Launch:
        """Return the arguments for the launch of the ranks. The runner calls this method."""
