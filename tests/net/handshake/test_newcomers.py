"""Admission of clients at a listening socket, and its time limits."""

from __future__ import annotations

import logging
import os
import socket
import threading
import uuid
from collections.abc import Iterator

import pytest

from farandole.base.log import logger
from farandole.net.handshake import Newcomers
from tests.job.launch.tools import wait_until
from tests.kits.messages import mentions


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(f"\0farandole-test-{uuid.uuid4().hex}")
        sock.listen(16)
        yield sock


def _accepting(
    listener: socket.socket, at_door: Newcomers, served: list[socket.socket]
) -> threading.Thread:
    thread = threading.Thread(
        target=at_door.accept_all, args=(listener, served.append, "test"), daemon=True
    )
    thread.start()
    return thread


def _hung_up(sock: socket.socket) -> bool:
    sock.settimeout(10)
    return sock.recv(1) == b""


def test_other_users_are_refused_before_their_data_is_read(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served: list[socket.socket] = []
    monkeypatch.setattr(os, "geteuid", lambda: 123456)
    at_door = Newcomers("the door", logger, 4)
    with caplog.at_level(logging.WARNING, "farandole"), socket.socket(socket.AF_UNIX) as sock:
        thread = _accepting(listener, at_door, served)
        sock.connect(listener.getsockname())
        assert _hung_up(sock)
        assert wait_until(lambda: mentions(caplog.text, "user 123456"))
    listener.shutdown(socket.SHUT_RDWR)
    thread.join(60)
    assert not served
    assert not len(at_door)


def test_a_client_without_a_thread_gets_the_reason(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The client may be a rank of the job, which would try other ways, and blame a firewall."""
    served: list[socket.socket] = []
    gate = Newcomers("the gate", logger, 4)
    thread = _accepting(listener, gate, served)
    errors = [RuntimeError("can't start new thread"), MemoryError()]

    def full(self: threading.Thread) -> None:
        raise errors.pop()

    monkeypatch.setattr(threading.Thread, "start", full)
    with caplog.at_level(logging.WARNING, "farandole"):
        for _ in range(2):
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(listener.getsockname())
                assert _hung_up(sock)
    listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)
    assert not served
    assert not errors
    assert "`ulimit -u`" in gate.full(0.0)
    assert not gate.full(600.0)
    assert caplog.text.count("connections to the gate") == 1
    assert "pids.max" in caplog.text


def test_the_oldest_of_too_many_has_to_go(listener: socket.socket) -> None:
    served: list[socket.socket] = []
    at_door = Newcomers("the door", logger, 2)
    thread = _accepting(listener, at_door, served)
    came = [socket.socket(socket.AF_UNIX) for _ in range(3)]
    for sock in came:
        sock.connect(listener.getsockname())
    assert _hung_up(came[0])
    assert wait_until(lambda: len(served) == 3)
    assert len(at_door) == 2
    at_door.close()
    assert _hung_up(came[1])
    listener.shutdown(socket.SHUT_RDWR)
    thread.join(60)
    assert not thread.is_alive()
    for sock in (*came, *served):
        sock.close()
