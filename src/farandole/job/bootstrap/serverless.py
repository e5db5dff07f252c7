"""A job without a driver: its ranks agree on a store, which lives in rank 0 until the others have
left.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from farandole.base.log import logger
from farandole.errors import (
    AuthenticationError,
    HorovodInternalError,
    RendezvousError,
    SettingsError,
)
from farandole.job.bootstrap import origin
from farandole.job.bootstrap.siblings import LOOK, NOBODY, Siblings
from farandole.job.config import Connection, Placement, Settings
from farandole.job.config.fields import variables
from farandole.job.config.rank_variables import ORIGIN
from farandole.job.config.torchrun import torch_variables
from farandole.job.report import keys
from farandole.job.report.files import FILES, files
from farandole.job.report.outcome import Outcome
from farandole.net import interfaces
from farandole.net.handshake import encrypted, new_secret
from farandole.net.store import Door, StoreClient, StoreServer, enter, reach
from farandole.net.store.ports import free_port

if TYPE_CHECKING:
    from farandole.job.bootstrap import Cluster

PATIENCE = 10.0  # seconds in which the others end after a failure; what is left then is ended
# seconds for each address of rank 0's host, if it has several, before one is waited for longer
REACH = 5.0
SLACK = 5.0  # seconds that the word on who is missing may take
_LOOPBACK = "127.0.0.1"
_NODE = "node/"  # where a rank is, and the size that it was told
_LEFT = "left/"  # a rank's last word
_ENDED = "ended/"  # a rank that never came, in the words of one that has


@dataclass(frozen=True)
class _Stay:
    """This process's part in such a job."""

    pid: int
    cluster: Cluster
    placement: Placement
    client: StoreClient
    host: Host | None


_stay: _Stay | None = None


def join(
    cluster: Cluster, placement: Placement, settings: Settings
) -> tuple[Placement, Connection]:
    """Agree on a store with all ranks of ``cluster``. Collective. The environment says afterwards
    what a launcher's would, and torch.distributed's variables are in it.

    Raises RendezvousError naming ranks that do not come within ``settings.start_timeout`` seconds.
    """
    global _stay
    timeout = settings.start_timeout
    host = Host(placement, settings) if placement.rank == 0 else None
    client: StoreClient | None = None
    try:
        siblings = cluster.siblings(placement, os.environ)
        told = cluster.broadcast(
            placement, lambda: host.invitation() if host else "", timeout, siblings
        )
        *addresses, secret = told.split(",")
        if encrypted(secret) != settings.tls:
            raise SettingsError(
                f"rank {placement.rank} was started with FARANDOLE_TLS={int(settings.tls)}, rank 0"
                f" with FARANDOLE_TLS={int(encrypted(secret))}: set it for all ranks, or for none"
            )
        client = reach(addresses, secret, *[REACH] * (len(addresses) > 1), timeout)
        if settings.tls:  # what the cluster has carried is an invitation
            client = enter(client, placement.rank)
        client.stay(f"rank/{placement.rank}")
        node = [placement.hostname, placement.local_rank, placement.size]
        client.set(f"{_NODE}{placement.rank}", json.dumps(node).encode())
        if host:
            host.deal(siblings, cluster.settled)
        facts = _facts(client, placement.rank, timeout + SLACK, siblings)
        if facts["unlike"]:
            raise SettingsError(facts["unlike"])
        if facts["ended"]:
            raise RendezvousError.ended(facts["ended"])
        if facts["missing"]:
            raise RendezvousError.late(facts["missing"], timeout, otherwise=cluster.otherwise)
    except BaseException as error:
        if client is not None:
            client.close()
        if host:
            host.dismiss(SLACK if isinstance(error, RendezvousError) else 0.0)
        raise
    placement = Placement(**facts["placement"])
    connection = Connection(store=client.address, secret=client.secret, launcher=cluster.name)
    _stay = _Stay(os.getpid(), cluster, placement, client, host)
    os.environ.update(environment(placement, connection))
    os.environ[ORIGIN] = origin(os.environ)
    os.environ[FILES] = files(settings)
    for name, text in torch_variables(
        placement, interfaces.split(client.address)[0], facts["port"]
    ).items():
        os.environ.setdefault(name, text)
    logger.info(
        "rank %d of %d, started by %s: the store is at %s",
        placement.rank,
        placement.size,
        cluster.name,
        client.address,
    )
    return placement, connection


