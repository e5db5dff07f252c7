"""Queries over a separate connection, answered and unanswered."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from farandole.core.observe.stall.direct_query import DirectQuery
from farandole.core.observe.stall.report import stacks_text
from farandole.errors import UnfinishedHandshakeError
from farandole.net.handshake import Newcomers, new_secret
from tests.kits.messages import mentioning

SECRET = new_secret()
LookUp = Callable[[int], "bytes | None"]


def one_rank(
    rank: int, size: int, entries: dict[int, bytes], look_up: LookUp | None = None
) -> DirectQuery:
    return DirectQuery(
        SECRET,
        "scope",
        rank,
        size,
        "127.0.0.1",
        lambda entry: entries.update({rank: entry}),
        look_up or entries.get,
    )


def test_a_silent_store_blocks_no_rank() -> None:
    """Like torch's TCPStore, whose server is a thread of rank 0, when that process is stopped."""
    over, said = threading.Event(), list[str]()

    def look(rank: int) -> None:
        over.wait(60)

    rank = one_rank(0, 2, {}, look)
    asker = threading.Thread(
        target=lambda: said.append(stacks_text(rank.ask([1], 0.1))), daemon=True
    )
    asker.start()
    asker.join(60)
    answered = list(said)
    over.set()
    rank.close()
    assert answered == [""]


def test_a_query_is_repeated_after_a_hang_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank with too many connecting clients is not reported as silent."""
    entries: dict[int, bytes] = {}
    ranks = [one_rank(rank, 2, entries) for rank in range(2)]
    serve, hung_up = ranks[1]._newcomers.admit, list[int]()

    def admit(sock: socket.socket, *args: object, **options: object) -> object:
        if len(hung_up) < 3:
            hung_up.append(1)
            raise UnfinishedHandshakeError("too many newcomers")  # which closes the socket
        return serve(sock, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(ranks[1]._newcomers, "admit", admit)
    text = stacks_text(ranks[0].ask([1], 30.0))
    assert len(hung_up) == 3
    assert text.startswith("\nrank 1 is at:\n")
    for error, answer in (
        (UnfinishedHandshakeError("hung up"), ""),
        (TimeoutError(), "\nrank 1 does not answer: its "),
    ):
        monkeypatch.setattr(ranks[0], "_ask", Mock(side_effect=error))
        text = stacks_text(ranks[0].ask([1], 0.1))
        assert text.startswith(answer)
        assert bool(text) == bool(answer)
    monkeypatch.undo()
    ranks[1].close()
    assert ranks[0].ask([1], 0.1) == {}  # no socket listens any more
    ranks[0].close()


def test_all_ranks_may_ask_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rooms: list[int] = []
    made = Newcomers.__init__

    def init(self: Newcomers, place: str, logger: object, room: int) -> None:
        rooms.append(room)
        made(self, place, logger, room)  # type: ignore[arg-type]

    monkeypatch.setattr(Newcomers, "__init__", init)
    for size in (2, 100):
        one_rank(0, size, {}).close()
    assert rooms == [16, 100]


def test_a_rank_that_cannot_publish_leaves_no_thread() -> None:
    def publish(entry: bytes) -> None:
        raise RuntimeError("the store has gone")

    before = set(threading.enumerate())
    with pytest.raises(RuntimeError, match=mentioning("store")):
        DirectQuery(SECRET, "scope", 0, 2, "127.0.0.1", publish, lambda rank: None)
    assert not [
        thread
        for thread in threading.enumerate()
        if thread not in before and "stacks" in thread.name
    ]
