"""Conformance kit of wires between processes: results, and a killed peer."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any, ClassVar

import pytest

from farandole.errors import PeerLostError
from tests.kits.transport import check_sum, rounds, wait_in
from tests.kits.worlds import collect
from tests.pool import Died, procs


class ProcessKit:
    wire: ClassVar[str]  # what tests.pool.procs knows it by

    @pytest.mark.parametrize("size", [2, 3])
    def test_processes_reduce_and_agree(self, size: int) -> None:
        def body(transport: Any) -> int:
            for length in (1, 1000, 1_000_000):
                check_sum(transport, length)
                rounds(transport, [b"round"])
            transport.barrier()
            return int(transport.rank)

        assert procs(size, body, wire=self.wire) == list(range(size))

    @pytest.mark.parametrize("waiting", ["allreduce", "large", "barrier", "board", "idle board"])
    def test_a_killed_peer_is_named_immediately(self, waiting: str) -> None:
        """Rank 1 of 3 dies. Rank 2 must notice although, in a ring, it may be waiting only for rank
        0.
        """

        def body(transport: Any) -> tuple[str, float]:
            check_sum(transport, 10_000)
            if transport.rank == 1:
                transport.barrier()
                time.sleep(0.1)  # let the others wait
                os.kill(os.getpid(), signal.SIGKILL)
            start = time.monotonic()
            try:
                transport.barrier()
                wait_in(transport, waiting)
            except PeerLostError as error:
                # as the engine does: the first rank to notice notifies the others
                transport.abort(str(error))
                return str(error), time.monotonic() - start
            return "no error", 0.0

        results = procs(3, body, wire=self.wire, deaths=True)
        assert results[1] == Died(-signal.SIGKILL)
        for text, seconds in (results[0], results[2]):
            assert "rank 1" in text, results
            assert seconds < 15.0

    def test_any_thread_may_ask_whether_the_others_live(self) -> None:
        """A killed rank is named; a rank that has left cleanly is no loss."""

        def body(transport: Any) -> str:
            transport.board.verify()
            transport.board.post(b"here")
            if transport.rank == 1:  # in a barrier, the other one might be still
                collect(transport.board)
                os.kill(os.getpid(), signal.SIGKILL)
            found: list[str] = []

            def ask() -> None:
                end = time.monotonic() + 60
                while not found and time.monotonic() < end:
                    try:
                        transport.board.verify()
                        time.sleep(0.01)
                    except PeerLostError as error:
                        found.append(str(error))

            thread = threading.Thread(target=ask)
            thread.start()
            thread.join()
            return found[0]

        def leaves(transport: Any) -> None:
            transport.barrier()
            if transport.rank == 0:
                time.sleep(0.2)  # rank 1 closes its end meanwhile
                transport.board.verify()

        results = procs(2, body, wire=self.wire, deaths=True)
        assert "rank 1 " in results[0]
        procs(2, leaves, wire=self.wire)

    def test_a_peer_killed_in_the_middle_of_a_large_allreduce(self) -> None:
        def body(transport: Any) -> tuple[int, float]:
            start = time.monotonic()
            try:
                check_sum(transport, 10_000)
                if transport.rank == 0:
                    _kill_soon(0.15)
                while True:
                    check_sum(transport, 2_000_000)
            except PeerLostError as error:
                return error.rank, time.monotonic() - start

        results = procs(2, body, wire=self.wire, deaths=True)
        assert results[0] == Died(-signal.SIGKILL)
        assert results[1][0] == 0
        assert results[1][1] < 15.0

    def test_the_reason_of_an_abort_reaches_other_ranks(self) -> None:
        def body(transport: Any) -> str:
            if transport.rank == 1:
                transport.abort("rank 1 spilled the beans")
                return ""
            try:
                wait_in(transport, "idle board")
            except PeerLostError as error:
                return str(error)
            return "no error"

        assert "spilled the beans" in procs(2, body, wire=self.wire)[0]


def _kill_soon(seconds: float) -> None:
    threading.Timer(seconds, os.kill, [os.getpid(), signal.SIGKILL]).start()
