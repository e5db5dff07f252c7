"""Allocations on any cluster that can start agents: ranks are assigned once all agents have
reported.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from farandole.base.log import logger
from farandole.base.types import Slot
from farandole.errors import JobFailedError, RendezvousError, SettingsError
from farandole.job.config import Settings
from farandole.job.launch.agents.registry import AgentInfo, AgentRegistry, RemoteWorker
from farandole.job.launch.limits import crowding
from farandole.job.launch.plan import plan
from farandole.net.handshake import encrypted
from farandole.net.store import StoreServer
from farandole.net.store.exchange import SecretExchange

# The driver's variables that ranks inherit: those that programs depend on. Others are not
# inherited, because the hosts differ from the driver's.
CHOICES = ("KERAS_BACKEND", "TF_USE_LEGACY_KERAS")
TIDY = 5.0  # seconds for the agents to exit after their ranks
CONTACT = 30.0  # seconds for an agent to reach the driver


class AgentPlace(NamedTuple):
    """A place for one agent.

    ``ranks`` is the number of ranks to start there. ``host`` is the user's name for the host; if
    empty, the host's own name is used, and agents that can share memory are on one host.
    """

    ranks: int
    host: str = ""


class AgentCluster(Protocol):
    """A cluster's way of starting agents.

    - ``noun``: The cluster's term for an agent's process ("Spark task").
    - ``python``: The ranks' interpreter; empty for the agents' own.
    - ``private``: Whether the messages to the agents are unreadable for other users.
    """

    noun: str
    private: bool
    python: str

    def describe(self) -> str:
        """See ``Allocation.describe``."""

    def address(self) -> tuple[str, str]:
        """Return the interface for the driver's socket, and the name by which agents reach it
        (empty: the same). Raises SettingsError.
        """

    def unreachable(self, host: str) -> str:
        """Return the cure if the driver cannot listen on the interface ``host``."""

    def start(self, facts: Mapping[str, Any]) -> None:
        """Start an agent on each place: ``boot.main(archive, wanted, {**facts, "index": n,
        ...})`` on place n.
        """

    def absent(self, agents: Sequence[int]) -> str:
        """Return why some of these agents, which have not reported, never will; empty if all still
        may.
        """

    def gone(self, agent: int) -> str | None:
        """Return why this agent has ended (empty: unknown), or None while it runs. Any thread."""

    def late(self, agents: Sequence[int], status: str) -> str:
        """Return the error message if these agents have not reported in time."""

    def close(self, seconds: float) -> None:
        """Wait for the agents to exit by themselves, then end the remaining ones."""


class AgentAllocation:
    """An allocation whose ranks are started by agents.

    ``timeout`` is the time in seconds for all agents to report. ``log``: the first rank's agent
    shows the text passed to ``to_log``.
    """

    remote = True

    def __init__(
        self,
        cluster: AgentCluster,
        places: Sequence[AgentPlace],
        timeout: float,
        *,
        log: bool = False,
    ) -> None:
        self._cluster = cluster
        self._places = places
        self._timeout = timeout
        self._log = log
        self._np = sum(place.ranks for place in places)
        self._store: StoreServer | None = None
        self._exchange: SecretExchange | None = None
        self._registry: AgentRegistry | None = None
        self._slots: Sequence[Slot] | None = None
        self._firsts: list[tuple[int, Slot]] = []  # per host, the agent of its first rank
        self._secret = ""
        self._command = list[str]()
        self._env = dict[str, str]()
        self._began = 0.0

    def describe(self) -> str:
        return self._cluster.describe()

    def listen(self, secret: str) -> StoreServer:
        host, name = self._cluster.address()
        self._secret = secret
        try:
            self._store = StoreServer(secret, host, advertise=name)
            if encrypted(secret) and not self._cluster.private:
                self._exchange = SecretExchange(self._store, secret, len(self._places), host, name)
        except OSError as error:
            cure = self._cluster.unreachable(host)
            raise SettingsError(
                f"the driver cannot listen on {host!r} ({error}): {cure}"
            ) from error
        return self._store

    def start(self, command: Sequence[str], env: Mapping[str, str]) -> Sequence[RemoteWorker]:
        assert self._store is not None
        chosen = {name: os.environ[name] for name in CHOICES if name in os.environ}
        self._command = list(command[1:])
        self._env = {**chosen, **env}
        self._began = time.monotonic()
        slots = plan(None, self._np)
        settings = Settings.from_env(self._env)
        self._registry = AgentRegistry(
            self._store,
            slots,
            len(self._places),
            self._cluster.gone,
            self._cluster.noun,
            0.0 if settings.stall_check_disable else settings.stall_shutdown_seconds,
        )
        facts = {"address": self._store.address, "secret": self._secret, "timeout": CONTACT}
        if self._exchange is not None:
            facts |= {
                "address": self._exchange.address,
                "secret": self._exchange.token,
                "redeem": True,
            }
        self._cluster.start(facts)
        return self._registry.workers

    def status(self) -> str:
        there = len(self._registry.agents) if self._registry is not None else 0
        return f"{there} of {len(self._places)} {self._cluster.noun}s started"

    def slots(self) -> Sequence[Slot] | None:
        if self._slots is None and self._registry is not None:
            agents = self._registry.agents
            absent = [index for index in range(len(self._places)) if index not in agents]
            if not absent:
                self._shut()
                self._slots = self._deal(
                    self._registry, [agents[index] for index in range(len(self._places))]
                )
            elif why := self._failure(self._registry, absent):
                self._registry.dismiss()  # the other agents would wait for ranks forever
                self._cluster.close(TIDY)
                raise JobFailedError(why)
            elif time.monotonic() > self._began + self._timeout:
                raise RendezvousError(self._cluster.late(absent, self.status()))
        return self._slots

    def _failure(self, registry: AgentRegistry, absent: Sequence[int]) -> str:
        lost = [self._cluster.gone(index) for index in registry.lost[:1]]
        return self._cluster.absent(absent) or next(
            (why or f"a {self._cluster.noun} ended" for why in lost), ""
        )

    def _deal(self, registry: AgentRegistry, agents: Sequence[AgentInfo]) -> Sequence[Slot]:
        """Assign ranks to the agents: rank 0 to the first, contiguous on each host."""
        slots, dealt = deal(self._places, agents)
        for agent in agents:
            for name, where in agent.odd.items():
                if where and name != "cloudpickle":
                    runs = (
                        "its rank uses" if self._places[agent.index].ranks == 1 else "its ranks use"
                    )
                    logger.warning(
                        "%s has a different %s (%s); %s the driver's copy",
                        agent.host,
                        name,
                        where,
                        runs,
                    )
        gpus = {slot.rank: agents[index].gpus for index, mine in dealt.items() for slot in mine}
        self._firsts = [
            (index, mine[0]) for index, mine in dealt.items() if mine[0].local_rank == 0
        ]
        for index, mine in dealt.items():
            order = {
                "command": self._command,
                "python": self._cluster.python,
                "log": self._log and mine[0].rank == 0,
            }
            registry.assign(
                index, mine, [self._environment(slot, slots, gpus) for slot in mine], order
            )
        return slots

    def _environment(
        self, slot: Slot, slots: Sequence[Slot], gpus: Mapping[int, Sequence[str]]
    ) -> dict[str, str]:
        neighbours = [
            other for other in slots if other.rank - other.local_rank == slot.rank - slot.local_rank
        ]
        who = {"FARANDOLE_RANK": str(slot.rank), "FARANDOLE_LOCAL_RANK": str(slot.local_rank)}
        return {
            **self._env,
            **who,
            **visible([gpus[other.rank] for other in neighbours], slot.local_rank),
        }

    def serve(
        self, command: Sequence[str], envs: Sequence[Mapping[str, str]], together: int
    ) -> Sequence[RemoteWorker]:
        """See ``contract.Serving``."""
        assert self._registry is not None
        workers: list[RemoteWorker] = []
        for begin in range(0, len(envs), together):
            index, first = self._firsts[begin // together % len(self._firsts)]
            own = envs[begin : begin + together]
            numbers = range(begin, begin + len(own))
            slots = [
                Slot(self._np + number, first.host, number, len(envs), 0, 1, len(envs))
                for number in numbers
            ]
            order = {"command": list(command[1:]), "python": self._cluster.python}
            workers += self._registry.serve(index, slots, own, order)
        return workers

    def advice(self) -> str:
        agents = self._registry.agents if self._registry is not None else {}
        crowded = [
            crowding(place.ranks, agents[index].cores, agents[index].host)
            for index, place in enumerate(self._places)
            if index in agents
        ]
        return next(filter(None, crowded), "")

    def to_log(self, text: str) -> None:
        """Add to the log of the first rank's agent."""
        if self._registry is not None:
            self._registry.to_log(text)

    def _shut(self) -> None:
        if self._exchange is not None:
            self._exchange.close()

    def close(self) -> None:
        self._shut()
        if self._registry is not None:
            self._registry.dismiss()
            # Agents that have not reported cannot be dismissed.
            self._cluster.close(TIDY if self._slots is not None else 0.0)
            self._registry.close()


