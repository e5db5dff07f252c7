"""Which wires join the ranks of this job: shared memory where it can be shared, TCP between.

Ranks on one host are those that managed to reach each other's Unix sockets; their hosts' names do
not matter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from farandole.base.contracts import End, Transport
from farandole.base.log import logger
from farandole.core import collectives
from farandole.core.collectives.hierarchical import Hierarchical, slices
from farandole.core.transports import shm
from farandole.errors import RendezvousError, SettingsError
from farandole.job.config import Connection, Placement, Settings
from farandole.job.plugins import registry
from farandole.job.report import keys
from farandole.net import interfaces
from farandole.net.handshake import encrypted

if TYPE_CHECKING:
    from farandole.net.store import StoreClient

_LOOK = 0.5  # seconds between looks for ranks that have ended


class Store(Protocol):
    """The methods needed of ``farandole.net.store.StoreClient``. ``host``: this host's address
    towards it.
    """

    host: str

    def set(self, key: str, value: bytes) -> None: ...
    def get(self, key: str, timeout: float) -> bytes: ...
    def try_get(self, key: str) -> bytes | None: ...
    def gather(self, prefix: str, count: int, timeout: float) -> list[bytes | None]: ...


def next_session(
    placement: Placement, client: StoreClient | None, last: tuple[int, int]
) -> tuple[int, int]:
    """Return the membership and the number in it of the session that begins now, after ``last`` of
    this process.

    A rank may be several programs, one after the other or one within the other: the store counts
    the sessions of all, so that none reads the messages of an earlier one.
    """
    before = last[1] if last[0] == placement.generation else 0
    if client is None:
        return placement.generation, before + 1
    key, known = (
        f"sessions/{placement.generation}/{placement.size}/{placement.rank}",
        b"%d" % before if before else b"",
    )
    while True:
        number = int(known or b"0") + 1
        swapped, found = client.swap(key, known, b"%d" % number)
        if swapped:
            return placement.generation, number
        known = found or b""


def check_store(placement: Placement, connection: Connection) -> None:
    """SettingsError for a rank that nobody told how to reach the others."""
    if not connection.store or not connection.secret:
        raise SettingsError(
            f"this process is rank {placement.rank} of {placement.size}, but FARANDOLE_STORE or"
            " FARANDOLE_SECRET is missing: start it with 'farandole run', or unset HOROVOD_SIZE to"
            " run one rank alone"
        )


def connect(
    placement: Placement,
    connection: Connection,
    settings: Settings,
    client: Store,
    scope: str,
    patience: float = 600.0,
) -> Transport:
    """The transport that joins all ranks. Collective. ``patience``: seconds for which shared memory
    waits for a rank inside a collective.
    """
    rank, size, secret, timeout = (
        placement.rank,
        placement.size,
        connection.secret,
        settings.start_timeout,
    )

    check_encryption(connection, settings, rank)

    def wire(name: str, scope: str, ranks: Sequence[int]) -> Transport:
        addresses = interfaces.offered(client.host, settings.network_interfaces)
        place, streams = list(ranks).index(rank), settings.tcp_streams
        end = End(place, len(ranks), secret, scope, timeout, client, addresses, streams, ranks)
        return collectives.over(registry.load("wire", name)(end))

    def said(topic: str, mine: str) -> list[str]:
        return share(client, placement, f"{scope}/{topic}", mine, timeout)

    if settings.transport != "auto":
        check_same_parameters(said("listening", alike(settings)))
        logger.info(
            "rank %d: the wire %r joins all ranks, as --transport says", rank, settings.transport
        )
        return wire(settings.transport, scope, range(size))
    rendezvous = shm.ShmRendezvous(rank, size, secret, scope)
    try:
        check_same_parameters(said("listening", alike(settings)))  # everybody is
        rendezvous.look_around()
        said("looked", "")  # nobody knocks any more
    finally:
        rendezvous.close()
    found = rendezvous.found()
    neighbours = sorted([rank, *found])
    hosts = group([json.loads(text) for text in said("near", json.dumps(neighbours))])
    logger.info("rank %d: %s", rank, reason(hosts, rendezvous.trouble))
    mine = next(host for host in hosts if rank in host)
    if len(mine) == size:
        return shm.join(rank, size, secret, scope, found, patience=patience)
    peers = {mine.index(peer): sock for peer, sock in found.items() if peer in mine}
    for peer, sock in found.items():
        if peer not in mine:
            sock.close()
    flat = wire("tcp", scope, range(size))
    if max(map(len, hosts)) == 1:
        return flat
    index = mine.index(rank)
    within = f"{scope}/host{hosts.index(mine)}"
    local = shm.join(index, len(mine), secret, within, peers, patience=patience, names=mine)
    cross = (
        wire("tcp", f"{scope}/slice{index}", [host[index] for host in hosts])
        if index < slices(hosts)
        else None
    )
    return Hierarchical(flat, local, cross, hosts, settings.tcp_streams)


def alike(settings: Settings) -> str:
    """Settings that all ranks must share, and of which nothing later says that they do not: over
    different wires each would wait where the others never come, and averages after ``join()`` would
    differ.
    """
    return json.dumps(
        {
            "FARANDOLE_TRANSPORT": settings.transport,
            "FARANDOLE_JOIN_MEAN_OF_PRESENT": int(settings.join_mean_of_present),
        }
    )


def check_same_parameters(told: Sequence[str]) -> None:
    """Raise SettingsError, on all ranks, if ``alike`` of each rank is not the same."""
    ranks = [json.loads(text) for text in told]
    for name, value in ranks[0].items():
        other = next((rank for rank, theirs in enumerate(ranks) if theirs[name] != value), 0)
        if other:
            raise SettingsError(
                f"rank 0 was started with {name}={value}, rank {other} with"
                f" {name}={ranks[other][name]}: set the same for all ranks (Open MPI's mpirun hands"
                " a variable to other hosts by -x)"
            )


def check_encryption(connection: Connection, settings: Settings, rank: int) -> None:
    """Raise SettingsError if this rank would have its bytes encrypted and others not, or a wire
    would not do it.
    """
    if settings.tls != encrypted(connection.secret):
        here, job = ("with", "without") if settings.tls else ("without", "with")
        raise SettingsError(
            f"rank {rank} was started {here} --tls (FARANDOLE_TLS={int(settings.tls)}), its job"
            f" {job}: set it for all ranks, or for none"
        )
    if settings.tls and settings.transport not in ("auto", *registry.BUILT_IN["wire"]):
        raise SettingsError(
            f"--tls (FARANDOLE_TLS=1): nobody knows whether the wire {settings.transport!r}, of"
            " --transport, encrypts what it sends; use --transport auto, or leave --tls out"
        )


def reason(hosts: Sequence[Sequence[int]], trouble: Mapping[int, str]) -> str:
    """Which wire joins the ranks, and why. ``hosts``: the ranks that share memory; ``trouble``: why
    this rank did not reach others.
    """
    if len(hosts) == 1:
        return "shared memory joins all ranks: all reached each other's Unix sockets"
    wire = "TCP joins all ranks"
    if max(map(len, hosts)) > 1:
        wire = "shared memory joins the ranks of a host, and TCP the hosts"
    groups = "; ".join(", ".join(map(str, host)) for host in hosts)
    why = "".join(
        f"; rank {rank} was not reached ({text})" for rank, text in list(trouble.items())[:3]
    )
    return f"{wire}: ranks that share memory are {groups}{why}"


def group(neighbours: Sequence[Sequence[int]]) -> list[list[int]]:
    """Ranks by host, from the ranks that each could reach. Pure; the same on all ranks.

    Ranks belong together if each of them reaches the same ranks; one whose view nobody shares
    stands alone.
    """
    hosts: dict[tuple[int, ...], list[int]] = {}
    for rank, seen in enumerate(neighbours):
        alike = all(list(neighbours[peer]) == list(seen) for peer in seen)
        hosts.setdefault(tuple(seen) if alike else (rank,), []).append(rank)
    return sorted(hosts.values())


def share(client: Store, placement: Placement, topic: str, mine: str, timeout: float) -> list[str]:
    """Every rank's message about ``topic``, in rank order. Raises RendezvousError naming the ranks
    that say nothing within ``timeout`` seconds, or have ended before.
    """
    client.set(f"share/{topic}/{placement.rank}", mine.encode())
    deadline, looked = monotonic() + timeout, False
    while True:
        finished = set(json.loads(client.try_get(keys.FINISHED) or b"[]")) if looked else set()
        said = client.gather(
            f"share/{topic}", placement.size, max(0.0, min(_LOOK, deadline - monotonic()))
        )
        missing = [rank for rank, text in enumerate(said) if text is None]
        if not missing:
            return [text.decode() for text in said if text is not None]
        # they said all they would before they ended
        if gone := [rank for rank in missing if rank in finished]:
            raise RendezvousError.finished(gone)
        if monotonic() >= deadline:
            raise RendezvousError.late(missing, timeout)
        looked = True
