"""The wires between the ranks of this job: shared memory where possible, TCP elsewhere.

Ranks count as on one host if they could reach each other's Unix sockets, regardless of their hosts'
names.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from farandole.base.contracts import End, Transport
from farandole.base.log import logger
from farandole.core import collectives
from farandole.core.collectives.hierarchical import Hierarchical, slices
from farandole.core.transports import shm
from farandole.errors import PeerLostError, RendezvousError, SettingsError
from farandole.job.config import Connection, Placement, Settings
from farandole.job.plugins import registry
from farandole.job.report import keys
from farandole.net import interfaces
from farandole.net.handshake import encrypted
from farandole.net.store.protocol import KeyValueStore

if TYPE_CHECKING:
    from farandole.net.store import StoreClient

_LOOK = 0.5  # seconds between checks for ended ranks


def next_session(
    placement: Placement, client: StoreClient | None, last: tuple[int, int]
) -> tuple[int, int]:
    """Return the membership of the session that begins now and the session's number in it, after
    ``last``.

    A rank may run several programs, in sequence or nested. The store counts the sessions of all of
    them, so that no session reads the messages of an earlier one.
    """
    before = last[1] if last[0] == placement.generation else 0
    if client is None:
        return placement.generation, before + 1
    key, known = (
        keys.sessions(placement.generation, placement.size, placement.rank),
        b"%d" % before if before else b"",
    )
    while True:
        number = int(known or b"0") + 1
        swapped, found = client.swap(key, known, b"%d" % number)
        if swapped:
            return placement.generation, number
        known = found or b""


def check_store(placement: Placement, connection: Connection) -> None:
    """Raise SettingsError for a rank that cannot reach the others."""
    if not connection.store or not connection.secret:
        raise SettingsError(
            f"this process is rank {placement.rank} of {placement.size}, but FARANDOLE_STORE or"
            " FARANDOLE_SECRET is missing: start it with farandole run, or unset HOROVOD_SIZE to"
            " run a single rank"
        )


class _Wiring(NamedTuple):
    """One ``connect`` on this rank. ``scope`` is the same on all ranks and unique to this
    session.
    """

    placement: Placement
    connection: Connection
    settings: Settings
    client: KeyValueStore
    scope: str
    patience: float

    def share(self, topic: str, message: str) -> list[str]:
        """Return every rank's message about ``topic``."""
        timeout = self.settings.start_timeout
        return share(self.client, self.placement, f"{self.scope}/{topic}", message, timeout)

    def wire(self, name: str, scope: str, ranks: Sequence[int]) -> Transport:
        """Return the wire ``name`` of ``ranks``, which include this one."""
        end = End(
            rank=list(ranks).index(self.placement.rank),
            size=len(ranks),
            secret=self.connection.secret,
            scope=scope,
            timeout=self.settings.start_timeout,
            store=self.client,
            host=interfaces.offered(self.client.host, self.settings.network_interfaces),
            streams=self.settings.tcp_streams,
            names=ranks,
            check=lambda: check_members(self.client, self.placement),
        )
        return collectives.over(registry.load("wire", name)(end))

    def rendezvous(self) -> shm.ShmRendezvous:
        """Return the closed rendezvous through which this rank has found the ranks that share
        its memory.
        """
        rendezvous = shm.ShmRendezvous(
            self.placement.rank, self.placement.size, self.connection.secret, self.scope
        )
        try:
            check_same_settings(
                self.share("listening", shared_settings(self.settings))
            )  # now all ranks are listening
            rendezvous.dial_lower_ranks()
            self.share("looked", "")  # now no rank is dialling
        finally:
            rendezvous.close()
        return rendezvous

    def join_hosts(
        self, hosts: Sequence[Sequence[int]], peers: Mapping[int, socket.socket]
    ) -> Transport:
        """Return the wire of all ranks if not all share memory.

        ``hosts`` are groups of ranks that do; ``peers`` are the ranks that this rank has reached.
        """
        rank, size = self.placement.rank, self.placement.size
        mine = next(host for host in hosts if rank in host)
        for peer, sock in peers.items():
            if peer not in mine:
                sock.close()
        flat = self.wire("tcp", self.scope, range(size))
        if max(map(len, hosts)) == 1:
            return flat
        index = mine.index(rank)
        local = shm.join(
            index,
            len(mine),
            self.connection.secret,
            f"{self.scope}/host{hosts.index(mine)}",
            {mine.index(peer): sock for peer, sock in peers.items() if peer in mine},
            patience=self.patience,
            names=mine,
        )
        cross = None
        if index < slices(hosts):
            cross = self.wire("tcp", f"{self.scope}/slice{index}", [host[index] for host in hosts])
        return Hierarchical(flat, local, cross, hosts, self.settings.tcp_streams)


def connect(
    placement: Placement,
    connection: Connection,
    settings: Settings,
    client: KeyValueStore,
    scope: str,
    patience: float = 600.0,
) -> Transport:
    """Return the transport that joins all ranks. Collective.

    ``patience`` is the time in seconds for which shared memory waits for a rank inside a
    collective.
    """
    rank, size = placement.rank, placement.size
    check_encryption(connection, settings, rank)
    wiring = _Wiring(placement, connection, settings, client, scope, patience)
    if settings.transport != "auto":
        check_same_settings(wiring.share("listening", shared_settings(settings)))
        logger.info(
            "rank %d: transport %r connects all ranks, as set by --transport",
            rank,
            settings.transport,
        )
        return wiring.wire(settings.transport, scope, range(size))
    rendezvous = wiring.rendezvous()
    peers = rendezvous.found()
    near = [rank, *peers] if _has_shared_memory(placement) else [rank]
    reached = wiring.share("near", json.dumps(sorted(near)))
    hosts = group([json.loads(text) for text in reached])
    logger.info("rank %d: %s", rank, reason(hosts, rendezvous.trouble))
    if len(hosts) == 1:
        return shm.join(rank, size, connection.secret, scope, peers, patience=patience)
    return wiring.join_hosts(hosts, peers)


