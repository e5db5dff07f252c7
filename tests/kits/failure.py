"""Conformance kit of wires: the board, abort and close."""

from __future__ import annotations

import threading
import time

import pytest

from farandole.base.contracts import Transport
from farandole.errors import PeerLostError
from tests.kits.messages import mentions
from tests.kits.worlds import (
    SIZES,
    Worlds,
    check_sum,
    collect,
    rounds,
    wait_forever,
    wait_in,
    wait_until,
)


class BoardKit(Worlds):
    @pytest.mark.parametrize("size", SIZES)
    def test_rounds_of_all_lengths(self, size: int) -> None:
        lengths = [0, 10, 100_000, 1, 0, 4096, 3, 3_000_000, 5]
        self.run(
            size, lambda transport: rounds(transport, [b"x" * length for length in lengths] * 2)
        )

    @pytest.mark.parametrize("size", [2, 3, 5])
    def test_rounds_between_collectives(self, size: int) -> None:
        def body(transport: Transport) -> None:
            for turn in range(30):
                rounds(transport, [b"m" * (turn * 50)])
                check_sum(transport, 1 + turn * 1000)

        self.run(size, body)

    def test_ranks_that_post_late(self) -> None:
        """Check started() and missing() while ranks post one after the other."""
        go = [threading.Event() for _ in range(3)]

        def body(transport: Transport) -> None:
            board, rank = transport.board, transport.rank
            assert not board.started()
            assert board.missing() == [0, 1, 2]
            transport.barrier()
            if rank == 0:
                board.post(b"first")
                assert board.missing() == [1, 2]
                assert not board.started()
                assert board.collect() is None
                go[1].set()
            elif rank == 1:
                assert go[1].wait(60)
                wait_until(board, lambda: board.started(), "rank 0's message")
                assert board.missing() == [1, 2]
                board.post(b"second")
                assert board.missing() == [2]
                go[2].set()
            else:
                assert go[2].wait(60)
                wait_until(board, lambda: board.missing() == [2], "the messages of 0 and 1")
                board.post(b"third")
            assert collect(board) == [b"first", b"second", b"third"]
            rounds(transport, [b"again"])

        self.run(3, body)

    def test_a_fast_rank_may_post_the_next_round_early(self) -> None:
        posted = threading.Event()

        def body(transport: Transport) -> None:
            board = transport.board
            board.post(b"1")
            if transport.rank == 0:
                collect(board)
                board.post(b"2")
                assert board.missing() == [1]
                posted.set()
            else:
                assert posted.wait(60)
                wait_until(board, lambda: board.missing() == [], "round 1")
                assert board.collect() == [b"1", b"1"]
                wait_until(board, board.started, "round 2")
                board.post(b"2")
            assert collect(board) == [b"2", b"2"]

        self.run(2, body)

    @pytest.mark.parametrize("spin", [True, False])
    def test_wait_ends_by_time_and_by_wake(self, spin: bool) -> None:
        def body(transport: Transport) -> None:
            board = transport.board
            transport.barrier()
            start = time.monotonic()
            while time.monotonic() - start < 0.05:  # it may return early, but must return
                board.wait(0.05, spin=spin)
            assert time.monotonic() - start < 15.0
            board.wake()  # before the wait: not forgotten
            start = time.monotonic()
            board.wait(20.0, spin=spin)
            assert time.monotonic() - start < 15.0
            woken = threading.Event()
            timer = threading.Thread(target=lambda: (time.sleep(0.05), woken.set(), board.wake()))
            timer.start()
            start = time.monotonic()
            while not woken.is_set():
                board.wait(20.0, spin=spin)
            assert time.monotonic() - start < 15.0
            timer.join()
            transport.barrier()

        self.run(2, body)

    def test_a_post_wakes_the_waiting(self) -> None:
        def body(transport: Transport) -> float:
            board = transport.board
            transport.barrier()
            if transport.rank == 0:
                time.sleep(0.1)  # let the other one wait
                board.post(b"x")
                collect(board)
                return 0.0
            start = time.monotonic()
            wait_until(board, board.started, "the message", pause=20.0)
            waited = time.monotonic() - start
            board.post(b"y")
            collect(board)
            return waited

        assert max(self.run(2, body)) < 15.0


