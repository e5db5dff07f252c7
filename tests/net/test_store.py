from __future__ import annotations

import contextlib
import errno
import logging
import random
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farandole.errors import AuthenticationError, PeerLostError, RendezvousError, WireError
from farandole.net import liveness
from farandole.net.handshake import Session, authenticate, new_secret
from farandole.net.store import StoreClient, StoreServer, ports
from farandole.net.store.frames import PURPOSE
from farandole.net.store.server import MAX_PENDING, MAX_VALUE
from tests.job.launch.tools import wait_until
from tests.kits.messages import mentioning, mentions

SECRET = new_secret()


@pytest.fixture
def server() -> Iterator[StoreServer]:
    server = StoreServer(SECRET)
    yield server
    server.close()


@pytest.fixture
def client(server: StoreServer) -> Iterator[StoreClient]:
    client = StoreClient(server.address, SECRET, timeout=60.0)
    yield client
    client.close()


def stranger(server: StoreServer) -> socket.socket:
    host, _, port = server.address.partition(":")
    return socket.create_connection((host, int(port)), timeout=60.0)


def trusted(server: StoreServer) -> Session:
    """Return a session that knows the secret, and breaks the protocol."""
    return authenticate(stranger(server), SECRET, PURPOSE, server=False)


class TestValues:
    def test_a_key_returns_its_last_value(self, server: StoreServer, client: StoreClient) -> None:
        client.set("a", b"1")
        client.set("b", b"")
        assert client.get("a", 1.0) == b"1"
        assert client.get("b", 1.0) == b""
        assert server.get("a") == b"1"
        server.set("a", b"2")
        assert client.try_get("a") == b"2"
        assert client.try_get("c") is None

    def test_a_key_may_be_anything(self, client: StoreClient) -> None:
        for key in ("", "ä/🎉", "x" * 10_000):
            client.set(key, key.encode())
            assert client.get(key, 1.0) == key.encode()

    def test_the_server_itself_may_wait_for_a_value(
        self, server: StoreServer, client: StoreClient
    ) -> None:
        assert server.wait("a", 0.0) is None
        later = threading.Timer(0.05, client.set, ("a", b"1"))
        later.start()
        assert server.wait("a", 60.0) == b"1"
        later.join()
        assert server.wait("a", 0.0) == b"1", "it is still there"

    def test_popping_forgets(self, server: StoreServer, client: StoreClient) -> None:
        client.set("a", b"1")
        assert server.pop("a") == b"1"
        assert server.pop("a") is None

    def test_a_large_value(self, client: StoreClient) -> None:
        value = random.Random(1).randbytes(1 << 20) * 64
        client.set("large", value)
        assert client.get("large", 60.0) == value

    def test_taking_removes(self, server: StoreServer, client: StoreClient) -> None:
        client.set("a", b"1")
        assert client.take("a", 1.0) == b"1"
        assert server.get("a") is None
        assert client.take("a", 0.05) is None
        threading.Timer(0.05, server.set, ("a", b"2")).start()
        assert client.take("a", 5.0) == b"2"

    def test_the_end_of_a_client_that_stays_is_seen(self, server: StoreServer) -> None:
        gone: list[str] = []
        server.lost.append(gone.append)
        client = StoreClient(server.address, SECRET, timeout=60.0)
        client.announce("me")
        client.set("a", b"1")
        assert gone == []
        client.close()
        assert wait_until(lambda: gone == ["me"])

    def test_a_closing_server_reports_no_lost_ranks(
        self, server: StoreServer, client: StoreClient
    ) -> None:
        gone: list[str] = []
        server.lost.append(gone.append)
        client.announce("me")
        server.close()
        assert gone == []

    def test_the_store_may_advertise_a_host_name(self) -> None:
        server = StoreServer(SECRET, "127.0.0.1", advertise="localhost")
        try:
            assert server.address.startswith("localhost:")
            StoreClient(server.address, SECRET, timeout=60.0).close()
        finally:
            server.close()

    def test_hooks_of_the_store_get_the_values_of_ranks(
        self, server: StoreServer, client: StoreClient
    ) -> None:
        heard: list[tuple[str, bytes]] = []
        server.hooks.append(lambda key, value: heard.append((key, bytes(value))))
        client.set("a", b"1")
        assert heard == [("a", b"1")]


