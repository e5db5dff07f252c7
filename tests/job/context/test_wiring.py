"""Ranks find the ranks of their host, and connect over the available wires."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farandole.base.types import Buffer, DType, ReduceOp
from farandole.core.collectives.hierarchical import Hierarchical
from farandole.core.transports import shm
from farandole.core.transports.shm.rendezvous import address
from farandole.errors import PeerLostError, RendezvousError, SettingsError
from farandole.job.config import Connection, Placement, Settings
from farandole.job.context import wiring
from farandole.job.report import keys
from farandole.net.handshake import new_secret
from farandole.net.store import StoreClient, StoreServer
from tests.kits.messages import mentioning, mentions
from tests.pool import threads


@pytest.mark.parametrize(
    ("seen", "hosts"),
    [
        ([[0]], [[0]]),
        ([[0, 1], [0, 1]], [[0, 1]]),
        ([[0, 2], [1, 3], [0, 2], [1, 3]], [[0, 2], [1, 3]]),
        ([[0, 1], [0, 1], [2]], [[0, 1], [2]]),
        # not everybody of a chain reaches everybody
        ([[0, 1], [0, 1, 2], [1, 2]], [[0], [1], [2]]),
    ],
)
def test_hosts_are_ranks_that_reach_each_other(
    seen: list[list[int]], hosts: list[list[int]]
) -> None:
    assert wiring.group(seen) == hosts


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        ([[0, 1]], "shared memory connects all ranks"),
        (
            [[0], [1]],
            (
                "TCP connects all ranks: ranks that share memory are 0; 1; rank 0 was not reached"
                " (refused)"
            ),
        ),
        (
            [[0, 1], [2, 3]],
            "shared memory connects the ranks of a host, and TCP connects the hosts",
        ),
        (
            [[0, 1], [2]],
            (
                "shared memory connects the ranks of a host, and TCP connects the hosts: ranks that share"
                " memory are"
            ),
        ),
    ],
)
def test_the_choice_of_a_wire_is_explained(hosts: list[list[int]], said: str) -> None:
    assert wiring.reason(hosts, {0: "refused"}).startswith(said)


def added(wire: Any) -> tuple[str, float]:
    """Return the wire, and the sum of all ranks' numbers over it."""
    array = np.full(100_000, wire.rank + 1, np.float32)
    wire.allreduce([Buffer(array, array, DType.FLOAT32)], ReduceOp.SUM)
    wire.barrier()
    return type(wire).__name__, float(array.max())


def run(
    size: int,
    monkeypatch: pytest.MonkeyPatch,
    host_of: dict[int, int] | None = None,
    body: Callable[[Any], Any] = added,
    **settings: object,
) -> list:
    """Return the result of ``body`` for every rank's wire. ``host_of``: pretend that there are
    several hosts.
    """
    secret = new_secret()
    server = StoreServer(secret)
    if host_of:
        dial = shm.ShmRendezvous._dial

        def far(self: shm.ShmRendezvous, peer: int, deadline: float, timeout: float) -> None:
            if host_of[self.rank] != host_of[peer]:
                raise RendezvousError.late([peer], timeout)
            dial(self, peer, deadline, timeout)

        monkeypatch.setattr(shm.ShmRendezvous, "_dial", far)

    def join(rank: int) -> object:
        client = StoreClient(server.address, secret)
        mine, connection = (
            Placement(rank=rank, size=size),
            Connection(store=server.address, secret=secret),
        )
        try:
            return wiring.connect(mine, connection, Settings(**settings), client, "test")  # type: ignore[arg-type]
        finally:
            client.close()

    try:
        return threads(size, join, body)
    finally:
        server.close()


