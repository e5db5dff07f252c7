"""Conformance kit of Links: sendrecv, and the guarantees that collectives need.

Use it like ``tests.kits.transport``, with a ``joiner`` of Links.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from farandole.base.contracts import Link
from farandole.base.types import DType
from tests.kits.oracle import values
from tests.kits.transport import Worlds


class LinkKit(Worlds):
    @pytest.mark.parametrize("length", [1, 1000, 70_000, 20_000_003])
    def test_both_send_at_the_same_time(self, length: int) -> None:
        """Both send more than all buffers on the way can hold."""

        def body(link: Link) -> None:
            received = np.zeros(length, np.uint8)
            link.sendrecv(
                values(DType.UINT8, length, link.rank), 1 - link.rank, received, 1 - link.rank
            )
            assert np.array_equal(received, values(DType.UINT8, length, 1 - link.rank))

        self.run(2, body)

    @pytest.mark.parametrize("size", [2, 3, 5])
    def test_around_a_ring_with_uneven_lengths(self, size: int) -> None:
        def body(link: Link) -> None:
            left, right = (link.rank - 1) % size, (link.rank + 1) % size
            for turn in range(20):
                lengths = [(rank * 7919 + turn * 104_729) % 300_000 for rank in range(size)]
                received = np.zeros(lengths[left], np.uint8)
                link.sendrecv(values(DType.UINT8, lengths[link.rank], turn), right, received, left)
                assert np.array_equal(received, values(DType.UINT8, lengths[left], turn))

        self.run(size, body)

    def test_halves_and_nothing(self) -> None:
        def body(link: Link) -> None:
            other, empty = 1 - link.rank, np.zeros(0, np.uint8)
            link.sendrecv(None, other, None, other)
            link.sendrecv(empty, other, empty, other)
            link.sendrecv(empty, other, None, other)
            data = np.full(1000, 5, np.uint8)
            if link.rank == 0:
                link.sendrecv(data, 1, None, 1)
                link.sendrecv(None, 1, data, 1)
                assert (data == 6).all()
            else:
                link.sendrecv(None, 0, data, 0)
                data += 1
                link.sendrecv(data, 0, empty, 0)

        self.run(2, body)

    def test_memory_is_free_again_when_a_send_returns(self) -> None:
        def body(link: Link) -> None:
            data, other = np.zeros(50_000, np.uint8), 1 - link.rank
            for turn in range(40):
                received = np.zeros(50_000, np.uint8)
                data[:] = turn
                link.sendrecv(data, other, received, other)
                data[:] = 255
                assert (received == turn).all()

        self.run(2, body)

    def test_a_send_of_up_to_ahead_does_not_wait(self) -> None:
        sent = threading.Event()

        def body(link: Link) -> Any:
            data = values(DType.UINT8, link.ahead, 3)
            if link.rank == 0:
                link.sendrecv(data, 1, None, 1)
                sent.set()
                return None
            if link.ahead:
                # in a ring everybody is on the wire when such a send happens: this one waits for
                # rank 2
                waiting = np.zeros(1, np.uint8)
                link.sendrecv(None, 2, waiting, 2) if link.rank == 1 else _after(sent, link)
            if link.rank == 1:
                received = np.zeros(link.ahead, np.uint8)
                link.sendrecv(None, 0, received, 0)
                assert np.array_equal(received, data)
            return None

        self.run(3, body)

    @pytest.mark.parametrize("size", [3, 4])
    def test_all_ranks_may_send_before_they_receive(self, size: int) -> None:
        def body(link: Link) -> None:
            length = link.ahead // 2
            others = [rank for rank in range(size) if rank != link.rank]
            for _ in range(3):
                for other in others:
                    link.sendrecv(
                        values(DType.UINT8, length, 10 * link.rank + other), other, None, other
                    )
                for other in reversed(others):
                    received = np.zeros(length, np.uint8)
                    link.sendrecv(None, other, received, other)
                    assert np.array_equal(
                        received, values(DType.UINT8, length, 10 * other + link.rank)
                    )

        self.run(size, body)

    @pytest.mark.parametrize("seed", range(3))
    def test_random_permutations(self, seed: int) -> None:
        size = 4

        def body(link: Link) -> None:
            rng = np.random.default_rng(seed)
            for turn in range(60):
                to = np.roll(np.arange(size), int(rng.integers(1, size)))
                lengths = rng.choice([0, 1, 300, 65_536, 400_001], size)
                src, dst = int(np.flatnonzero(to == link.rank)[0]), int(to[link.rank])
                received = np.zeros(lengths[src], np.uint8)
                link.sendrecv(
                    values(DType.UINT8, int(lengths[link.rank]), turn), dst, received, src
                )
                assert np.array_equal(received, values(DType.UINT8, int(lengths[src]), turn))

        self.run(size, body)


def _after(sent: threading.Event, link: Link) -> None:
    assert sent.wait(60), "the send waited for its receive"
    link.sendrecv(np.ones(1, np.uint8), 1, None, 1)
