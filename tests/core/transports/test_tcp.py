from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farandole.core.collectives import over
from farandole.core.transports import tcp
from farandole.core.transports.tcp import rendezvous
from farandole.errors import PeerLostError, RendezvousError, SettingsError, WireError
from farandole.net import liveness
from farandole.net.handshake import MAC, NONCE, authenticate, new_secret
from tests import pool
from tests.core.transports.double_store import ThreadStore
from tests.kits.link import LinkKit
from tests.kits.messages import mentioning
from tests.kits.process import ProcessKit
from tests.kits.transport import TransportKit, check_sum, fresh_scope, rounds, until, wait_forever


class TestTcp(TransportKit):
    def joiner(self, size: int) -> Callable[[int], Any]:
        secret, scope, store = new_secret(), fresh_scope(), ThreadStore()
        return lambda rank: over(tcp.connect(rank, size, secret, scope, store, 60.0))

    def test_a_rank_that_leaves_a_lost_wire_is_not_the_cause(self) -> None:
        """Rank 2 notices the loss of rank 1, and leaves before rank 0 notices it."""

        def fn(transport: Any) -> str:
            if transport.rank == 2:
                transport.barrier()
                transport.board._lose(PeerLostError("rank 1 was lost", 1))
                transport.close()
                return "left"
            with pytest.raises(PeerLostError) as caught:
                meet_twice(transport)
            return str(caught.value)

        def meet_twice(transport: Any) -> None:
            transport.barrier()  # rank 2 may be through with it, and gone, before we are
            transport.barrier()

        assert self.run(3, fn) == ["rank 1 was lost", "rank 1 was lost", "left"]

    def test_a_rank_that_aborts_passes_an_earlier_abort_on(self) -> None:
        """Rank 1's abort reaches only rank 0, which then aborts, too."""
        passed_on = threading.Event()
        have_met = threading.Barrier(
            3
        )  # no rank aborts while another is still in the first barrier

        def fn(transport: Any) -> str:
            transport.barrier()
            have_met.wait(20)
            if transport.rank == 1:
                peers = transport.board._peers
                slow = peers.pop(2)
                transport.abort("rank 1 ran out of patience")
                assert passed_on.wait(20)
                peers[2] = slow
                return ""
            if transport.rank == 0:
                with pytest.raises(PeerLostError):
                    transport.barrier()
                transport.abort("rank 0 lost rank 1")
                passed_on.wait(20)
                return ""
            with pytest.raises(PeerLostError) as caught:
                wait_forever(transport.board)
            passed_on.set()
            return str(caught.value)

        assert self.run(3, fn)[2] == "rank 1 ran out of patience"


class TestTcpLink(LinkKit):
    def joiner(self, size: int) -> Callable[[int], Any]:
        secret, scope, store = new_secret(), fresh_scope(), ThreadStore()
        return lambda rank: tcp.connect(rank, size, secret, scope, store, 60.0)


class TestSeveralConnections(LinkKit):
    """Between any two ranks."""

    def joiner(self, size: int) -> Callable[[int], Any]:
        secret, scope, store = new_secret(), fresh_scope(), ThreadStore()
        return lambda rank: tcp.connect(rank, size, secret, scope, store, 60.0, streams=3)


def test_unequal_numbers_of_connections_are_reported() -> None:
    store = ThreadStore()
    store.set("tcp/w/0", b"127.0.0.1|1;4")
    with pytest.raises(
        SettingsError,
        match=mentioning("rank 1", "--tcp-streams 1", "rank 0", "4"),
    ):
        tcp.connect(1, 2, new_secret(), "w", store, 60.0)


class TestTcpProcesses(ProcessKit):
    wire = "tcp"


def test_missing_ranks_are_named() -> None:
    store = ThreadStore()

    def connect(rank: int) -> Any:
        return tcp.connect(rank, 4, "ab" * 32, "w", store, 2.0)

    def body(link: Any) -> None:
        raise AssertionError("connected to ranks that are not there")

    with pytest.raises(RendezvousError, match=mentioning("ranks 1, 3", "2 s")):
        pool.threads(4, lambda rank: connect(rank) if rank in (0, 2) else _nobody(), body)


def _nobody() -> Any:
    raise PeerLostError("not a cause")