def test_sessions_of_a_rank_are_counted_over_its_programs() -> None:
    """Except a session of a rank that is alone by its settings."""
    secret = new_secret()
    server = StoreServer(secret)
    first, then = (StoreClient(server.address, secret) for _ in range(2))
    mine, other, alone = (
        Placement(rank=0, size=2),
        Placement(rank=1, size=2),
        Placement(rank=0, size=1),
    )
    try:
        assert [wiring.next_session(mine, first, (0, before)) for before in (0, 1)] == [
            (0, 1),
            (0, 2),
        ]
        assert [wiring.next_session(mine, then, (0, before)) for before in (0, 3)] == [
            (0, 3),
            (0, 4),
        ]
        assert wiring.next_session(mine, first, (0, 2)) == (0, 5)
        assert (
            wiring.next_session(other, then, (0, 0))
            == wiring.next_session(alone, then, (0, 0))
            == (0, 1)
        )
        assert wiring.next_session(mine.replace(generation=1), first, (0, 2)) == (1, 1)
        assert wiring.next_session(mine, None, (0, 1)) == (0, 2)
    finally:
        first.close()
        then.close()
        server.close()


def test_one_host_shares_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "farandole"):
        assert run(3, monkeypatch) == [("ShmTransport", 6.0)] * 3
    assert mentions(caplog.text, "shared memory")


def test_hosts_call_ranks_by_their_numbers_in_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks of a host share memory, and one rank of each host has a separate wire; ranks 2 and
    3 are second there.
    """
    gone = threading.Event()

    def body(wire: Any) -> list[tuple[int, str]]:
        if wire.rank == 3:
            wire.local.close()
            wire.cross.close()
            gone.set()
            return []
        assert gone.wait(60)
        found = []
        for part in {1: [wire.cross], 2: [wire.local]}.get(wire.rank, []):
            with pytest.raises(PeerLostError) as caught:
                part.barrier()
            found.append((caught.value.rank, str(caught.value)))
        return found

    none, one, two, last = run(4, monkeypatch, {0: 0, 1: 0, 2: 1, 3: 1}, body)
    assert none == last == []
    assert [(rank, text[:6]) for rank, text in (*one, *two)] == [(3, "rank 3")] * 2


def test_strangers_do_not_push_a_job_from_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """More strangers than a socket admits, at each rank's socket, before and while the ranks
    connect.
    """
    taken: list[socket.socket] = []
    dial_lower_ranks = shm.ShmRendezvous.dial_lower_ranks

    def besieged(self: shm.ShmRendezvous) -> None:
        for _ in range(100):
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(address(self.secret, self.scope, 0))
            taken.append(sock)
        dial_lower_ranks(self)

    monkeypatch.setattr(shm.ShmRendezvous, "dial_lower_ranks", besieged)
    try:
        assert run(3, monkeypatch) == [("ShmTransport", 6.0)] * 3
    finally:
        for sock in taken:
            sock.close()


@pytest.mark.parametrize(
    ("mine", "other", "says"),
    [
        (
            {"transport": "tcp"},
            {},
            "FARANDOLE_TRANSPORT=tcp, but rank 1 with FARANDOLE_TRANSPORT=auto",
        ),
        (
            {"transport": "tcp"},
            {"transport": "shm"},
            "FARANDOLE_TRANSPORT=tcp, but rank 1 with FARANDOLE_TRANSPORT=shm",
        ),
        (
            {},
            {"join_mean_of_present": True},
            ("FARANDOLE_JOIN_MEAN_OF_PRESENT=0", "rank 1", "FARANDOLE_JOIN_MEAN_OF_PRESENT=1"),
        ),
    ],
)
def test_ranks_whose_settings_do_not_go_together_say_so(
    monkeypatch: pytest.MonkeyPatch, mine: dict[str, object], other: dict[str, object], says: str
) -> None:
    """As by mpirun, whose hosts may have different variables. Ranks would wait for each other, or
    average differently.
    """
    connect = wiring.connect

    def connect_to(
        placement: Placement, connection: Connection, settings: Settings, *more: object
    ) -> object:
        theirs = settings.replace(**(other if placement.rank else mine))
        return connect(placement, connection, theirs, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(wiring, "connect", connect_to)
    with pytest.raises(SettingsError, match=mentioning("rank 0", says)):
        run(2, monkeypatch)


def test_tcp_where_shared_memory_is_forbidden(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def forbidden(*_: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", forbidden)
    assert run(2, monkeypatch) == [("LinkTransport", 3.0)] * 2
    assert mentions(caplog.text, "rank 0", "memfd_create", "--transport")


def test_tcp_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(2, monkeypatch, transport="tcp") == [("LinkTransport", 3.0)] * 2


@pytest.mark.parametrize(
    ("settings", "tls", "said"),
    [
        (
            Settings(tls=True),
            False,
            ("rank 3", "--tls", "FARANDOLE_TLS=1"),
        ),
        (Settings(), True, ("rank 3", "--tls", "FARANDOLE_TLS=0")),
        (Settings(tls=True), True, ("'far'", "--transport", "--tls")),
    ],
)
def test_settings_that_contradict_encryption_are_refused(
    settings: Settings, tls: bool, said: tuple[str, ...]
) -> None:
    wiring.check_encryption(Connection(secret=new_secret(tls=tls)), Settings(tls=tls), 3)
    if "'far'" in said:
        object.__setattr__(settings, "transport", "far")
    with pytest.raises(SettingsError, match=mentioning(said)):
        wiring.check_encryption(Connection(secret=new_secret(tls=tls)), settings, 3)


def test_the_wire_of_another_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file, and a line among its entry points."""
    info = tmp_path / "other-1.0.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text("[farandole.wires]\nthreads = other_wire:wire\n")
    (tmp_path / "other_wire.py").write_text(
        "from farandole.core.transports.inproc import World\n"
        "worlds = {}\n"
        "def wire(end):\n"
        "    return worlds.setdefault(end.scope, World(end.size)).link(end.rank)\n"
    )
    with pytest.raises(SettingsError, match=mentioning("--transport", "'threads'")):
        Settings(transport="threads")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run(3, monkeypatch, transport="threads") == [("LinkTransport", 6.0)] * 3
    with pytest.raises(SettingsError, match=mentioning("'threads'")):
        Settings(transport="thread")


