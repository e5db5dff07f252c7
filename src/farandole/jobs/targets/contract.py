"""The contract of a target.

A run is executed by a *runner*: ``python -m farandole.jobs.runner <run folder> <attempt>``. The
runner prepares the environment and the inputs, starts the ranks through Farandole's launchers, and
records the end. A target says where a runner can run, starts it, and knows whether it is still
there. Local processes, ssh hosts and Spark run their runner on this host; Slurm runs it inside an
allocation.
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

    - ``kind``: The registered target class, such as ``local``, ``ssh``, ``slurm`` or ``spark``.
    - ``min_nodes``, ``max_nodes``: Limits for targets whose nodes come and go; ``max_nodes`` 0
      means no limit.
    - ``idle_seconds``: Time after which an idle node above ``min_nodes`` is released.
    - ``options``: Options of the kind, such as ``hosts`` of ``ssh`` or ``partition`` of ``slurm``.
    """

    name: str
    kind: str
    min_nodes: int = 0
    max_nodes: int = 0
    idle_seconds: float = 1800.0
    options: Mapping[str, Any] = field(default_factory=dict)


class Capacity(NamedTuple):
    """The capacity of a target, for targets whose queue is Farandole's own.

    ``memory`` is in bytes; 0 means unknown.
    """

    cores: float
    memory: int
    gpus: int
    nodes: int


class NodeCounts(NamedTuple):
    """The nodes of a target by their state. ``preparing`` nodes start, ``leaving`` ones end."""

    idle: int = 0
    running: int = 0
    preparing: int = 0
    leaving: int = 0
    unusable: int = 0


class Ticket(NamedTuple):
    """A started runner: an identity that survives the supervisor.

    ``data`` is JSON data of the target's choice, for example a process identity or the number of a
    Slurm job.
    """

    target: str
    data: Mapping[str, Any]


class Presence(NamedTuple):
    """The state of a runner: ``pending`` in the target's own queue, ``present`` or ``gone``.

    ``reason`` says why it is pending or gone, if the target knows (a preemption, a time limit).
    ``preempted``: The program is not the cause of its end.
    """

    state: str
    reason: str = ""
    preempted: bool = False


class Launch(NamedTuple):
    """The launch of the ranks by the runner: arguments of ``farandole.job.launch``.

    - ``launcher``: The launcher, or its name.
    - ``hosts``: Hosts with slots, such as ``h1:2,h2:2``, or None.
    - ``settings``: Further settings of the job.
    - ``copies``: For hosts that may not share the file system: called with the run's folder and
      the paths of further files that the ranks read, it returns the context in which the ranks run.
    """

    launcher: str | Launcher
    hosts: str | None = None
    settings: Mapping[str, Any] = {}
    copies: Callable[[RunFolder, Sequence[str]], AbstractContextManager[None]] | None = None


class RunTarget(Protocol):
    """A place for runs. One module, one registry line or entry point (``farandole.targets``)."""

    kind: ClassVar[str]

    def __init__(self, spec: TargetSpec) -> None:
        """Raises SettingsError for wrong options."""

    def check(self, resources: Resources) -> None:
        """Raise SettingsError if the target can never hold these resources."""

    def capacity(self) -> Capacity | None:
        """Return the capacity, or None if the target has a queue of its own."""

    def start(self, folder: RunFolder, command: Sequence[str], env: Mapping[str, str]) -> Ticket:
        """Start the runner's ``command`` for an attempt of a run and return its ticket.

        Raises RunError if it cannot be started.
        """

    def presence(self, tickets: Sequence[Ticket]) -> Sequence[Presence]:
        """Return the presence of each ticket's runner, with one query for all tickets."""

    def cancel(self, ticket: Ticket, grace_seconds: float) -> None:
        """Ask the runner to end; end it after ``grace_seconds``. Does not wait."""

    def nodes(self, tickets: Sequence[Ticket]) -> NodeCounts | None:
        """Return the nodes by state, or None if the target does not know them.

        ``tickets``: the tickets of the target's active runs. May take seconds.
        """

    def launch(self, spec: RunSpec) -> Launch:
        """Return the way to start the ranks. Called in the runner."""
