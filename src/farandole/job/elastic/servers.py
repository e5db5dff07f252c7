"""The processes of an elastic job's parameter servers: decisions to start and stop them. Pure.

A server is a chain of processes with the same state: the primary, then its replicas. A process that
ends is replaced; the new process copies the state of the primary before it counts. A server that
has lost all processes of its chain starts from scratch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds before a process that could not start is replaced


class ServerProcess(NamedTuple):
    """A process of server ``number``; ``place`` counts all processes of that server."""

    number: int
    place: int


class ServerDecisions(NamedTuple):
    """The decisions about processes at one time.

    - ``start``: The processes to start.
    - ``lead``: The started processes that are primaries from their start.
    - ``stop``: The processes to end, because their servers have lost their states.
    - ``lost``: The numbers of these servers.
    """

    start: Sequence[ServerProcess]
    lead: Sequence[ServerProcess]
    stop: Sequence[ServerProcess]
    lost: Sequence[int]


class ServerPlan:
    """Keeps ``servers`` servers running, each with ``replicas`` processes."""

    def __init__(self, servers: int, replicas: int) -> None:
        self._servers = range(servers)
        self._replicas = replicas
        self.running: set[ServerProcess] = set()
        self._begun: set[ServerProcess] = set()  # processes that have published their addresses
        # by server: the processes with its current state, the primary first; empty if all are lost
        self.chains: list[Sequence[int]] = [()] * servers
        self._next = [0] * servers
        self._failures = [0] * servers  # consecutive processes that ended before they had begun
        self._due = [0.0] * servers  # the time before which no process is started

    def begin(self, process: ServerProcess) -> None:
        """Record that a process has published its address."""
        self._begun.add(process)
        self._failures[process.number] = 0

    def chain(self, number: int, places: Sequence[int]) -> None:
        """Record the chain that the primary of server ``number`` has published."""
        self.chains[number] = tuple(places)

    def end(self, process: ServerProcess, now: float) -> bool:
        """Record the end of a process; return whether it ended before it had begun."""
        self.running.discard(process)
        if process in self._begun:
            return False
        number = process.number
        pause = min(FIRST_PAUSE * 2 ** self._failures[number], LONGEST_PAUSE)
        self._failures[number] += 1
        self._due[number] = now + pause
        return True

    def decide(self, now: float) -> ServerDecisions:
        """Return the decisions at the time ``now``, in seconds."""
        start, lead, stop, lost = [], [], [], []
        for number in self._servers:
            own = {each for each in self.running if each.number == number}
            chain = self.chains[number]
            if chain and not any(each.place in chain for each in own):
                lost.append(number)
                stop += sorted(own)
                self.running -= own
                own, self.chains[number] = set(), ()
            if now < self._due[number]:
                continue
            for _ in range(self._replicas - len(own)):
                process = ServerProcess(number, self._next[number])
                self._next[number] += 1
                start.append(process)
                if not self.chains[number]:
                    lead.append(process)
                    self.chains[number] = (process.place,)
                self.running.add(process)
        return ServerDecisions(start, lead, stop, lost)