def deal(
    places: Sequence[AgentPlace], agents: Sequence[AgentInfo]
) -> tuple[tuple[Slot, ...], dict[int, list[Slot]]]:
    """Return all slots, and the slots of each agent by its index. Pure.

    Agents are on one host if the user gives their hosts the same name; without names, if they can
    share memory.
    """
    hosts: dict[str, list[AgentInfo]] = {}
    for place, agent in zip(places, agents, strict=True):
        hosts.setdefault(place.host or agent.place, []).append(agent)
    names = [(places[group[0].index].host or group[0].host, group) for group in hosts.values()]
    counts = [(name, sum(places[agent.index].ranks for agent in group)) for name, group in names]
    slots = plan(counts, sum(count for _, count in counts))
    left = list(slots)
    dealt = {}
    for agent in (agent for _, group in names for agent in group):
        take = places[agent.index].ranks
        dealt[agent.index], left = left[:take], left[take:]
    return slots, dealt


def visible(gpus: Sequence[Sequence[str]], local_rank: int) -> dict[str, str]:
    """Return the variables that pin a rank to its GPUs from the cluster. ``gpus`` are the
    addresses per rank of its host.

    Every rank of a host sees the GPUs of all of the host's ranks, ordered so that a rank's local
    rank is the number of its device, because Horovod programs call
    ``torch.cuda.set_device(hvd.local_rank())``.
    """
    if not gpus[local_rank]:
        return {}
    most = max(len(addresses) for addresses in gpus)
    order = [addresses[turn] for turn in range(most) for addresses in gpus if turn < len(addresses)]
    unique = list(dict.fromkeys(order))
    mine = [str(unique.index(address)) for address in gpus[local_rank]]
    return {"CUDA_VISIBLE_DEVICES": ",".join(unique), "FARANDOLE_GPUS": ",".join(mine)}