class FailureKit(Worlds):
    """abort and close between threads. ProcessKit has killed processes."""

    @pytest.mark.parametrize(
        "waiting", ["allreduce", "large", "barrier", "board", "broadcast", "idle board"]
    )
    def test_abort_wakes_waiting_ranks(self, waiting: str) -> None:
        together = threading.Barrier(3)

        def body(transport: Transport) -> str:
            transport.barrier()
            together.wait(60)
            if transport.rank == 1:
                time.sleep(0.05)  # let the others wait
                transport.abort("rank 1 ran out of patience")
                return ""
            start = time.monotonic()
            with pytest.raises(PeerLostError) as caught:
                wait_in(transport, waiting)
            assert time.monotonic() - start < 15.0
            with pytest.raises(PeerLostError):
                transport.barrier()  # and later calls too
            return str(caught.value)

        texts = self.run(3, body)
        assert mentions(texts[0], "patience")
        assert mentions(texts[2], "patience")

    def test_abort_wakes_its_own_rank(self) -> None:
        together = threading.Barrier(2)

        def body(transport: Transport) -> None:
            transport.barrier()
            together.wait(60)
            if transport.rank == 0:
                timer = threading.Timer(0.05, transport.abort, ["enough"])
                timer.start()
                with pytest.raises(PeerLostError, match="enough"):
                    transport.barrier()
                timer.join()
                with pytest.raises(PeerLostError, match="enough"):
                    wait_forever(transport.board)
            else:
                with pytest.raises(PeerLostError, match="enough"):
                    wait_in(transport, "idle board")

        self.run(2, body)

    def test_abort_reaches_the_splits(self) -> None:
        together = threading.Barrier(3)

        def body(transport: Transport) -> None:
            sub = transport.split([0, 1])
            transport.barrier()
            together.wait(60)
            if transport.rank == 2:
                transport.abort("the third one stumbled")
            elif transport.rank == 1:
                assert sub is not None
                with pytest.raises(PeerLostError, match="stumbled"):
                    sub.barrier()  # rank 0 never comes
            else:
                with pytest.raises(PeerLostError, match="stumbled"):
                    wait_forever(transport.board)

        self.run(3, body)

    def test_close_twice_and_in_any_order(self) -> None:
        def body(transport: Transport) -> None:
            check_sum(transport, 100_000)
            rounds(transport, [b"last"])
            if transport.rank == 2:
                time.sleep(0.05)  # the others are gone by then
            transport.close()
            transport.close()

        self.run(3, body)

    def test_a_closed_peer_is_an_error_when_it_is_needed(self) -> None:
        gone = threading.Event()

        def body(transport: Transport) -> None:
            check_sum(transport)
            if transport.rank == 0:
                transport.close()
                gone.set()
            else:
                assert gone.wait(60)
                with pytest.raises(PeerLostError):
                    transport.barrier()

        self.run(2, body)

    def test_a_part_names_the_ranks_as_the_whole_does(self) -> None:
        """A part, or a part of a part, names a lost rank by its number in the job."""
        gone = threading.Event()

        def body(transport: Transport) -> None:
            part = transport.split([1, 2, 3])
            last = part.split([1, 2]) if part is not None else None  # ranks 2 and 3
            if transport.rank == 3:
                assert part is not None
                assert last is not None
                last.close()
                part.abort("rank 3 has had enough")
                gone.set()
            assert gone.wait(60)
            for wire in {2: (last, part), 1: (part,)}.get(transport.rank, ()):
                with pytest.raises(PeerLostError) as caught:
                    wire.barrier()  # type: ignore[union-attr]
                assert "rank 3" in str(caught.value)
                assert caught.value.rank == 3

        self.run(4, body)
