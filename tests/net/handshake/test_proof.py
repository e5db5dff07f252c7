from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator

import pytest

from farandole.errors import AuthenticationError, UnfinishedHandshakeError
from farandole.net.handshake import MAC, NONCE, Session, authenticate, derive, new_secret, proof
from tests.kits.messages import mentioning

SECRET = new_secret()
Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


class Server(threading.Thread):
    """The accepting side, in a thread; ``error`` is its exception, otherwise there is a
    ``session``.
    """

    def __init__(
        self, sock: socket.socket, secret: str = SECRET, purpose: str = "test", seconds: float = 5.0
    ) -> None:
        super().__init__(daemon=True)
        self.error: Exception | None = None
        self.session: Session | None = None
        self._arguments = sock, secret, purpose, seconds
        self.start()

    def run(self) -> None:
        sock, secret, purpose, seconds = self._arguments
        try:
            self.session = authenticate(sock, secret, purpose, server=True, seconds=seconds)
        except Exception as error:
            self.error = error
            sock.close()

    def result(self) -> Exception | None:
        self.join(60)
        assert not self.is_alive()
        return self.error


def test_two_that_know_the_secret(pair: Pair) -> None:
    server = Server(pair[0])
    session = authenticate(pair[1], SECRET, "test", server=False)
    assert server.result() is None
    assert server.session is not None
    session.send(b"hello")
    assert server.session.receive(10) == b"hello"
    server.session.send(b"you, too")
    assert session.receive(10) == b"you, too"


@pytest.mark.parametrize(("secret", "purpose"), [(new_secret(), "test"), (SECRET, "other")])
def test_another_secret_or_purpose(pair: Pair, secret: str, purpose: str) -> None:
    server = Server(pair[0])
    with pytest.raises(AuthenticationError):
        authenticate(pair[1], secret, purpose, server=False)
    assert isinstance(server.result(), AuthenticationError)


def test_a_server_that_does_not_know_the_secret_is_found_out(pair: Pair) -> None:
    pair[0].sendall(b"n" * NONCE + b"m" * MAC)
    with pytest.raises(AuthenticationError, match=mentioning("secret")):
        authenticate(pair[1], SECRET, "test", server=False)


def test_a_recorded_handshake_is_worthless(pair: Pair) -> None:
    server = Server(pair[0])
    recorded: list[bytes] = []

    class Recorder:
        def __getattr__(self, name: str) -> object:
            return getattr(pair[1], name)

        def sendall(self, data: bytes) -> None:
            recorded.append(data)
            pair[1].sendall(data)

    authenticate(Recorder(), SECRET, "test", server=False)  # type: ignore[arg-type]
    assert server.result() is None
    one, other = socket.socketpair()
    with one, other:
        again = Server(one)
        other.sendall(b"".join(recorded))
        assert isinstance(again.result(), AuthenticationError)


def test_an_echo_is_no_answer(pair: Pair) -> None:
    """A stranger who replays the server's own messages learns nothing and gets no further."""
    server = Server(pair[0], seconds=2.0)
    pair[1].sendall(b"x" * NONCE)
    pair[1].sendall(pair[1].recv(NONCE, socket.MSG_WAITALL))
    assert isinstance(server.result(), AuthenticationError)


def test_silence_ends(pair: Pair) -> None:
    server = Server(pair[0], seconds=0.2)
    assert "time" in str(server.result())
    assert isinstance(server.result(), UnfinishedHandshakeError)


def test_a_silent_client_times_out_sooner(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "SILENCE", 0.1)
    silent = Server(pair[0], seconds=30.0)
    assert "time" in str(silent.result())


def test_a_client_that_hangs_up_is_not_a_wrong_secret(pair: Pair) -> None:
    server = Server(pair[0])
    pair[1].sendall(b"x" * NONCE)
    pair[1].close()
    assert isinstance(server.result(), UnfinishedHandshakeError)


def test_dripping_does_not_extend_the_time(pair: Pair) -> None:
    server = Server(pair[0], seconds=0.3)
    stop = threading.Event()
    while server.is_alive() and not stop.wait(0.05):
        try:
            pair[1].send(b"x")
        except OSError:
            break
    assert "time" in str(server.result())


@pytest.mark.parametrize("seed", range(20))
def test_garbage(seed: int, pair: Pair) -> None:
    rng = random.Random(seed)
    server = Server(pair[0], seconds=1.0)
    pair[1].sendall(rng.randbytes(rng.choice([1, 31, 32, 33, 63, 64, 65, 5000])))
    pair[1].close()
    assert isinstance(server.result(), AuthenticationError)


def test_names_derived_from_the_secret() -> None:
    assert derive(SECRET, "a") == derive(SECRET, "a")
    assert len({derive(SECRET, "a"), derive(SECRET, "b"), derive(new_secret(), "a")}) == 3
    assert SECRET not in derive(SECRET, "a")


def test_a_malformed_secret_is_reported() -> None:
    with pytest.raises(AuthenticationError, match=mentioning("hexadecimal")):
        derive("not hex", "anything")