class TestWaiting:
    def test_until_it_is_set(self, server: StoreServer, client: StoreClient) -> None:
        timer = threading.Timer(0.1, server.set, ("late", b"x"))
        timer.start()
        assert client.get("late", 60.0) == b"x"
        timer.join()

    def test_waiting_for_a_missing_key_times_out(self, client: StoreClient) -> None:
        with pytest.raises(RendezvousError, match=mentioning("'never'", "0.05")):
            client.get("never", 0.05)
        client.set("a", b"still usable")
        assert client.get("a", 1.0) == b"still usable"

    def test_one_thread_waits_while_another_sets(self, client: StoreClient) -> None:
        found: list[bytes] = []
        waiter = threading.Thread(target=lambda: found.append(client.get("x", 60.0)))
        waiter.start()
        client.set("y", b"1")
        client.set("x", b"2")
        waiter.join(60)
        assert found == [b"2"]

    def test_many_threads(self, client: StoreClient) -> None:
        failures: list[BaseException] = []

        def work(number: int) -> None:
            try:
                for turn in range(20):
                    client.set(f"{number}/{turn}", f"{number}.{turn}".encode())
                    other = (number + 1) % 8
                    assert client.get(f"{other}/{turn}", 60.0) == f"{other}.{turn}".encode()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not failures

    def test_all_that_ranks_set_comes_in_one_answer(
        self, server: StoreServer, client: StoreClient
    ) -> None:
        client.set("topic/0", b"zero")
        client.set("topic/2", b"")
        assert client.gather("topic", 3, 0.0) == [b"zero", None, b""]
        found: list[list[bytes | None]] = []
        waiting = [
            threading.Thread(target=lambda: found.append(client.gather("topic", 3, 30.0)))
            for _ in range(2)
        ]
        for thread in waiting:
            thread.start()
        client.set("topic/1", b"one")
        for thread in waiting:
            thread.join(60)
        assert found == [[b"zero", b"one", b""]] * 2
        assert client.gather("topic", 2, 5.0) == [b"zero", b"one"]
        assert not server._awaited, "nobody waits any more"

    def test_timed_out_waiters_are_forgotten(
        self, server: StoreServer, client: StoreClient
    ) -> None:
        with pytest.raises(RendezvousError):
            client.get("never", 0.05)
        assert client.take("never", 0.05) is None
        assert not server._awaited

    def test_the_server_goes_away(self, server: StoreServer, client: StoreClient) -> None:
        timer = threading.Timer(0.1, server.close)
        timer.start()
        with pytest.raises(PeerLostError):
            client.get("never", 30.0)
        timer.join()
        with pytest.raises((PeerLostError, RendezvousError)):
            client.set("a", b"1")

    def test_the_client_is_closed(self, client: StoreClient) -> None:
        timer = threading.Timer(0.1, client.close)
        timer.start()
        with pytest.raises(PeerLostError):
            client.get("never", 30.0)
        timer.join()
        with pytest.raises(PeerLostError):
            client.set("a", b"1")


