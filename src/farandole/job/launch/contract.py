"""The contract of launchers: one cluster, one file and a line in ``registry``.

A launcher is asked for places and gives an allocation, which starts the ranks there. Where hosts
only need a program started on them, ``agents.AgentAllocation`` is the allocation, and the cluster
has to bring agents to their places (``agents.allocation.AgentCluster``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

from farandole.base.types import Slot
from farandole.job.config import Placement, Settings
from farandole.net.store import StoreServer


class JobRequest(NamedTuple):
    """The places that a job needs. ``np``: ranks; ``title``: the program or function; ``hosts``:
    the user's own list of hosts with slots, "h1:2,h2:4"; ``start_timeout``: seconds, as set;
    ``settings``: all that the user has set.
    """

    np: int
    title: str = ""
    hosts: str | None = None
    start_timeout: float = 30.0
    settings: Settings = Settings()


class Worker(Protocol):
    """The process of one rank, as the driver sees it."""

    slot: Slot
    stdout: int | None  # file descriptors that the driver reads, None when there is nothing to read
    stderr: int | None

    @property
    def ended(self) -> float:
        """When its end was heard of (``time.monotonic``): who ended first is no victim of those
        that ended later.
        """

    def poll(self) -> int | None:
        """The exit code (negative: the signal), or None while it runs."""

    def alive(self) -> bool:
        """Is anything left of the process or of its descendants?"""

    def activity(self) -> str:
        """The present activity of the process, in a few words; empty when that cannot be told."""

    def signal(self, number: int) -> None:
        """Send a signal that is not to end it to the rank's own process."""

    def terminate(self) -> None: ...
    def kill(self) -> None: ...


class Allocation(Protocol):
    """Places for the ranks of one job, known or awaited. ``remote``: they are not all on the
    driver's machine.
    """

    remote: bool

    def describe(self) -> str:
        """One line for the user about where the ranks will run."""

    def listen(self, secret: str) -> StoreServer:
        """The job's store, listening where the ranks' hosts can reach it. The driver closes it."""

    def start(self, command: Sequence[str], env: Mapping[str, str]) -> Sequence[Worker]:
        """Start ``command`` for every rank, now or as soon as its place is known; the workers by
        rank.

        ``command``: of this host's interpreter; elsewhere that of the host takes its place.
        ``env``: the job's variables, on top of the host's own. A slot that is not known yet has its
        rank alone. Raises SettingsError if processes cannot be started.
        """

    def slots(self) -> Sequence[Slot] | None:
        """The final slots, by rank; None while places are awaited. Raises when there will be
        none.
        """

    def status(self) -> str:
        """The places that ``slots`` waits for, in a few words."""

    def advice(self) -> str:
        """One line that a user of these places should read; empty if there is none. Asked when the
        slots are known.
        """

    def close(self) -> None:
        """After the workers were ended: leave nothing on the cluster."""


@runtime_checkable
class Serving(Protocol):
    """An allocation that can start other processes than ranks on the ranks' hosts."""

    def serve(
        self, command: Sequence[str], envs: Sequence[Mapping[str, str]], together: int
    ) -> Sequence[Worker]:
        """Start ``command`` once for each of ``envs``, on the hosts in turn; ``together`` of them,
        one after the other, are on one host. Their slots have the ranks after those of the job.
        Asked when the slots are known.

        ``command`` and ``envs`` are those of ``Allocation.start``, the latter with variables of
        each process.
        """


class Launcher(Protocol):
    """Both sides of one cluster."""

    name: ClassVar[str]

    def affinity(self, request: JobRequest) -> int:
        """-1 cannot, 0 only when asked, 1 can, 2 its home."""

    def allocate(self, request: JobRequest) -> Allocation:
        """Places for the job. Raises SettingsError with what would have to change when it cannot
        have them.
        """

    def placement(self, env: Mapping[str, str]) -> Placement | None:
        """Inside a process of a job: who it is, by its variables. None if this launcher did not
        start it.
        """
