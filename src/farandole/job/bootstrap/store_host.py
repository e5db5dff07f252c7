"""Rank 0's store of a job without a driver, which assigns placements to all ranks."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from farandole.job.bootstrap.siblings import LOOK, NO_SIBLINGS, Siblings
from farandole.job.config import Placement, Settings
from farandole.job.report import keys
from farandole.job.report.outcome import Outcome
from farandole.net import interfaces
from farandole.net.handshake import new_secret
from farandole.net.store import StoreServer
from farandole.net.store.exchange import SecretExchange
from farandole.net.store.ports import free_port

LOOPBACK = "127.0.0.1"
NODE = "node/"  # a rank's host, its local rank, and its number of ranks
LEFT = "left/"  # a rank's last message
ENDED = "ended/"  # an absent rank that another rank has seen end
SLACK = 5.0  # seconds to deliver the message about missing ranks


class Assignment(NamedTuple):
    """The answer of rank 0 to a rank.

    - ``placement``: The fields of the rank's placement.
    - ``missing``, ``ended``: Ranks that did not arrive in time, or have ended.
    - ``port``: A free port on rank 0's host.
    - ``wrong_size``: An error if the ranks were started with different numbers of ranks.
    """

    placement: dict[str, Any] = {}
    missing: tuple[int, ...] = ()
    ended: tuple[int, ...] = ()
    port: int = 0
    wrong_size: str = ""

    def to_bytes(self) -> bytes:
        return json.dumps(self._asdict()).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Assignment:
        return cls(**json.loads(data))


def assignment_key(rank: int) -> str:
    return f"placement/{rank}"


def placements(nodes: Sequence[tuple[str, int]]) -> list[Placement]:
    """Return all ranks' placements, given each rank's host name and local rank. Pure.

    Two nodes may share a name (containers): the second rank with the same name and local rank is on
    another node.
    """
    seen: Counter[tuple[str, int]] = Counter()
    members: dict[tuple[str, int], list[int]] = {}
    for rank, (name, local_rank) in enumerate(nodes):
        members.setdefault((name, seen[name, local_rank]), []).append(rank)
        seen[name, local_rank] += 1
    found: dict[int, Placement] = {}
    for (name, _), ranks in members.items():
        for local_rank, rank in enumerate(ranks):
            hosts = [others for others in members.values() if len(others) > local_rank]
            found[rank] = Placement(
                rank=rank,
                size=len(nodes),
                local_rank=local_rank,
                local_size=len(ranks),
                hostname=name,
                cross_rank=hosts.index(ranks),
                cross_size=len(hosts),
                homogeneous=len({len(others) for others in members.values()}) == 1,
            )
    return [found[rank] for rank in range(len(nodes))]


class StoreHost:
    """Rank 0's side: the store and the assignments."""

    def __init__(self, placement: Placement, settings: Settings) -> None:
        self._size = placement.size
        self._timeout = settings.start_timeout
        self._interfaces = settings.network_interfaces
        self._secret = new_secret(tls=settings.tls)
        self._everywhere = placement.local_size < placement.size
        self._changed = threading.Condition()
        self._remaining = set(range(1, placement.size))
        # sizes of ranks that were started with another number of ranks
        self._wrong_sizes: dict[int, int] = {}
        self._nodes: list[tuple[str, int]] = []
        listen = interfaces.EVERYWHERE if self._everywhere else LOOPBACK
        self.server = StoreServer(self._secret, host=listen)
        self._exchange: SecretExchange | None = None
        if settings.tls:
            self._exchange = SecretExchange(self.server, self._secret, placement.size, listen)
        self.server.lost.append(self._on_lost)
        self.server.hooks.append(self._on_value)

    def contact(self) -> str:
        """Return the store's addresses and its secret, separated by commas; with TLS, the
        address and token of the secret exchange instead.
        """
        address, secret = self.server.address, self._secret
        if self._exchange is not None:
            address, secret = self._exchange.address, self._exchange.token
        _, port = interfaces.split(address)
        hosts = [LOOPBACK]
        if self._everywhere:
            offered = interfaces.chosen(interfaces.interfaces(), self._interfaces)
            hosts = [interface.address for interface in offered] or hosts
        return ",".join([*(interfaces.joined(host, port) for host in hosts), secret])

    def assign(
        self, siblings: Siblings = NO_SIBLINGS, on_assigned: Callable[[], None] = lambda: None
    ) -> None:
        """Wait for the other ranks and send each its assignment.

        An assignment is a placement, or the ranks that are missing, have ended or were started with
        another size. ``on_assigned`` is called before any rank continues.
        """
        missing, ended = self._await_nodes(siblings)
        nodes = [json.loads(self.server.get(name) or b"null") for name in self._node_keys()]
        self._wrong_sizes |= {
            rank: node[2] for rank, node in enumerate(nodes) if node and node[2] != self._size
        }
        if self._wrong_sizes:
            self._refuse()
        if self._exchange is not None:
            self._exchange.close()
        on_assigned()
        if not missing:
            self._nodes = [(name, local_rank) for name, local_rank, _ in nodes]
        port = free_port()
        assigned = placements(self._nodes) or [
            Placement(rank=rank, size=self._size) for rank in range(self._size)
        ]
        if self._wrong_sizes:
            return
        for placement in assigned:
            assignment = Assignment(
                placement=vars(placement), missing=tuple(missing), ended=tuple(ended), port=port
            )
            self.server.set(assignment_key(placement.rank), assignment.to_bytes())

    def _node_keys(self) -> list[str]:
        return [f"{NODE}{rank}" for rank in range(self._size)]

    def _await_nodes(self, siblings: Siblings) -> tuple[list[int], list[int]]:
        """Return the ranks that did not arrive in time, and those among them that have ended."""
        deadline = time.monotonic() + self._timeout
        names = self._node_keys()
        ended: list[int] = []
        while True:
            missing = [rank for rank, name in enumerate(names) if self.server.get(name) is None]
            left = deadline - time.monotonic()
            if not missing or ended or self._wrong_sizes or left <= 0:
                break
            self.server.wait(names[missing[0]], min(LOOK, left))
            gone = {rank for rank in missing if self.server.get(f"{ENDED}{rank}") is not None}
            ended = sorted(gone | set(missing).intersection(siblings.ended()))
        return missing, [rank for rank in ended if rank in missing]

    def _refuse(self) -> None:
        """Send all ranks, including those yet to arrive, an error about their different sizes,
        and wait until they have received it.
        """
        rank, size = min(self._wrong_sizes.items())
        text = (
            f"rank {rank} was started as one of {size} ranks, but rank 0 as one of {self._size}:"
            " start all ranks with the same number"
        )
        refusal = Assignment(wrong_size=text).to_bytes()
        for number in range(max(self._size, *self._wrong_sizes.values())):
            self.server.set(assignment_key(number), refusal)
        with self._changed:
            self._changed.wait_for(lambda: not self._remaining, SLACK)

    def remaining(self) -> set[int]:
        """Return the other ranks that have not ended."""
        with self._changed:
            return set(self._remaining)

    def close(self, seconds: float | None) -> None:
        """Wait for the other ranks to end and report the failed ones on stderr.

        ``seconds`` limits the wait; None means no limit.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._remaining, seconds)
        for line in self._failure_summary():
            sys.stderr.write(f"farandole: {line}\n")
        self.hang_up()

    def dismiss(self, seconds: float) -> None:
        """Close the store once the ranks that arrived have received their error, or after
        ``seconds``.
        """
        came = {
            rank for rank in range(1, self._size) if self.server.get(f"{NODE}{rank}") is not None
        }
        with self._changed:
            self._changed.wait_for(lambda: not came & self._remaining, seconds)
        self.hang_up()

    def hang_up(self) -> None:
        if self._exchange is not None:
            self._exchange.close()
        self.server.close()

    def _failure_summary(self) -> list[str]:
        lines = []
        for rank in range(1, self._size):
            name = f"rank {rank} on {self._nodes[rank][0]}" if self._nodes else f"rank {rank}"
            data = self.server.get(keys.outcome(rank))
            if data is None and rank not in self.remaining():
                lines.append(f"{name} ended without a report: it was killed, or it called os._exit")
            with contextlib.suppress(ValueError):
                outcome = Outcome.from_bytes(data) if data is not None else None
                if outcome is not None and outcome.status == "error":
                    lines.append(f"{name} {outcome.words}")
        return lines

    def _on_value(self, key: str, value: object) -> None:
        if key.startswith(LEFT):
            self._on_lost(key)
        elif key.startswith(NODE) and isinstance(value, bytes | bytearray):
            rank, size = int(key.removeprefix(NODE)), json.loads(value)[2]
            if size != self._size:
                with self._changed:
                    self._wrong_sizes[rank] = size
                    self._remaining.add(rank)

    def _on_lost(self, name: str) -> None:
        with self._changed:
            self._remaining.discard(int(name.rpartition("/")[2]))
            self._changed.notify_all()