class TestNobodyThere:
    def test_no_server(self) -> None:
        server = StoreServer(SECRET)
        server.close()
        with pytest.raises(RendezvousError, match=mentioning("store", server.address)):
            StoreClient(server.address, SECRET, timeout=1.0)

    def test_a_loopback_that_is_down(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As after ``unshare --net``: no firewall is to blame."""

        def down(*_: object) -> None:
            raise OSError(errno.ENETUNREACH, "Network is unreachable")

        monkeypatch.setattr(socket, "create_connection", down)
        with pytest.raises(
            RendezvousError,
            match=mentioning("loopback", "interface"),
        ):
            StoreClient("127.0.0.1:1", SECRET, timeout=1.0)

    def test_a_link_that_is_out_for_a_while_is_awaited(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real, fails = (
            socket.create_connection,
            [OSError(errno.EHOSTUNREACH, "No route to host")] * 2,
        )

        def create_connection(*where: Any) -> socket.socket:
            if fails:
                raise fails.pop()
            return real(*where)

        monkeypatch.setattr(socket, "create_connection", create_connection)
        monkeypatch.setattr(liveness, "LOOK_SECONDS", 0.0)
        server = StoreServer(SECRET)
        try:
            for seconds in (30.0, 6.0):
                fails[:] = [OSError(errno.EHOSTUNREACH, "No route to host")] * 2
                StoreClient(server.address, SECRET, timeout=seconds).close()
                assert not fails
            fails += [OSError(errno.EHOSTUNREACH, "No route to host")]
            # who has little time has other addresses
            with pytest.raises(RendezvousError, match=mentioning("host")):
                StoreClient(server.address, SECRET, timeout=2.0)
            monkeypatch.setattr(liveness, "LOST_SECONDS", -1.0)
            fails += [OSError(errno.EHOSTUNREACH, "No route to host")]
            with pytest.raises(RendezvousError, match=mentioning("host")):
                StoreClient(server.address, SECRET, timeout=30.0)
        finally:
            server.close()

    @pytest.mark.parametrize("address", ["", "host", "host:", ":", "host:http"])
    def test_no_address(self, address: str) -> None:
        with pytest.raises(RendezvousError, match=mentioning("host:port")):
            StoreClient(address, SECRET)

    def test_closing_leaves_no_thread_and_no_socket(self) -> None:
        before = {thread.ident for thread in threading.enumerate()}
        server = StoreServer(SECRET)
        clients = [StoreClient(server.address, SECRET) for _ in range(5)]
        silent = stranger(server)
        server.close()
        server.close()
        for each in clients:
            each.close()
        silent.close()
        assert wait_until(lambda: {thread.ident for thread in threading.enumerate()} <= before)

    def test_closing_waits_for_connections_that_are_ending(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A rank that has just left may still have a thread and a socket in the driver."""
        ending: list[threading.Thread] = []
        ended, awaited, close = threading.Event(), threading.Event(), socket.socket.close

        def slowly(sock: socket.socket) -> None:
            me = threading.current_thread()
            if me.name == "farandole-store-peer" and not ending:
                monkeypatch.setattr(
                    me, "join", lambda seconds: (awaited.set(), threading.Thread.join(me, seconds))
                )
                ending.append(me)
                ended.set()
                awaited.wait(60)
            close(sock)

        server = StoreServer(SECRET)
        client = StoreClient(server.address, SECRET)
        monkeypatch.setattr(socket.socket, "close", slowly)
        client.close()
        assert ended.wait(60)
        server.close()
        left = ending[0].is_alive()
        awaited.set()
        assert not left


class TestStrangers:
    """Strangers are refused and logged once, and the job is unharmed."""

    def check(self, server: StoreServer, client: StoreClient) -> None:
        client.set("alive", b"1")
        newcomer = StoreClient(server.address, SECRET, timeout=60.0)
        assert newcomer.get("alive", 60.0) == b"1"
        newcomer.close()

    def test_another_secret(self, server: StoreServer, client: StoreClient) -> None:
        with pytest.raises(AuthenticationError):
            StoreClient(server.address, new_secret(), timeout=60.0)
        self.check(server, client)

    def test_one_warning_however_many_come(
        self, server: StoreServer, client: StoreClient, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING, "farandole"):
            for _ in range(20):
                with stranger(server) as sock:
                    sock.sendall(b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n" * 4)
            assert wait_until(lambda: server.newcomers.refused == 20 and caplog.records)
            self.check(server, client)
        assert len(caplog.records) == 1
        assert "unknown client" in caplog.text
        assert "127.0.0.1" in caplog.text

    @pytest.mark.parametrize("seed", range(25))
    def test_garbage(self, seed: int, server: StoreServer, client: StoreClient) -> None:
        rng = random.Random(seed)
        for _ in range(8):
            with stranger(server) as sock:
                pieces = rng.choice(
                    [
                        [rng.randbytes(rng.randint(0, 300))],
                        [b"\xff" * 8, b"\xff" * 4096],
                        [
                            struct.pack("<Q", 1 << rng.randint(0, 63)),
                            rng.randbytes(rng.randint(0, 100)),
                        ],
                        [rng.randbytes(32), rng.randbytes(32)],
                        [bytes([byte]) for byte in rng.randbytes(20)],
                    ]
                )
                try:
                    for piece in pieces:
                        sock.sendall(piece)
                except OSError:
                    pass  # hung up on, as it should be
        assert wait_until(lambda: server.newcomers.refused == 8)
        self.check(server, client)

    def test_silence_does_not_keep_a_rank_out(
        self, server: StoreServer, client: StoreClient
    ) -> None:
        silent = [stranger(server) for _ in range(MAX_PENDING + 100)]
        assert wait_until(lambda: server.newcomers.refused >= 100)
        self.check(server, client)
        assert wait_until(lambda: not len(server.newcomers)), "they are not waited for long"
        for sock in silent:
            sock.close()
        self.check(server, client)

    def test_a_rank_killed_while_it_connects_is_no_stranger(
        self, server: StoreServer, client: StoreClient, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.INFO, "farandole"):
            with stranger(server) as sock:
                sock.sendall(b"x" * 32)
            assert wait_until(lambda: caplog.records)
        assert [record.levelname for record in caplog.records] == ["INFO"]
        assert "stranger" not in caplog.text

    def test_a_replayed_session(self, server: StoreServer, client: StoreClient) -> None:
        sent: list[bytes] = []
        with stranger(server) as sock:

            class Recorder:
                def __getattr__(self, name: str) -> object:
                    return getattr(sock, name)

                def sendall(self, data: bytes) -> None:
                    sent.append(data)
                    sock.sendall(data)

            authenticate(Recorder(), SECRET, PURPOSE, server=False)  # type: ignore[arg-type]
        with stranger(server) as sock:
            sock.sendall(b"".join(sent) + struct.pack("<Q", 10) + struct.pack("<Bd", 3, 0.0) + b"x")
        assert wait_until(lambda: server.newcomers.refused == 1)
        assert server.get("x") is None
        self.check(server, client)


class TestMembers:
    """A member that knows the secret can harm only its own connection."""

    def check(self, server: StoreServer, client: StoreClient) -> None:
        client.set("alive", b"1")
        assert client.get("alive", 60.0) == b"1"
        assert wait_until(lambda: len(server._sessions) == 1), "the odd one is still there"

    @pytest.mark.parametrize("seed", range(25))
    def test_nonsense(self, seed: int, server: StoreServer, client: StoreClient) -> None:
        rng = random.Random(seed)
        session = trusted(server)
        with session.sock as sock:
            if seed % 2:
                session.send(rng.randbytes(rng.randint(0, 60)))
            else:
                sock.sendall(rng.randbytes(rng.randint(0, 60)))
        self.check(server, client)

    @pytest.mark.parametrize(
        ("verb", "seconds", "key", "said"),
        [
            (1, float("inf"), b"a", "wait for inf seconds"),
            (5, float("nan"), b"a", "wait for nan seconds"),
            (1, -1.0, b"a", "wait for -1.0 seconds"),
            (0, 0.0, b"a", "the verb 0"),
            (77, 0.0, b"a", "the verb 77"),
            (7, 0.0, b"x y", "gather 'x' values"),
            (
                7,
                0.0,
                b"99999999999999999999999999 y",
                "gather '99999999999999999999' values",
            ),
            (1, 0.0, b"\xff", "invalid request"),
            (1, 0.0, b"k" * (1 << 20), "announced a message of"),
        ],
    )
    def test_malformed_requests_are_refused_and_logged(
        self,
        verb: int,
        seconds: float,
        key: bytes,
        said: str,
        server: StoreServer,
        client: StoreClient,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        with caplog.at_level(logging.WARNING, "farandole"):
            session = trusted(server)
            with session.sock:
                with contextlib.suppress(OSError):  # hung up on in the middle of it
                    session.send(struct.pack("<Bd", verb, seconds) + key)
                self.check(server, client)
            # the server may see it later than it answers another
            assert wait_until(lambda: said in caplog.text)

    def test_a_very_long_wait_is_one(self, server: StoreServer, client: StoreClient) -> None:
        session = trusted(server)
        with session.sock:
            session.send(struct.pack("<Bd", 1, 1e300) + b"late")
            client.set("late", b"x")
            assert session.receive(1) == b"\1"
            assert session.receive(10) == b"x"

    def test_an_announced_length_allocates_no_memory(
        self, server: StoreServer, client: StoreClient, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Neither for a value that no rank may set, nor for one that never arrives."""
        before, length = _virtual(), 8 << 30
        for key in (b"outcome/0", b"result/0"):
            session = trusted(server)
            with session.sock:
                session.send(struct.pack("<Bd", 3, 0.0) + key)
                session.sock.sendall(session.outgoing.seal(_Long(length))[0] + b"x" * 1000)
                if key == b"outcome/0":
                    self.check(server, client)  # it does not wait for more
            self.check(server, client)
            assert _virtual() < before + length // 2
        assert mentions(caplog.text, f"{length} bytes", str(64 << 20))

    def test_a_staying_connection_ends_when_its_host_is_lost(self, server: StoreServer) -> None:
        """Also while an answer is in transit, when the kernel does not probe."""
        client = StoreClient(server.address, SECRET)
        client.announce("agent/0")
        limits = {
            session.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) / 1000
            for session in server._sessions
        }
        client.close()
        assert limits == {0.0, liveness.LOST_SECONDS}

    def test_results_of_functions_may_exceed_the_value_limit(
        self, server: StoreServer, client: StoreClient
    ) -> None:
        value = bytes(MAX_VALUE + 1)
        client.set("result/0", value)
        assert server.pop("result/0") == value
        with pytest.raises((WireError, PeerLostError)):
            client.set("outcome/0", value)


class _Long(bytes):
    """Bytes with a false length."""

    def __new__(cls, length: int) -> _Long:
        made = super().__new__(cls, b"")
        made.length = length  # type: ignore[attr-defined]
        return made

    def __len__(self) -> int:
        return self.length  # type: ignore[attr-defined, no-any-return]


def _virtual() -> int:
    """Return the bytes of this process's address space."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * 4096


def test_a_port_for_later_is_none_that_the_kernel_gives_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch.distributed listens on it later; sockets of the job must not take it meanwhile."""
    (tmp_path / "given").write_text("25000\t60999\n")
    monkeypatch.setattr(ports, "_GIVEN", str(tmp_path / "given"))
    monkeypatch.setattr(ports, "_PREFERRED", range(24_990, 25_010))
    with contextlib.ExitStack() as stack:
        taken = set()
        for _ in range(3):
            taken.add(port := ports.free_port())
            stack.enter_context(socket.socket()).bind(("", port))
        assert len(taken) == 3
        assert taken <= {*range(24_990, 25_000)}
        (tmp_path / "given").write_text("1024\t65535\n")
        assert ports.free_port() not in taken
