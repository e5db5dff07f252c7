"""Boards of a tree: the conformance kit with a tree for any number of ranks, and its shape."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from farandole.core.collectives import over
from farandole.core.transports import tcp
from farandole.core.transports.tcp import overlay as overlays
from farandole.core.transports.tcp.overlay import overlay
from farandole.core.transports.tcp.rounds import (
    HOLD,
    HOLD_MORE,
    BoardRounds,
    ForwardQueue,
    MessageRun,
    merged,
    packed,
    unpacked,
)
from farandole.errors import PeerLostError
from farandole.net.handshake import new_secret
from tests import pool
from tests.core.transports.double_store import ThreadStore
from tests.kits.messages import mentioning
from tests.kits.transport import (
    BoardKit,
    FailureKit,
    check_sum,
    collect,
    fresh_scope,
    rounds,
    until,
    wait_forever,
    wait_until,
)


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a tree from two ranks on, with two children for each node."""
    monkeypatch.setattr(overlays, "DIRECT", 1)
    monkeypatch.setattr(overlays, "FANOUT", 2)


def joiner(size: int) -> Callable[[int], Any]:
    secret, scope, store = new_secret(), fresh_scope(), ThreadStore()
    return lambda rank: over(tcp.connect(rank, size, secret, scope, store, 60.0))


