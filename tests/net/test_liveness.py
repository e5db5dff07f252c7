"""Detection of lost hosts from the kernel's data on connections; ``job/context/test_hosts`` uses a
real kernel.
"""

from __future__ import annotations

import math
import re
import socket
from typing import Any

import pytest

from farandole.core.transports import tcp
from farandole.errors import PeerLostError
from farandole.net import liveness
from farandole.net.handshake import new_secret
from tests import pool
from tests.core.transports.double_store import ThreadStore
from tests.kits.messages import mentioning
from tests.kits.transport import until


def test_one_answered_connection_shows_a_live_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A connection that sends learns of a recovered link later than a probed one."""
    said: dict[socket.socket, tuple[bool, float]] = {}
    monkeypatch.setattr(liveness, "silence", lambda sock: said.get(sock, (False, 0.0)))
    secret, store = new_secret(), ThreadStore()

    def body(link: Any) -> None:
        if link.rank == 0:
            ((_, data),) = link.board.data
            (peer,) = link.board._peers.values()
            long = liveness.LOST_SECONDS + 1
            said[data] = True, long
            link.board.check_hosts()
            said[peer.sock] = True, long - 2
            link.board.check_hosts()
            said[peer.sock] = False, long
            link.board.check_hosts(waited=1.0)  # it was not silent for longer than that
            with pytest.raises(PeerLostError, match=f"rank 1 {PeerLostError.SILENT}"):
                link.board.check_hosts()

    pool.threads(2, lambda rank: tcp.connect(rank, 2, secret, "w", store, 10.0), body)


def test_an_answer_is_awaited_no_longer_than_the_host_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = socket.socketpair()
    monkeypatch.setattr(liveness, "LOOK_SECONDS", 0.01)
    with one, other:
        with pytest.raises(TimeoutError, match=mentioning("0.05")):
            liveness.await_answer(one, 0.05)
        monkeypatch.setattr(liveness, "silence", lambda sock: (True, liveness.LOST_SECONDS + 1))
        with pytest.raises(TimeoutError, match=re.escape(PeerLostError.SILENT)):
            liveness.await_answer(one, 60.0)
        other.send(b"here")
        liveness.await_answer(one, 60.0)


def test_liveness_reads_the_kernels_state_of_a_connection() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        liveness.probe(client)
        client.send(b"data")
        client.shutdown(socket.SHUT_WR)
        peer, _ = server.accept()
        with peer:
            while peer.recv(100):
                pass
        until(lambda: not liveness.silence(client)[0], "all to be acknowledged")
        assert liveness.silence(client)[1] < math.inf
        assert not liveness.silent(client)
    assert liveness.silence(client) == (False, math.inf)


def test_a_refusal_is_an_answer_and_a_full_queue_is_none() -> None:
    with socket.create_server(("127.0.0.1", 0)) as open_, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with socket.socket() as full, socket.socket() as first:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            first.connect(full.getsockname())  # the kernel drops further ones
            asked = [each.getsockname() for each in (open_, closed, full)]
            assert liveness.unanswered(asked, 0.3) == {full.getsockname()}
    assert liveness.unanswered([]) == set()