def test_a_wrong_secret_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    store, secrets = ThreadStore(), [new_secret(), new_secret()]
    with caplog.at_level(logging.WARNING, "farandole"), pytest.raises(RendezvousError) as caught:
        pool.threads(
            2, lambda rank: tcp.connect(rank, 2, secrets[rank], "w", store, 2.0), lambda link: None
        )
    assert re.match(
        r"rank [01] and rank [01] \(127\.0\.0\.1\) did not connect within 2 s ", str(caught.value)
    )
    (refusal,) = [record.message for record in caplog.records if "was refused" in record.message]
    assert "client at 127.0.0.1:" in refusal


def test_an_old_address_in_the_store_is_looked_up_again() -> None:
    store, secret = ThreadStore(), new_secret()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    store.set("tcp/w/0", f"127.0.0.1|{port}".encode())  # no socket listens there any more
    started = threading.Event()

    def join(rank: int) -> Any:
        if rank == 0:
            assert started.wait(60)
        started.set()
        return tcp.connect(rank, 2, secret, "w", store, 60.0)

    pool.threads(2, lambda rank: over(join(rank)), check_sum)


def test_an_unreachable_rank_is_reported_before_the_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel drops packets to a full listener, as a cut network does."""
    monkeypatch.setattr(liveness, "LOST_SECONDS", 0.5)
    store = ThreadStore()
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(full.getsockname())
        store.set("tcp/w/0", f"127.0.0.1|{full.getsockname()[1]}".encode())
        with pytest.raises(
            RendezvousError,
            match=mentioning("rank 1", "rank 0", "127.0.0.1"),
        ):
            tcp.connect(1, 2, new_secret(), "w", store, 600.0)


def test_a_rank_that_cannot_accept_connections_reports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot start threads; earlier, a firewall was blamed."""
    monkeypatch.setattr(rendezvous, "PATIENCE", 0.1)
    store, secret, start = ThreadStore(), new_secret(), threading.Thread.start

    def full(thread: threading.Thread) -> None:
        if thread.name == "farandole-tcp-greet":
            raise MemoryError
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", full)
    with pytest.raises(RendezvousError, match=mentioning("rank 0", "thread")):
        pool.threads(
            2,
            lambda rank: tcp.connect(rank, 2, secret, "w", store, 3.0 if rank else 600.0),
            lambda link: None,
        )


class OneDead(ThreadStore):
    """Every rank has an additional first address, at which no process listens."""

    def set(self, key: str, value: bytes) -> None:
        super().set(key, b"127.0.0.9/24|1," + value)