@pytest.mark.usefixtures("narrow")
class TestTree(BoardKit, FailureKit):
    def joiner(self, size: int) -> Callable[[int], Any]:
        return joiner(size)

    def test_seventeen_ranks(self) -> None:
        """Rounds in which ranks post equal messages, different ones, or late ones; all ranks learn
        of missing ranks.
        """
        size = 17
        turns = [threading.Event() for _ in range(size)]

        def body(transport: Any) -> None:
            board, rank = transport.board, transport.rank
            draws = random.Random(rank)
            for turn in range(20):
                board.post(b"same" if turn % 2 else b"%d" % (rank // 3))
                got = collect(board)
                assert got == [b"same" if turn % 2 else b"%d" % (peer // 3) for peer in range(size)]
            for _ in range(5):
                message = draws.randbytes(draws.randrange(100_000))
                board.post(message)
                assert collect(board)[rank] == message
            if rank != 5:
                board.post(b"here")
                wait_until(board, lambda: board.missing() == [5], "all messages but rank 5's")
                turns[rank].set()
            else:
                assert all(turn.wait(60) for turn in turns[:5] + turns[6:])
                wait_until(board, board.started, "the others' messages")
                assert board.missing() == [5]
                board.post(b"late")
            assert collect(board) == [b"late" if peer == 5 else b"here" for peer in range(size)]
            check_sum(transport, 70_000)

        self.run(size, body)

    def test_a_busy_rank_forwards_messages_of_others(self) -> None:
        """Rank 0, the root, computes: messages of the others and an abort still arrive."""
        computed = threading.Event()

        def body(transport: Any) -> None:
            board, rank = transport.board, transport.rank
            if rank == 0:
                assert computed.wait(60)
                return
            board.post(b"here")
            wait_until(board, lambda: board.missing() == [0], "all messages but the root's")
            met.wait(60)
            if rank == 6:
                transport.abort("rank 6 is fed up")
            else:
                with pytest.raises(PeerLostError, match="fed up"):
                    wait_forever(board)
            met.wait(60)
            computed.set()

        met = threading.Barrier(6)
        self.run(7, body)

    @pytest.mark.parametrize("leaver", [0, 1, 6])
    def test_ranks_that_need_a_departed_rank_get_an_error(self, leaver: int) -> None:
        """The root, an inner node, a leaf: no rank waits forever, and the previous round is
        complete on all ranks.
        """

        def body(transport: Any) -> None:
            board = transport.board
            rounds(transport, [b"all"])
            board.post(b"last")
            if transport.rank == leaver:
                transport.close()
                return
            with pytest.raises(PeerLostError, match=mentioning(f"rank {leaver}")) as caught:
                _go_on(board)
            assert caught.value.left

        self.run(7, body)


def _go_on(board: Any) -> None:
    while True:
        collect(board)
        board.post(b"next")


@pytest.mark.usefixtures("narrow")
def test_descriptors_and_threads_end_with_the_wire() -> None:
    def held() -> int:
        return len(os.listdir("/proc/self/fd"))

    pool.threads(5, joiner(5), check_sum)
    before, threads = held(), threading.active_count()
    pool.threads(5, joiner(5), check_sum)
    until(lambda: held() <= before and threading.active_count() <= threads, "closing")


def test_a_killed_rank_is_named_by_all_however_far_they_are() -> None:
    """Rank 3 of 7 dies: in a tree of twos, rank 2 is its only neighbour."""

    def body(transport: Any) -> str:
        try:
            transport.barrier()  # some may be in it still when rank 3 is through
            if transport.rank == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            wait_forever(transport.board)
        except PeerLostError as error:
            return str(error)

    results = pool.procs(7, _in_a_tree(body), wire="tcp", deaths=True)
    assert [
        text for rank, text in enumerate(results) if rank != 3 and "rank 3 was lost" not in text
    ] == []


def _in_a_tree(body: Callable[[Any], str]) -> Any:
    """Run ``body`` on a wire among all ranks, whose board is a tree of twos."""

    def run(transport: Any) -> str:
        overlays.DIRECT, overlays.FANOUT = 1, 2
        try:
            again = transport.split(range(transport.size))
        finally:
            overlays.DIRECT, overlays.FANOUT = 32, 10
        return body(again)

    return run


@pytest.fixture(params=[(1, 2), (1, 3), (1, 10), (32, 10)])
def shape(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(overlays, "DIRECT", request.param[0])
    monkeypatch.setattr(overlays, "FANOUT", request.param[1])
    return


@pytest.mark.usefixtures("shape")
@pytest.mark.parametrize("size", [1, 2, 3, 12, 33, 111, 112])
def test_the_places_of_all_ranks_are_one_tree(size: int) -> None:
    places = [overlay(rank, size) for rank in range(size)]
    edges = {(place.rank, peer) for place in places for peer in place.reachable}
    assert edges == {(two, one) for one, two in edges}, "neighbours of each other"
    tree = places[0].relays
    assert len(edges) == (2 * (size - 1) if tree else size * (size - 1))
    for place in places:
        assert sum(place.reachable.values()) == size - 1
        assert len(place.reachable) <= overlays.FANOUT + 1 or not tree
        for gone in {0, size // 2, size - 1} - {place.rank}:
            cut = {rank for ranks in place.severed(gone) for rank in ranks}
            assert cut == set(range(size)) - _reached(place.rank, gone, edges), (place.rank, gone)


def _reached(start: int, gone: int, edges: set[tuple[int, int]]) -> set[int]:
    """Return the ranks that ``start`` reaches along ``edges`` without ``gone``."""
    beside: dict[int, list[int]] = {}
    for one, two in edges:
        beside.setdefault(one, []).append(two)
    found, new = {start}, [start]
    while new:
        new = [
            peer
            for rank in new
            for peer in beside.get(rank, [])
            if peer != gone and peer not in found
        ]
        found.update(new)
    return found


def test_a_thousand_ranks_are_three_steps_from_the_root() -> None:
    assert max(len(overlay(rank, 1024).subtrees) for rank in range(1024)) == 4
    assert max(len(overlay(rank, 1024).reachable) for rank in range(1024)) == 11


def test_runs_of_the_same_message_become_one_and_come_back() -> None:
    runs = [
        MessageRun(4, 1, b"b"),
        MessageRun(1, 2, b"a"),
        MessageRun(3, 1, b"a"),
        MessageRun(0, 1, b"a"),
        MessageRun(5, 2, b"b"),
        MessageRun(8, 1, b"b"),
    ]
    assert merged(runs) == [MessageRun(0, 4, b"a"), MessageRun(4, 3, b"b"), MessageRun(8, 1, b"b")]
    assert list(unpacked(packed(merged(runs)), 9)) == merged(runs)


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        *(packed([MessageRun(*ranks, b"")]) for ranks in ((3, 2), (0, 0), (9, 1))),
        packed([MessageRun(0, 1, b"ab")])[:-1],
    ],
)
def test_malformed_message_runs_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"bytes"):
        list(unpacked(data, 4))


def test_a_message_two_rounds_early_cannot_be() -> None:
    messages = BoardRounds(0, 3)
    assert messages.put(1, b"this", 2)
    assert messages.put(1, b"next")
    assert not messages.put(1, b"after that")
    assert messages.missing(range(3)) == [0]
    assert messages.put(0, b"mine")
    assert messages.collect() == [b"mine", b"this", b"this"]
    assert messages.missing(range(3)) == [0, 2]


def test_messages_are_combined_without_waiting_for_late_ones() -> None:
    forward_queue = ForwardQueue(4)
    assert not forward_queue.waiting
    forward_queue.add(MessageRun(0, 2, b"a"), 10.0)
    assert forward_queue.due == 10.0 + HOLD
    assert forward_queue.take() == packed([MessageRun(0, 2, b"a")])
    forward_queue.add(MessageRun(2, 1, b"a"), 20.0)
    assert forward_queue.due == 20.0 + HOLD_MORE
    forward_queue.add(MessageRun(3, 1, b"a"), 21.0)
    assert forward_queue.due == 0.0
    forward_queue.add(
        MessageRun(1, 1, b"a"), 22.0
    )  # of the next round: not to be taken for the same run
    assert forward_queue.take() == packed([MessageRun(2, 2, b"a"), MessageRun(1, 1, b"a")])
    forward_queue.add(MessageRun(2, 2, b"a"), 30.0)
    forward_queue.add(MessageRun(0, 1, b"a"), 30.0)
    assert forward_queue.due == 0.0
