"""Averages by quorum: ranks with real sockets, in threads of one process."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from farandole.core.gossip.convener import Convener, ConvenerLink
from farandole.core.gossip.peer_group import PeerServer
from farandole.core.gossip.quorum import Quorum
from farandole.errors import PeerLostError
from farandole.net.handshake import new_secret
from tests.kits.messages import mentioning
from tests.kits.worlds import until

FOREVER = 600.0  # a grace that no test waits for


class Ranks:
    """Ranks that average two numbers by quorum; rank 0 convenes. ``ended``: those that have left in
    order.
    """

    def __init__(self, size: int, rule: Quorum) -> None:
        self.ended = set[int]()
        secret = new_secret(tls=False)
        self.servers = [
            PeerServer(rank, secret, ["127.0.0.1"], self.ended.__contains__) for rank in range(size)
        ]
        first = [np.zeros(2)]
        self.convener = Convener(
            self.servers[0],
            "g",
            range(size),
            rule,
            first,
            first,
            lambda values, means: [values[0] + means[0]],
        )
        address = json.loads(self.servers[0].address)
        self.links = [ConvenerLink("g", 0, address, server, first) for server in self.servers[1:]]
        self._threads: list[threading.Thread] = []
        for link in self.links:
            link.greet()
        self.convener.await_all()

    def attend(self, rank: int, turn: int, change: float, steps: int = 1) -> list[float]:
        """Return the values after an average with ``rank``; empty if there is none."""
        averages = self.links[rank - 1] if rank else self.convener
        values = averages.attend(turn, steps, [np.full(2, change)])
        return [] if values is None else values[0].tolist()

    def begin(self, rank: int, turn: int, change: float, steps: int = 1) -> list[list[float]]:
        """Attend in a thread. Return the list to which the values are added."""
        found: list[list[float]] = []
        thread = threading.Thread(
            target=lambda: found.append(self.attend(rank, turn, change, steps))
        )
        self._threads.append(thread)
        thread.start()
        until(lambda: rank in self.arrived or bool(found), "an arrival")
        return found

    @property
    def arrived(self) -> frozenset[int]:
        return self.convener._window.arrived

    def close(self) -> None:
        self.ended.update(range(len(self.servers)))
        for server in self.servers:
            server.close()
        for link in self.links:
            link.close()
        for thread in self._threads:
            thread.join(30.0)


@contextmanager
def averaging(size: int, quorum: float, grace: float) -> Iterator[Ranks]:
    ranks = Ranks(size, Quorum(quorum, grace))
    try:
        yield ranks
    finally:
        ranks.close()


def test_a_full_average_weighs_changes_by_steps() -> None:
    with averaging(3, 2, FOREVER) as ranks:
        found = [ranks.begin(rank, 0, 6.0 * rank, steps=1 + rank) for rank in (2, 1)]
        assert ranks.attend(0, 0, 0.0) == [(2 * 6 + 3 * 12) / 6] * 2
        until(lambda: all(found), "the end of the average")
        assert found == [[[8.0, 8.0]]] * 2
        assert (ranks.convener.number, ranks.convener.attendance) == (1, 3)


def test_a_late_rank_takes_the_average_and_counts_in_the_next() -> None:
    with averaging(3, 2, 0.0) as ranks:
        other = ranks.begin(1, 0, 2.0)
        assert ranks.attend(0, 0, 4.0) == [3.0, 3.0]
        assert ranks.attend(2, 0, 9.0, steps=2) == [3.0, 3.0]  # at once
        until(lambda: bool(other), "the end of the average")
        other = ranks.begin(1, 1, 1.0)
        assert ranks.attend(0, 1, 2.0) == [3.0 + (1 + 2 + 2 * 9) / 4] * 2
        assert ranks.attend(2, 1, 0.0) == [8.25, 8.25]


def test_ranks_that_leave_are_not_awaited() -> None:
    with averaging(4, 4, FOREVER) as ranks:
        first = ranks.begin(1, 0, 2.0)
        ranks.links[1].step_away()  # it has no more data
        ranks.servers[3].close()
        ranks.links[2].close()  # as if its process had ended
        assert ranks.attend(0, 0, 4.0) == [3.0, 3.0]
        until(lambda: bool(first), "the end of the average")
        second = [ranks.begin(2, 1, 3.0), ranks.begin(1, 1, 0.0)]  # it has data again
        assert ranks.attend(0, 1, 0.0) == [4.0, 4.0]
        until(lambda: all(second), "the end of the average")


@pytest.mark.parametrize("in_order", [True, False])
def test_the_end_of_the_convener_ends_the_wait(in_order: bool) -> None:
    with averaging(3, 3, FOREVER) as ranks:
        waiting = ranks.begin(1, 0, 2.0)
        ranks.ended.update({0} if in_order else set())
        ranks.servers[0].close()
        until(lambda: bool(waiting), "the end of the average")
        assert waiting == [[2.0, 2.0]], "the average of those that had come"
        if in_order:
            assert ranks.attend(2, 1, 1.0) == []
        else:
            with pytest.raises(PeerLostError, match=mentioning("rank 0")):
                ranks.attend(2, 1, 1.0)


def test_any_number_of_ranks_keeps_the_sum_of_their_changes() -> None:
    """No change is lost or counted twice, even with late ranks: with equal steps, the values move
    by the mean of the changes of each average.
    """
    moved: list[float] = []

    def combine(values: Sequence[Any], means: Sequence[Any]) -> Sequence[Any]:
        given = list(ranks.convener._given)
        moved.append(sum(float(each.changes[0][0]) for each in given))
        return [values[0] + means[0]]

    with averaging(4, 2, 0.001) as ranks:
        ranks.convener._combine = combine

        def train(rank: int) -> None:
            for turn in range(20):
                ranks.attend(rank, turn, 1.0)

        threads = [threading.Thread(target=train, args=(rank,)) for rank in range(4)]
        for thread in threads:
            thread.start()
        ended = threading.Thread(target=lambda: [thread.join() for thread in threads])
        ended.start()
        ended.join(0.0)
        left = dict(enumerate(threads))
        while left:
            for rank, thread in [*left.items()]:
                thread.join(0.01)
                if not thread.is_alive():
                    del left[rank]
                    (ranks.links[rank - 1] if rank else ranks.convener).step_away()
        ended.join(30.0)
        open_changes = sum(float(each.changes[0][0]) for each in ranks.convener._given)
        assert sum(moved) + open_changes == 4 * 20
