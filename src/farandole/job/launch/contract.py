"""The contract of launchers: each cluster is one module and a line in ``registry``.

A launcher provides an allocation, which starts the ranks. If a cluster only has to start a program
on each host, the allocation is ``agents.AgentAllocation``, and the cluster implements
``agents.allocation.AgentCluster``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

from farandole.base.types import Slot
from farandole.job.config import Placement, Settings
from farandole.net.store import StoreServer


class JobRequest(NamedTuple):
    """A job's request for places.

    - ``np``: The number of ranks.
    - ``title``: The program or function.
    - ``hosts``: The user's own hosts with slots, such as "h1:2,h2:4".
    - ``start_timeout``: Seconds, as set.
    - ``settings``: All settings of the user.
    """

    np: int
    title: str = ""
    hosts: str | None = None
    start_timeout: float = 30.0
    settings: Settings = Settings()


class Worker(Protocol):
    """The process of one rank, as the driver sees it."""

    slot: Slot
    stdout: int | None  # file descriptors that the driver reads; None if there is nothing to read
    stderr: int | None

    @property
    def ended(self) -> float:
        """The time (``time.monotonic``) at which the process's end was reported.

        A process that ended first cannot be the victim of a later failure.
        """

    def poll(self) -> int | None:
        """Return the exit code (negative: the signal), or None while the process runs."""

    def alive(self) -> bool:
        """Return whether the process or a descendant is still running."""

    def activity(self) -> str:
        """Return the process's current activity in a few words; empty if unknown."""

    def signal(self, number: int) -> None:
        """Send a signal that does not end it to the rank's own process."""

    def terminate(self) -> None: ...
    def kill(self) -> None: ...


class Allocation(Protocol):
    """Places for the ranks of one job, known or pending.

    ``remote`` is true if they are not all on the driver's machine.
    """

    remote: bool

    def describe(self) -> str:
        """Return one line for the user about the ranks' places."""

    def listen(self, secret: str) -> StoreServer:
        """Return the job's store, listening where the ranks' hosts can reach it. The driver
        closes it.
        """

    def start(self, command: Sequence[str], env: Mapping[str, str]) -> Sequence[Worker]:
        """Start ``command`` for every rank, now or once its place is known; return the workers by
        rank.

        ``command`` uses this host's interpreter; on another host, that host's interpreter replaces
        it. ``env`` holds the job's variables, added to the host's own. A slot whose place is not
        known yet has only its rank. Raises SettingsError if processes cannot be started.
        """

    def slots(self) -> Sequence[Slot] | None:
        """Return the final slots by rank, or None while places are pending. Raises an error if
        there will be none.
        """

    def status(self) -> str:
        """Describe the pending places in a few words."""

    def advice(self) -> str:
        """Return one line of advice for the user of these places, or an empty string.

        Called once the slots are known.
        """

    def close(self) -> None:
        """Release all resources on the cluster, after the workers have ended."""


@runtime_checkable
class Serving(Protocol):
    """An allocation that can start processes other than ranks on the ranks' hosts."""

    def serve(
        self, command: Sequence[str], envs: Sequence[Mapping[str, str]], together: int
    ) -> Sequence[Worker]:
        """Start ``command`` once per element of ``envs``, on the hosts in turn.

        Called once the slots are known. ``together`` consecutive processes are on one host. Their
        slots have ranks after the job's ranks. ``command`` and ``envs`` are as in
        ``Allocation.start``, with additional variables for each process.
        """


class Launcher(Protocol):
    """The two sides of one cluster: allocation in the driver and placement in a rank."""

    name: ClassVar[str]

    def affinity(self, request: JobRequest) -> int:
        """Return how well this launcher fits: -1 not at all, 0 only on request, 1 usable, 2 on its
        own cluster.
        """

    def allocate(self, request: JobRequest) -> Allocation:
        """Return places for the job. Raises SettingsError with the necessary change if there
        are none.
        """

    def placement(self, env: Mapping[str, str]) -> Placement | None:
        """Return the placement of this process of a job from its variables; None if another
        launcher started it.
        """
