"""A relay without the job's secret, between ranks and between a rank and the store: every attack
ends in a named error, never in wrong numbers or a hang.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from farandole.core.transports import tcp
from farandole.errors import HorovodInternalError, PeerLostError, WireError
from farandole.net.handshake import Session, new_secret
from farandole.net.store import StoreClient, StoreServer
from tests import pool
from tests.core.transports import relay
from tests.core.transports.double_store import ThreadStore
from tests.core.transports.relay import Attack, Relay
from tests.kits.messages import mentioning
from tests.kits.transport import until, wait_forever

DATA, BOARD, MORE = 0, 1, 2  # in the order in which a rank dials
ALTERED = [relay.flip, relay.flip_head, relay.inject, relay.append, relay.replay, relay.reflect]


def between(attack: Attack, connection: int, work: Any, secret: str = "") -> list[str]:
    """Return the errors of two ranks connected through a relay; with two data connections if the
    second is attacked.
    """
    streams = 1 + (connection == MORE)
    store, secret, relays = ThreadStore(), secret or new_secret(), []
    connected = threading.Barrier(2)

    def join(rank: int) -> Any:
        if rank == 1:
            until(lambda: store.try_get("tcp/w/0") is not None, "rank 0's address")
            place, mark, number = (store.try_get("tcp/w/0") or b"").decode().partition(";")
            host, port = place.split("|")
            relays.append(Relay((host, int(port)), attack))
            store.set("tcp/w/0", f"127.0.0.1|{relays[0].address[1]}{mark}{number}".encode())
        return tcp.connect(rank, 2, secret, "w", store, 60.0, streams=streams)

    def body(link: Any) -> str:
        connected.wait(60)
        relays[0].arm(connection)
        try:
            work(link)
        except HorovodInternalError as error:
            return type(error).__name__
        finally:
            link.close()
        return "nothing"

    try:
        return pool.threads(2, join, body)
    finally:
        for each in relays:
            each.close()


def exchange(link: Any) -> None:
    """Send several messages at the same time, in both directions."""
    other = 1 - link.rank
    data, got = np.full(200_000, 7, np.uint8), np.zeros(200_000, np.uint8)
    for _ in range(3):
        link.sendrecv(data, other, None, other)
    for _ in range(3):
        link.sendrecv(None, other, got, other)
        assert (got == 7).all()
    wait_forever(link.board)


def agree(link: Any) -> None:
    for turn in range(3):
        link.board.post(b"%d" % turn)
        while (said := link.board.collect()) is None:
            link.board.wait(1.0, spin=False)
        assert said == [b"%d" % turn] * 2


@pytest.mark.parametrize(
    ("attack", "connection"),
    [
        *((attack, DATA) for attack in (*ALTERED[1:], relay.leave_out)),
        (relay.inject, MORE),
        (relay.leave_out, MORE),
    ],
)
def test_tampered_data_are_a_wireerror(attack: Attack, connection: int) -> None:
    """The content of data is not authenticated, so flipped bits within a message are not included:
    docs/run.md.
    """
    raised = between(attack, connection, exchange)
    assert "WireError" in raised
    assert set(raised) <= {"WireError", "PeerLostError"}


@pytest.mark.parametrize("attack", ALTERED, ids=lambda attack: attack.__name__)
def test_tampered_notices_are_a_wireerror(attack: Attack) -> None:
    raised = between(attack, BOARD, agree)
    assert "WireError" in raised
    assert set(raised) <= {"WireError", "PeerLostError"}


@pytest.mark.parametrize(
    ("connection", "work"), [(DATA, exchange), (MORE, exchange), (BOARD, agree)]
)
def test_a_connection_that_is_cut(connection: int, work: Any) -> None:
    assert between(relay.truncate, connection, work) == ["PeerLostError", "PeerLostError"]


@pytest.fixture
def server() -> Iterator[StoreServer]:
    server = StoreServer(new_secret())
    yield server
    server.close()


@pytest.mark.parametrize("attack", [*ALTERED, relay.truncate], ids=lambda attack: attack.__name__)
def test_the_store_ignores_messages_of_strangers(attack: Attack, server: StoreServer) -> None:
    host, _, port = server.address.rpartition(":")
    middle = Relay((host, int(port)), attack)
    client = StoreClient(f"127.0.0.1:{middle.address[1]}", server._secret, timeout=60.0)
    server.set("function", b"print()")
    try:
        assert client.get("function", 5.0) == b"print()"
        middle.arm(0)
        with pytest.raises((WireError, PeerLostError)):
            use(client)
        assert server.get("result/0") in (None, b"true")
    finally:
        client.close()
        middle.close()


@pytest.mark.parametrize("tls", [False, True])
def test_a_tampered_message_to_the_store_is_reported(tls: bool) -> None:
    """The error must not be that the driver has ended."""

    def there(middle: Relay, connection: int, end: str, data: bytes) -> None:
        (relay.flip if end == "server" else Relay.send)(middle, connection, end, data)

    server = StoreServer(new_secret(tls))
    host, _, port = server.address.rpartition(":")
    middle = Relay((host, int(port)), there)
    client = StoreClient(f"127.0.0.1:{middle.address[1]}", server._secret, timeout=60.0)
    try:
        middle.arm(0)
        with pytest.raises(WireError, match=mentioning("bytes", "not send")):
            client.get("function", 5.0)
    finally:
        client.close()
        middle.close()
        server.close()


def use(client: StoreClient) -> None:
    for _ in range(3):
        assert client.get("function", 5.0) == b"print()"
        client.set("result/0", b"true")


def test_reordered_or_missing_frames_are_reported() -> None:
    one, other = socket.socketpair()
    with one, other:
        front, back = socket.socketpair()
        with front, back:
            sender = Session(front, b"a" * 32, b"b" * 32)
            for text in (b"first", b"second", b"third"):
                sender.send(text)
            frames = [
                back.recv(24 + len(text) + 16, socket.MSG_WAITALL)
                for text in (b"first", b"second", b"third")
            ]
        receiver = Session(other, b"b" * 32, b"a" * 32)
        one.sendall(frames[0] + frames[2] + frames[1])
        assert receiver.receive(100) == b"first"
        with pytest.raises(WireError, match=mentioning("changed", "repeated")):
            receiver.receive(100)


@pytest.mark.parametrize("length", [0, 1, 4096, 4097, 65536, 65537, 3_000_000])
def test_contents_of_any_length(length: int) -> None:
    one, other = socket.socketpair()
    with one, other:
        content = np.random.default_rng(length).bytes(length)
        sender, receiver = Session(one, b"a" * 32, b"b" * 32), Session(other, b"b" * 32, b"a" * 32)
        thread = threading.Thread(target=sender.send, args=(memoryview(content),))
        thread.start()
        assert receiver.receive(length) == content
        thread.join(60)