def test_the_first_address_that_answers_is_taken(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, secret, host = OneDead(), new_secret(), "127.0.1.1/24,127.0.2.1/24"
    with caplog.at_level(logging.INFO, "farandole"):
        for scope in ("v", "w"):

            def link(rank: int, scope: str = scope) -> Any:
                return over(tcp.connect(rank, 3, secret, scope, store, 60.0, host))

            pool.threads(3, link, check_sum)
    said = [record.message for record in caplog.records if "TCP" in record.message]
    assert said == [
        "rank 0: TCP to the other hosts uses 127.0.1.0/24 (of 127.0.1.1/24, 127.0.2.1/24)"
    ]


def test_it_listens_on_the_given_interface_only_and_not_for_long() -> None:
    store, secret, seen = ThreadStore(), new_secret(), []

    def join(rank: int) -> Any:
        if rank == 1:
            until(lambda: store.try_get("tcp/w/0") is not None, "rank 0's address")
            host, port = (store.try_get("tcp/w/0") or b"").decode().split("|")
            seen.append((host, int(port)))
        return over(tcp.connect(rank, 2, secret, "w", store, 60.0, host="127.0.0.2"))

    def body(transport: Any) -> None:
        check_sum(transport)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(seen[0], timeout=2)

    pool.threads(2, join, body)
    assert seen[0][0] == "127.0.0.2"


class _Besieged:
    """Rank 0 of two waits for rank 1, and strangers know its address."""

    def __init__(self, secret: str = "") -> None:
        self.store, self.secret = ThreadStore(), secret or new_secret()
        self.link: Any = None
        self.thread = threading.Thread(target=self._connect, daemon=True)
        self.thread.start()
        until(lambda: self.store.try_get("tcp/w/0") is not None, "rank 0's address")
        host, port = (self.store.try_get("tcp/w/0") or b"").decode().split("|")
        self.address = (host, int(port))

    def _connect(self) -> None:
        self.link = tcp.connect(0, 2, self.secret, "w", self.store, 60.0)

    def dial(self) -> socket.socket:
        sock = socket.create_connection(self.address, timeout=60.0)
        sock.settimeout(10)
        return sock

    def relieve(self) -> None:
        """Let rank 1 join, and check the result."""
        other = tcp.connect(1, 2, self.secret, "w", self.store, 60.0)
        self.thread.join(60)
        try:
            pool.threads(2, lambda rank: over((self.link, other)[rank]), _work)
        finally:
            for each in filter(None, (self.link, other)):
                each.close()


def _work(transport: Any) -> None:
    check_sum(transport, 100_000)
    rounds(transport, [b"fine"])


@pytest.fixture
def besieged(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Besieged]:
    monkeypatch.setattr(rendezvous, "PATIENCE", 2.0)
    place = _Besieged()
    yield place
    if place.link is None:
        place.relieve()


def _hung_up(sock: socket.socket) -> bool:
    """Return whether the other end has closed, after any message."""
    try:
        while sock.recv(4096):
            pass
    except ConnectionError:
        pass
    return True


def test_strangers_are_refused_and_logged_once(
    besieged: _Besieged, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "farandole"):
        strangers = [besieged.dial() for _ in range(5)]
        strangers[0].sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n" + b"x" * 200)
        strangers[1].sendall(b"\xff" * (NONCE + MAC))
        strangers[2].sendall(os.urandom(100_000))
        strangers[3].close()
        for each in (*strangers[:3], strangers[4]):  # the last one says nothing at all
            assert _hung_up(each)
            each.close()
        # who is refused is hung up on first
        until(lambda: "was refused" in caplog.text, "the word on it")
        besieged.relieve()
    assert sum("was refused" in record.message for record in caplog.records) == 1


def test_a_recorded_handshake_is_worthless(besieged: _Besieged) -> None:
    """A stranger records the traffic at a proxy between the ranks, and replays it."""
    said: list[bytes] = []
    front = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_tap, args=(front, besieged.address, said), daemon=True).start()
    true_address = besieged.store.values["tcp/w/0"]
    besieged.store.set("tcp/w/0", f"127.0.0.1|{front.getsockname()[1]}".encode())
    other = threading.Thread(target=_connect_and_leave, args=(besieged,), daemon=True)
    other.start()
    until(lambda: len(said) >= 3, "the recording")
    besieged.store.set("tcp/w/0", true_address)
    front.close()

    fresh = _Besieged(besieged.secret)
    parrot = fresh.dial()
    for piece in said[:3]:
        parrot.sendall(piece)
    assert _hung_up(parrot)
    parrot.close()
    assert fresh.thread.is_alive(), "the parrot got in"
    fresh.relieve()
    other.join(60)


def _tap(front: socket.socket, back: tuple[str, int], said: list[bytes]) -> None:
    while True:
        try:
            client, _ = front.accept()
        except OSError:
            return
        server = socket.create_connection(back)

        def pipe(source: socket.socket, target: socket.socket, record: bool) -> None:
            try:
                while piece := source.recv(4096):
                    if record:
                        said.append(piece)
                    target.sendall(piece)
            except OSError:
                pass

        threading.Thread(target=pipe, args=(client, server, True), daemon=True).start()
        threading.Thread(target=pipe, args=(server, client, False), daemon=True).start()


def _connect_and_leave(besieged: _Besieged) -> None:
    tcp.connect(1, 2, besieged.secret, "w", besieged.store, 60.0).close()


def test_an_authenticated_peer_with_a_wrong_rank_is_refused(besieged: _Besieged) -> None:
    for rank, channel in ((0, 0), (2, 0), (1, 7), (1 << 31, 1)):
        sock = besieged.dial()
        session = authenticate(sock, besieged.secret, "tcp/w/0", server=False)
        sock.settimeout(10)
        session.send(rendezvous._HELLO.pack(rank, channel))
        assert _hung_up(sock)
        sock.close()
    besieged.relieve()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(pieces=st.lists(st.binary(max_size=200), max_size=4))