def _has_shared_memory(placement: Placement) -> bool:
    """Return whether this rank may use shared memory; warn on one rank of each host if not."""
    if shm.is_available():
        return True
    if placement.local_rank == 0:
        logger.warning(
            "rank %d: shared memory is forbidden here (memfd_create), so ranks of this host"
            " exchange data by TCP, which is slower. Allow memfd_create in the sandbox (seccomp);"
            " --transport tcp hides this line",
            placement.rank,
        )
    return False


def shared_settings(settings: Settings) -> str:
    """Return the settings that must be the same on all ranks, as JSON.

    No later check detects a difference: ranks on different wires would wait forever, and averages
    after ``join()`` would differ.
    """
    return json.dumps(
        {
            "FARANDOLE_TRANSPORT": settings.transport,
            "FARANDOLE_JOIN_MEAN_OF_PRESENT": int(settings.join_mean_of_present),
        }
    )


def check_same_settings(shared: Sequence[str]) -> None:
    """Raise SettingsError on all ranks unless their ``shared_settings`` are equal."""
    ranks = [json.loads(text) for text in shared]
    for name, value in ranks[0].items():
        other = next((rank for rank, theirs in enumerate(ranks) if theirs[name] != value), 0)
        if other:
            raise SettingsError(
                f"rank 0 was started with {name}={value}, but rank {other} with"
                f" {name}={ranks[other][name]}: set the same value for all ranks (Open MPI's"
                " mpirun passes a variable to other hosts with -x)"
            )


def check_encryption(connection: Connection, settings: Settings, rank: int) -> None:
    """Raise SettingsError if only some ranks use encryption, or if a wire does not support it."""
    if settings.tls != encrypted(connection.secret):
        here, job = ("with", "without") if settings.tls else ("without", "with")
        raise SettingsError(
            f"rank {rank} was started {here} --tls (FARANDOLE_TLS={int(settings.tls)}), but its"
            f" job {job}: set it for all ranks, or for none"
        )
    if settings.tls and settings.transport not in ("auto", *registry.BUILT_IN["wire"]):
        raise SettingsError(
            f"--tls (FARANDOLE_TLS=1): transport {settings.transport!r} may not encrypt;"
            " use --transport auto, or leave out --tls"
        )


def reason(hosts: Sequence[Sequence[int]], trouble: Mapping[int, str]) -> str:
    """Return the wire that joins the ranks, and the reason.

    ``hosts`` are groups of ranks that share memory; ``trouble`` is why this rank did not reach
    others.
    """
    if len(hosts) == 1:
        return "shared memory connects all ranks: they all reached each other's Unix sockets"
    wire = "TCP connects all ranks"
    if max(map(len, hosts)) > 1:
        wire = "shared memory connects the ranks of a host, and TCP connects the hosts"
    groups = "; ".join(", ".join(map(str, host)) for host in hosts)
    why = "".join(
        f"; rank {rank} was not reached ({text})" for rank, text in list(trouble.items())[:3]
    )
    return f"{wire}: ranks that share memory are {groups}{why}"


def group(neighbours: Sequence[Sequence[int]]) -> list[list[int]]:
    """Group the ranks by host, given the ranks that each could reach. Pure; the same on all ranks.

    Ranks belong together if all of them reach the same ranks. A rank whose view differs from all
    others forms a separate group.
    """
    hosts: dict[tuple[int, ...], list[int]] = {}
    for rank, seen in enumerate(neighbours):
        alike = all(list(neighbours[peer]) == list(seen) for peer in seen)
        hosts.setdefault(tuple(seen) if alike else (rank,), []).append(rank)
    return sorted(hosts.values())


def check_members(client: KeyValueStore, placement: Placement) -> None:
    """Raise PeerLostError if a member of this elastic job's membership has been lost."""
    number = placement.generation
    if number and client.try_get(keys.broken(number)) is not None:
        raise PeerLostError(lost_text(number))


def lost_text(number: int) -> str:
    """Return the message for the ranks of membership ``number`` when a member has been lost."""
    return f"a member of membership {number} of this elastic job was lost"


def share(
    client: KeyValueStore, placement: Placement, topic: str, message: str, timeout: float
) -> list[str]:
    """Return every rank's message about ``topic``, in rank order.

    Raises RendezvousError naming the ranks that send no message within ``timeout`` seconds or have
    already ended.
    """
    client.set(f"share/{topic}/{placement.rank}", message.encode())
    deadline = monotonic() + timeout
    looked = False
    while True:
        check_members(client, placement)
        finished = set(json.loads(client.try_get(keys.FINISHED) or b"[]")) if looked else set()
        messages = client.gather(
            f"share/{topic}", placement.size, max(0.0, min(_LOOK, deadline - monotonic()))
        )
        missing = [rank for rank, text in enumerate(messages) if text is None]
        if not missing:
            return [text.decode() for text in messages if text is not None]
        # A finished rank sends no more messages.
        if gone := [rank for rank in missing if rank in finished]:
            raise RendezvousError.finished(gone)
        if monotonic() >= deadline:
            raise RendezvousError.late(missing, timeout)
        looked = True