def _facts(client: StoreClient, rank: int, timeout: float, siblings: Siblings) -> dict[str, Any]:
    """What rank 0 says of the job, as ``Host.deal`` writes it; it is told meanwhile who has ended
    here.
    """
    deadline = time.monotonic() + timeout
    while True:
        with contextlib.suppress(*() if time.monotonic() > deadline else (RendezvousError,)):
            facts: dict[str, Any] = json.loads(client.get(f"placement/{rank}", LOOK))
            return facts
        for other in siblings.ended():
            client.set(f"{_ENDED}{other}", b"")


def cluster() -> Cluster | None:
    """What started the ranks of the job without a driver that this process is in; None if it is in
    none.
    """
    return None if _stay is None else _stay.cluster


def leave(failed: bool) -> None:
    """The end of this process, which is the end of the store if it is rank 0's. A process that was
    forked off is no rank.
    """
    global _stay
    stay, _stay = _stay, None
    if stay is None or stay.pid != os.getpid():
        return
    if stay.host is not None:
        stay.host.close(PATIENCE if failed else None)
    if failed and stay.cluster.ends_together and not _all_ended(stay, PATIENCE):
        sys.stderr.flush()
        stay.cluster.abort()
    if stay.host is None:
        # Said, because a process that was forked off, and lives on, holds the connection open.
        with contextlib.suppress(
            HorovodInternalError, RendezvousError, AuthenticationError, OSError
        ):
            stay.client.set(f"{_LEFT}{stay.placement.rank}", b"")
    stay.client.close()


def _all_ended(stay: _Stay, seconds: float) -> bool:
    """Have the other ranks said within ``seconds`` how they end?"""
    if stay.host is not None:
        return not stay.host.present()
    deadline = time.monotonic() + seconds
    try:
        for rank in range(stay.placement.size):
            stay.client.get(keys.outcome(rank), max(0.0, deadline - time.monotonic()))
    except RendezvousError:
        return False
    except HorovodInternalError:
        pass  # rank 0 has ended, and with it the store
    return True


def environment(placement: Placement, connection: Connection) -> dict[str, str]:
    """The variables that a launcher would have set, for the program and for what it starts."""
    return {**placement.to_env(variables(Placement)), **connection.to_env()}