def test_garbage_of_any_kind(pieces: list[bytes], fuzzed: _Besieged) -> None:
    sock = fuzzed.dial()
    try:
        for piece in pieces:
            sock.sendall(piece)
        # it may have hung up before we were through, which is fine too
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_WR)
        assert _hung_up(sock)
    except ConnectionError:
        pass
    finally:
        sock.close()
    assert fuzzed.thread.is_alive(), "a stranger got in"


@pytest.fixture
def fuzzed() -> Iterator[_Besieged]:
    place = _Besieged()
    yield place
    place.relieve()


@pytest.mark.parametrize(
    ("kind", "said"),
    [("rubbish", "bytes"), ("unknown", ("message", "b'z'"))],
)
def test_garbage_on_the_board_is_reported_and_is_no_goodbye(
    kind: str, said: str | tuple[str, ...]
) -> None:
    store, secret = ThreadStore(), new_secret()
    ready = threading.Barrier(2)

    def body(link: Any) -> None:
        ready.wait(60)
        if link.rank == 0 and kind == "rubbish":
            link.board._peers[1].sock.sendall(os.urandom(200))
        elif link.rank == 0:
            link.board._send_to_all(b"z", b"?")
        if link.rank == 0:
            with pytest.raises(PeerLostError, match=mentioning(said)):  # rank 1 says why
                wait_forever(link.board)
            ready.wait(60)
            return
        with pytest.raises(WireError, match=mentioning(said)) as caught:
            wait_forever(link.board)
        assert caught.value.rank == 0
        ready.wait(60)

    pool.threads(2, lambda rank: tcp.connect(rank, 2, secret, "w", store, 60.0), body)


def test_unequal_lengths_of_ranks_are_reported() -> None:
    store, secret = ThreadStore(), new_secret()

    def body(link: Any) -> None:
        mine, theirs = np.zeros(100 + link.rank, np.uint8), np.zeros(100 + link.rank, np.uint8)
        with pytest.raises((WireError, PeerLostError), match=r"rank \d .*10\d bytes.* 10\d"):
            exchange(link, mine, theirs)

    def exchange(link: Any, mine: Any, theirs: Any) -> None:
        link.sendrecv(mine, 1 - link.rank, theirs, 1 - link.rank)
        wait_forever(link.board)

    pool.threads(2, lambda rank: tcp.connect(rank, 2, secret, "w", store, 60.0), body)


def test_a_silent_connection_does_not_keep_a_rank_out() -> None:
    place = _Besieged()
    silent = [place.dial() for _ in range(200)]
    place.relieve()
    for sock in silent:
        sock.close()


def test_nothing_is_left_open() -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    store, secret = ThreadStore(), new_secret()

    def work(transport: Any) -> None:
        part = transport.split([0, 2])
        _work(transport)
        if part is not None:
            check_sum(part)

    pool.threads(3, lambda rank: over(tcp.connect(rank, 3, secret, "a", store, 60.0)), work)
    before, threads = descriptors(), threading.active_count()
    pool.threads(3, lambda rank: over(tcp.connect(rank, 3, secret, "b", store, 60.0)), work)
    until(lambda: descriptors() <= before and threading.active_count() <= threads, "closing")


def test_an_unread_board_does_not_block_a_large_message() -> None:
    """Board messages beyond what the network holds, posted while the other rank is still busy with
    data.
    """
    store, secret = ThreadStore(), new_secret()

    def body(transport: Any) -> None:
        if transport.rank == 0:
            transport.board.post(b"a" * 30_000_000)
            check_sum(transport, 1_000_000)
        else:
            check_sum(transport, 1_000_000)
            transport.board.post(b"b")
        end = time.monotonic() + 60
        while (messages := transport.board.collect()) is None:
            assert time.monotonic() < end
            transport.board.wait(1.0, spin=False)
        assert [len(message) for message in messages] == [30_000_000, 1]

    pool.threads(2, lambda rank: over(tcp.connect(rank, 2, secret, "w", store, 60.0)), body)


def test_read_only_memory_can_be_sent() -> None:
    store, secret = ThreadStore(), new_secret()

    def body(link: Any) -> None:
        data, got = np.frombuffer(b"constant", np.uint8), np.zeros(8, np.uint8)
        link.sendrecv(data, 1 - link.rank, got, 1 - link.rank)
        assert got.tobytes() == b"constant"

    pool.threads(2, lambda rank: tcp.connect(rank, 2, secret, "w", store, 60.0), body)
