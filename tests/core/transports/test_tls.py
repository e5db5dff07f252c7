"""The TCP wire and the store over TLS."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from farandole.core.collectives import over
from farandole.core.transports import tcp
from farandole.errors import AuthenticationError
from farandole.net.handshake import new_secret
from farandole.net.store import StoreClient, StoreServer
from tests import pool
from tests.core.transports import relay
from tests.core.transports.double_store import ThreadStore
from tests.core.transports.relay import Attack, Relay
from tests.core.transports.test_relay import BOARD, DATA, agree, between, exchange
from tests.kits.link import LinkKit
from tests.kits.messages import mentioning
from tests.kits.transport import BoardKit, FailureKit, ReduceKit, fresh_scope, rounds, until

SECRET = new_secret(tls=True)
PATTERN = b"weights!"


@pytest.mark.slow  # what is quick to run shows it over plain TCP
class TestTls(ReduceKit, BoardKit, FailureKit):
    def joiner(self, size: int) -> Callable[[int], Any]:
        scope, store = fresh_scope(), ThreadStore()
        return lambda rank: over(tcp.connect(rank, size, SECRET, scope, store, 60.0))


@pytest.mark.slow
class TestTlsLink(LinkKit):
    """Two connections; the collectives above use one."""

    def joiner(self, size: int) -> Callable[[int], Any]:
        scope, store = fresh_scope(), ThreadStore()
        return lambda rank: tcp.connect(rank, size, SECRET, scope, store, 60.0, streams=2)


@pytest.mark.parametrize(
    "attack", [relay.flip, relay.inject, relay.replay, relay.reflect, relay.leave_out]
)
@pytest.mark.parametrize(("connection", "work"), [(DATA, exchange), (BOARD, agree)])
def test_forged_bytes_are_detected_inside_a_tensor(
    attack: Attack, connection: int, work: Any
) -> None:
    raised = between(attack, connection, work, SECRET)
    assert "WireError" in raised
    assert set(raised) <= {"WireError", "PeerLostError"}


def test_a_connection_that_is_cut() -> None:
    assert between(relay.truncate, DATA, exchange, SECRET) == ["PeerLostError", "PeerLostError"]


class Ear(Relay):
    """A proxy that records all bytes."""

    def __init__(self, behind: tuple[str, int]) -> None:
        self.heard = bytearray()
        self._hearing = threading.Lock()
        super().__init__(behind, Relay.send)

    def send(self, connection: int, end: str, data: bytes) -> None:
        with self._hearing:
            self.heard += data
        super().send(connection, end, data)


@pytest.mark.parametrize("tls", [True, False])
def test_tls_hides_traffic_from_an_eavesdropper(tls: bool) -> None:
    """Between two ranks, and between them and the store."""
    secret = new_secret(tls=tls)
    server = StoreServer(secret)
    ears = [Ear(_parts(server.address))]
    clients = [
        StoreClient(f"127.0.0.1:{ears[0].address[1]}", secret, timeout=60.0) for _ in range(2)
    ]

    def join(rank: int) -> Any:
        if rank == 1:
            ears.append(Ear(_parts(clients[1].get("tcp/w/0", 10.0).decode().replace("|", ":"))))
            clients[1].set("tcp/w/0", f"127.0.0.1|{ears[1].address[1]}".encode())
        return tcp.connect(rank, 2, secret, "w", clients[rank], 60.0)

    def body(link: Any) -> None:
        for length in (len(PATTERN), 4096, 3_000_000):
            data, got = (
                np.resize(np.frombuffer(PATTERN, np.uint8), length),
                np.zeros(length, np.uint8),
            )
            link.sendrecv(data, 1 - link.rank, got, 1 - link.rank)
            assert np.array_equal(data, got)
        rounds(over(link), [b"a notice"])
        clients[link.rank].set(f"secret/{link.rank}", secret.encode())

    try:
        pool.threads(2, join, body)
    finally:
        for each in (*clients, server, *ears):
            each.close()
    heard = [bytes(ear.heard) for ear in ears]
    assert len(heard[1]) > 6_000_000
    found = [
        PATTERN in heard[1],
        b"a notice" in heard[1],
        b"tcp/w/0" in heard[0],
        secret.encode() in heard[0],
    ]
    assert found == [not tls] * 4


def _parts(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


@pytest.mark.parametrize("tls", [True, False])
def test_a_client_of_a_different_store_fails_immediately(tls: bool) -> None:
    secret = new_secret(tls=tls)
    other = secret.removeprefix("tls:") if tls else f"tls:{secret}"
    server = StoreServer(secret)
    try:
        with pytest.raises(
            AuthenticationError, match=mentioning("TLS", "--tls", "FARANDOLE_TLS=1")
        ):
            StoreClient(server.address, other, timeout=30.0)
        until(lambda: server.newcomers.refused == 1, "the refusal")
    finally:
        server.close()


def test_silence_at_the_door_does_not_keep_a_rank_out() -> None:
    server = StoreServer(SECRET)
    silent = [socket.create_connection(_parts(server.address)) for _ in range(20)]
    try:
        client = StoreClient(server.address, SECRET, timeout=60.0)
        client.set("key", b"value")
        assert client.get("key", 5.0) == b"value"
        client.close()
    finally:
        server.close()
        for sock in silent:
            sock.close()