def test_two_hosts_of_two_get_a_hierarchy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(4, monkeypatch, {0: 0, 1: 0, 2: 1, 3: 1}) == [(Hierarchical.__name__, 10.0)] * 4


def test_round_robin_ranks_get_a_hierarchy_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(4, monkeypatch, {0: 0, 1: 1, 2: 0, 3: 1}) == [(Hierarchical.__name__, 10.0)] * 4


@pytest.mark.parametrize("host_of", [{0: 0, 1: 0, 2: 1}, {0: 0, 1: 1, 2: 1, 3: 0, 4: 1}])
def test_uneven_hosts_get_a_hierarchy_too(
    host_of: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(host_of)
    assert (
        run(size, monkeypatch, host_of) == [(Hierarchical.__name__, size * (size + 1) / 2)] * size
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_a_member_is_lost_while_the_ranks_connect(rank: int) -> None:
    secret = new_secret()
    server = StoreServer(secret)
    client = StoreClient(server.address, secret)
    place = Placement(rank=rank, size=2, generation=3)
    connection = Connection(store=server.address, secret=secret)
    try:
        server.set(keys.broken(3), b"")
        made = wiring._Wiring(place, connection, Settings(start_timeout=5.0), client, "test", 5.0)
        with pytest.raises(PeerLostError, match=mentioning("membership 3")):
            made.wire("tcp", "test", range(2))
    finally:
        client.close()
        server.close()


def test_the_rendezvous_names_missing_ranks() -> None:
    secret = new_secret()
    server = StoreServer(secret)
    client = StoreClient(server.address, secret)
    try:
        with pytest.raises(RendezvousError, match=mentioning("ranks 0, 2, 3", "init()", "0.2")):
            wiring.share(client, Placement(rank=1, size=4), "anything", "", 0.2)
        server.set("share/more/0", b"")
        server.set(keys.FINISHED, b"[0, 3]")  # the driver has seen their ends
        with pytest.raises(RendezvousError, match=mentioning("rank 3", "init()")):
            wiring.share(client, Placement(rank=1, size=4), "more", "", 60.0)
    finally:
        client.close()
        server.close()