def placements(nodes: Sequence[tuple[str, int]]) -> list[Placement]:
    """Who all ranks are, from the host's name and the local rank of each. Pure.

    Two nodes may have one name (containers): the second rank of a name with the same local rank is
    on another node.
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


class Host:
    """Rank 0's side: the store."""

    def __init__(self, placement: Placement, settings: Settings) -> None:
        self._size, self._timeout = placement.size, settings.start_timeout
        self._interfaces = settings.network_interfaces
        self._secret = new_secret(tls=settings.tls)
        self._everywhere = placement.local_size < placement.size
        self._changed = threading.Condition()
        self._present = set(range(1, placement.size))
        self._unlike: dict[int, int] = {}  # ranks that were told another size than we were
        self._nodes: list[tuple[str, int]] = []
        listen = interfaces.EVERYWHERE if self._everywhere else _LOOPBACK
        self.server = StoreServer(self._secret, host=listen)
        self._door = (
            Door(self.server, self._secret, placement.size, listen) if settings.tls else None
        )
        self.server.lost.append(self._lost)
        self.server.hooks.append(self._heard)

    def invitation(self) -> str:
        """The store's addresses, then the secret, with commas between; or those of its door."""
        address, secret = self.server.address, self._secret
        if self._door is not None:
            address, secret = self._door.address, self._door.invitation
        _, port = interfaces.split(address)
        hosts = [_LOOPBACK]
        if self._everywhere:
            offered = interfaces.chosen(interfaces.interfaces(), self._interfaces)
            hosts = [interface.address for interface in offered] or hosts
        return ",".join([*(interfaces.joined(host, port) for host in hosts), secret])

    def deal(self, siblings: Siblings = NOBODY, settled: Callable[[], None] = lambda: None) -> None:
        """Wait for the other ranks, and tell all of them who they are, or who is missing, has
        ended, or was told another size. ``settled`` is called before any of them goes on.
        """
        deadline = time.monotonic() + self._timeout
        names = [f"{_NODE}{rank}" for rank in range(self._size)]
        ended: list[int] = []
        while True:
            missing = [rank for rank, name in enumerate(names) if self.server.get(name) is None]
            left = deadline - time.monotonic()
            if not missing or ended or self._unlike or left <= 0:
                break
            self.server.wait(names[missing[0]], min(LOOK, left))
            gone = {rank for rank in missing if self.server.get(f"{_ENDED}{rank}") is not None}
            ended = sorted(gone | set(missing).intersection(siblings.ended()))
        ended = [rank for rank in ended if rank in missing]
        found = [json.loads(self.server.get(name) or b"null") for name in names]
        self._unlike |= {
            rank: node[2] for rank, node in enumerate(found) if node and node[2] != self._size
        }
        if self._unlike:
            self._refuse()
        if self._door is not None:
            self._door.close()
        settled()
        if not missing:
            self._nodes = [(name, local_rank) for name, local_rank, _ in found]
        port = free_port()
        who = placements(self._nodes) or [
            Placement(rank=rank, size=self._size) for rank in range(self._size)
        ]
        for placement in who:
            told = {
                "placement": vars(placement),
                "missing": missing,
                "ended": ended,
                "port": port,
                "unlike": "",
            }
            if not self._unlike:
                self.server.set(f"placement/{placement.rank}", json.dumps(told).encode())

    def _refuse(self) -> None:
        """Tell all ranks that they were not told the same size, and wait until they have heard it;
        those, too, that are about to come.
        """
        rank, size = min(self._unlike.items())
        text = (
            f"rank {rank} was started as one of {size} ranks, rank 0 as one of {self._size}:"
            " whatever starts them must tell all ranks the same number"
        )
        for number in range(max(self._size, *self._unlike.values())):
            self.server.set(f"placement/{number}", json.dumps({"unlike": text}).encode())
        with self._changed:
            self._changed.wait_for(lambda: not self._present, SLACK)

    def present(self) -> set[int]:
        """The other ranks that have not ended."""
        with self._changed:
            return set(self._present)

    def close(self, seconds: float | None) -> None:
        """Wait for the other ranks to end (None: as long as that takes), and say how those ended
        that failed.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._present, seconds)
        for line in self._story():
            sys.stderr.write(f"farandole: {line}\n")
        self.hang_up()

    def dismiss(self, seconds: float) -> None:
        """Hang up when those that came have heard why they have to go: within these seconds."""
        came = {
            rank for rank in range(1, self._size) if self.server.get(f"{_NODE}{rank}") is not None
        }
        with self._changed:
            self._changed.wait_for(lambda: not came & self._present, seconds)
        self.hang_up()

    def hang_up(self) -> None:
        if self._door is not None:
            self._door.close()
        self.server.close()

    def _story(self) -> list[str]:
        lines = []
        for rank in sorted(set(range(1, self._size))):
            name = f"rank {rank} on {self._nodes[rank][0]}" if self._nodes else f"rank {rank}"
            data = self.server.get(keys.outcome(rank))
            if data is None and rank not in self.present():
                lines.append(f"{name} ended without a report: it was killed, or called os._exit")
            with contextlib.suppress(ValueError):
                outcome = Outcome.from_bytes(data) if data is not None else None
                if outcome is not None and outcome.status == "error":
                    lines.append(f"{name} {outcome.words}")
        return lines

    def _heard(self, key: str, value: object) -> None:
        if key.startswith(_LEFT):
            self._lost(key)
        elif key.startswith(_NODE) and isinstance(value, bytes | bytearray):
            rank, size = int(key.removeprefix(_NODE)), json.loads(value)[2]
            if size != self._size:
                with self._changed:
                    self._unlike[rank] = size
                    self._present.add(rank)

    def _lost(self, name: str) -> None:
        with self._changed:
            self._present.discard(int(name.rpartition("/")[2]))
            self._changed.notify_all()
