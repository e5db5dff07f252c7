from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farandole.errors import AuthenticationError, UnfinishedHandshakeError, WireError
from farandole.net.handshake import (
    Session,
    TamperedError,
    authenticate,
    certificate,
    encrypted,
    new_secret,
    tls,
)
from tests.kits.messages import mentioning, mentions
from tests.net.handshake.test_proof import Pair, Server

SECRET = new_secret(tls=True)
CLEAR = SECRET.removeprefix("tls:")
KEY = bytes.fromhex(CLEAR)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    with one, other:
        yield one, other


def met(pair: Pair) -> tuple[Session, Session]:
    server = Server(pair[0], SECRET)
    session = authenticate(pair[1], SECRET, "test", server=False)
    assert server.result() is None
    assert server.session is not None
    return server.session, session


def test_the_secret_decides_whether_connections_are_encrypted() -> None:
    assert [encrypted(SECRET), encrypted(CLEAR), encrypted(new_secret())] == [True, False, False]


@pytest.mark.parametrize("length", [0, 1, 40, 1 << 14, (1 << 14) + 1, tls.PIECE, 3_000_000])
def test_messages_of_any_length(pair: Pair, length: int) -> None:
    content = np.random.default_rng(length).bytes(length)
    for sender, receiver in (ends := met(pair), ends[::-1]):
        thread = threading.Thread(target=sender.send, args=(memoryview(content),))
        thread.start()
        assert receiver.receive(length) == content
        thread.join(60)


def test_a_socket_that_does_not_block(pair: Pair) -> None:
    """Several records arrive together; a reader of fewer reads the rest without a new event of
    epoll.
    """
    server, client = met(pair)
    for session in (server, client):
        session.sock.setblocking(False)
    with pytest.raises(BlockingIOError):
        server.stream.recv(100)
    parts = [b"a" * 30, b"b" * 100_000, b"c" * 10]
    assert client.stream.sendmsg(parts) == 100_040
    assert select.select([server.sock], [], [], 10)[0]
    room = [bytearray(20), bytearray(100_000)]
    got = server.stream.recvmsg_into(room)[0]
    while got < 100_020:
        assert select.select([server.sock], [], [], 10)[0]
        rest = memoryview(room[1])[got - 20 :]
        got += server.stream.recv_into(rest)
    assert b"".join(room) == b"".join(parts)[:100_020]
    assert server.stream.recv(1000) == b"b" * 10 + b"c" * 10
    with pytest.raises(BlockingIOError):
        server.stream.recv(100)
    client.sock.close()
    assert select.select([server.sock], [], [], 10)[0]
    assert server.stream.recv(100) == b""


def test_a_full_network_takes_the_same_bytes_later(pair: Pair) -> None:
    server, client = met(pair)
    client.sock.setblocking(False)
    content, sent = os.urandom(30_000_000), 0
    view = memoryview(content)
    with contextlib.suppress(BlockingIOError):
        while sent < len(content):
            sent += client.stream.send(view[sent:])
    assert 0 < sent < len(content)
    got = bytearray()
    while len(got) < len(content):
        piece = server.stream.recv(1 << 20)
        assert piece
        got += piece
        with contextlib.suppress(BlockingIOError):
            while sent < len(content):
                sent += client.stream.send(view[sent:])
    assert got == content


def test_bytes_that_the_other_end_did_not_send(pair: Pair) -> None:
    server, client = met(pair)
    client.send(b"good")
    client.sock.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
    assert server.receive(10) == b"good"
    for _ in range(2):
        with pytest.raises(WireError, match=mentioning("changed", "repeated")):
            server.receive(10)
    with pytest.raises(TamperedError):
        server.stream.recv(10)


def test_another_job(pair: Pair) -> None:
    server = Server(pair[0], SECRET)
    with pytest.raises(AuthenticationError, match=mentioning("certificate")):
        authenticate(pair[1], new_secret(tls=True), "test", server=False)
    assert mentions(str(server.result()), "certificate")
    assert not isinstance(server.result(), UnfinishedHandshakeError)


@pytest.mark.parametrize(("here", "there"), [(SECRET, CLEAR), (CLEAR, SECRET)])
def test_a_peer_without_tls_is_reported_on_both_sides(pair: Pair, here: str, there: str) -> None:
    server = Server(pair[0], here)
    with pytest.raises(AuthenticationError, match="TLS") as caught:
        authenticate(pair[1], there, "test", server=False)
    for error in (caught.value, server.result()):
        assert mentions(str(error), "--tls", "FARANDOLE_TLS=1")
        assert not isinstance(error, UnfinishedHandshakeError), "it would be tried again"


def stranger(change: Callable[[ssl.SSLContext], None]) -> ssl.SSLContext:
    """A client that accepts any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    change(context)
    return context


def with_another_certificate(context: ssl.SSLContext) -> None:
    with os.fdopen(os.memfd_create("test"), "w") as file:
        file.write("".join(certificate.make(os.urandom(32))))
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")


def with_none(_: ssl.SSLContext) -> None:
    pass


def of_an_older_version(context: ssl.SSLContext) -> None:
    context.maximum_version = ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("change", [with_another_certificate, with_none, of_an_older_version])
def test_a_stranger_who_speaks_tls(pair: Pair, change: Callable[[ssl.SSLContext], None]) -> None:
    server = Server(pair[0], SECRET)
    pair[1].settimeout(10)
    with contextlib.suppress(OSError), stranger(change).wrap_socket(pair[1]) as sock:
        assert sock.recv(1) == b"", "the server went on"
    assert mentions(str(server.result()), "certificate")


def test_a_server_with_another_certificate(pair: Pair) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with_another_certificate(context)

    def serve() -> None:
        with contextlib.suppress(OSError):
            context.wrap_socket(pair[0], server_side=True)

    thread = threading.Thread(target=serve)
    thread.start()
    with pytest.raises(AuthenticationError, match=mentioning("certificate")):
        authenticate(pair[1], SECRET, "test", server=False)
    thread.join(60)


def test_a_stranger_in_clear(pair: Pair) -> None:
    server = Server(pair[0], SECRET)
    pair[1].sendall(b"GET / HTTP/1.1\r\n")
    assert "does not use TLS" in str(server.result())


def test_a_client_that_stops_in_mid_handshake_times_out(pair: Pair) -> None:
    server = Server(pair[0], SECRET, seconds=0.2)
    pair[1].sendall(b"\x16\x03\x01\x01\x00half a greeting")
    assert isinstance(server.result(), UnfinishedHandshakeError)
    assert "time" in str(server.result())


def test_unix_sockets_are_not_encrypted() -> None:
    one, other = socket.socketpair()
    with one, other:
        server, client = met((one, other))
        assert client.stream is other
        assert server.stream is one


def test_the_certificate_is_the_same_everywhere_and_true(tmp_path: Path) -> None:
    made: tuple[Any, ...] = certificate.make(KEY)
    assert made == certificate.make(KEY)
    assert made[0] != certificate.make(os.urandom(32))[0]
    file = tmp_path / "certificate"
    file.write_text(made[0])
    command = [
        "openssl",
        "verify",
        "-x509_strict",
        "-check_ss_sig",
        "-CAfile",
        str(file),
        str(file),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("the command openssl is not installed")
    assert done.stdout == f"{file}: OK\n", done.stderr
