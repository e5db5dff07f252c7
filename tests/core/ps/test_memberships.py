"""Parameter servers of an elastic job: replicas that come later, and centres that outlive their
ranks.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from farandole.core.ps import snapshot
from farandole.core.ps.client import Servers
from farandole.core.ps.clocks import Rule
from farandole.core.ps.server import CentreServer
from farandole.errors import PeerLostError, ServerLostError
from farandole.net.handshake import new_secret
from tests.pool import threads

ADAM = Rule(sync=True, optimizer="adam", lr=0.1)


class Chain:
    """One server whose processes are lost and added, and the chain that they have published."""

    def __init__(self) -> None:
        self.secret = new_secret()
        self.published: list[str] = []
        self.lost: set[tuple[str, int]] = set()
        self.processes = [self._process()]
        self.processes[0].lead()

    def _process(self) -> CentreServer:
        def ended(scope: str, rank: int) -> str:
            return "lost" if (scope, rank) in self.lost else ""

        return CentreServer(
            self.secret, ["127.0.0.1"], ended, publish=lambda chain: self._publish(chain)
        )

    def _publish(self, chain: list[str]) -> None:
        self.published = chain

    def add(self) -> None:
        """Add a replica, as all earlier processes learn."""
        made = self._process()
        for process in self.processes:
            process.adopt(made.address)
        self.processes.append(made)

    def kill(self) -> None:
        """End the primary."""
        self.processes.pop(0).close()

    def servers(self, rank: int, scope: str = "1.1") -> Servers:
        return Servers(
            [self.published], "127.0.0.1", self.secret, rank, scope, 0.0, lambda _: self.published
        )


@contextmanager
def chain() -> Iterator[Chain]:
    made = Chain()
    try:
        yield made
    finally:
        for process in made.processes:
            process.close()


class Rank:
    """A rank that pushes 1, 2, ... and remembers its weights."""

    def __init__(
        self, chain: Chain, rank: int, size: int, rule: Rule, scope: str = "1.1", commit: int = 0
    ) -> None:
        self.rank, self.weights = rank, [np.ones((3, 4)), np.zeros(5, dtype="f4")]
        self.servers = chain.servers(rank, scope)
        self.client = self.servers.group(
            "test.weights.1", range(size), rule, "spec", self.weights, ["a", "b"], commit=commit
        )

    def push(self, change: float = 1.0) -> Any:
        changes = [np.full_like(weight, change) for weight in self.weights]
        found = self.client.push(self.weights, changes)
        self.weights = changes
        return found


def together(ranks: list[Rank], times: int = 1, change: float = 1.0) -> list[Any]:
    """Push on all ranks at the same time; return the weights of all ranks."""

    class Wire:
        def __init__(self, rank: Rank) -> None:
            self.rank = rank

        def abort(self, why: str) -> None:
            self.rank.servers.close(failed=True)

        def close(self) -> None: ...

    def work(wire: Wire) -> None:
        for _ in range(times):
            wire.rank.push(change * (wire.rank.rank + 1))

    threads(len(ranks), lambda rank: Wire(ranks[rank]), work)
    return [rank.weights for rank in ranks]


def pushes(rank: Rank, times: int) -> None:
    for _ in range(times):
        rank.push()


def undisturbed(rule: Rule, pushes: int) -> Any:
    with chain() as alone:
        ranks = [Rank(alone, rank, 2, rule) for rank in range(2)]
        return together(ranks, pushes)[0]


@pytest.mark.parametrize("rule", [ADAM, Rule(sync=True, optimizer="momentum"), Rule(sync=True)])
def test_a_replica_that_came_later_continues_exactly(rule: Rule) -> None:
    with chain() as servers:
        ranks = [Rank(servers, rank, 2, rule) for rank in range(2)]
        for _ in range(3):
            together(ranks, 2)
            servers.add()
            together(ranks, 1)
            servers.kill()
        found = together(ranks, 2)
    expected = undisturbed(rule, 11)
    for own in found:
        for mine, theirs in zip(own, expected, strict=True):
            assert mine.tobytes() == theirs.tobytes()


def test_a_step_is_half_collected_when_a_replica_comes() -> None:
    """The push of one rank is in no weights yet, and its rank still waits for the answer."""
    with chain() as servers:
        ranks = [Rank(servers, rank, 2, ADAM) for rank in range(2)]
        early = threading.Thread(target=ranks[1].push, args=(2.0,))
        early.start()
        group = next(iter(servers.processes[0]._groups.values()))
        with servers.processes[0].changed:
            servers.processes[0].changed.wait_for(lambda: group.clocks.clocks[1] == 1, 10.0)
        servers.add()
        servers.kill()
        ranks[0].push(1.0)
        early.join()
        found = [rank.weights for rank in ranks]
    expected = undisturbed(ADAM, 1)
    for own in found:
        np.testing.assert_array_equal(own[0], expected[0])


def test_without_a_replica_the_server_is_lost() -> None:
    with chain() as servers:
        rank = Rank(servers, 0, 1, Rule())
        rank.push()
        servers.kill()
        with pytest.raises(ServerLostError):
            rank.push()


def test_asynchronous_ranks_continue_from_the_centre() -> None:
    """No acknowledged push is lost, and the first exchange of each rank only fetches the centre."""
    rule = Rule(bound=2)
    with chain() as servers:
        before = [Rank(servers, rank, 3, rule) for rank in range(3)]
        together(before, 2)  # adds 2 * (1 + 2 + 3)
        servers.add()
        servers.kill()
        after = [Rank(servers, rank, 2, rule, "2.1", commit=1) for rank in range(2)]
        for rank in after:
            assert rank.push(100.0) == (0, True)
            assert rank.weights[0][0, 0] == 1 + 12
        assert after[0].push(10.0) == (0, False)
        assert after[1].push(10.0) == (1, False)
        assert after[1].weights[0][0, 0] == 1 + 12 + 20
        with pytest.raises(PeerLostError):  # a rank that has missed the change
            before[2].push()


def test_no_rank_waits_for_the_clock_of_a_lost_one() -> None:
    rule = Rule(bound=1)
    with chain() as servers:
        ranks = [Rank(servers, rank, 2, rule) for rank in range(2)]
        ranks[0].push()
        servers.lost.add(("1.1", 1))
        ranks[1].servers.close(failed=True)
        with pytest.raises(PeerLostError) as caught:
            pushes(ranks[0], 3)  # waits for rank 1 in the second push, at the latest
        assert caught.value.rank == 1
        alone = Rank(servers, 0, 1, rule, "2.1")
        pushes(alone, 5)
        joined = [Rank(servers, rank, 2, rule, "3.1") for rank in range(2)]
        for rank in joined:
            pushes(rank, 2)
        group = servers.processes[0]._groups["3.1", "test.weights.1/0,1"]
        assert group.clocks.clocks == {0: 1, 1: 1}


@pytest.mark.parametrize("returned", [1, 2])
def test_synchronous_ranks_return_to_a_commit(returned: int) -> None:
    """Ranks bring the weights of the commit, and the servers have kept the optimizer's state."""
    with chain() as servers:
        ranks = [Rank(servers, rank, 2, ADAM) for rank in range(2)]
        weights = {}
        for commit in (1, 2):
            weights[commit] = [each.copy() for each in together(ranks, 2)[0]]
            for rank in ranks:
                rank.servers.commit(commit)
        expected = {1: weights[2], 2: [each.copy() for each in together(ranks, 2)[0]]}
        servers.add()
        servers.kill()
        after = [Rank(servers, rank, 2, ADAM, "2.1", commit=returned) for rank in range(2)]
        for rank in after:
            rank.weights = [each.copy() for each in weights[returned]]
        found = together(after, 2)
        for own in found:
            np.testing.assert_array_equal(own[0], expected[returned][0])
        # the next membership may fail before the first commit
        again = [Rank(servers, rank, 2, ADAM, "3.1", commit=returned) for rank in range(2)]
        for rank in again:
            rank.weights = [each.copy() for each in weights[returned]]
        np.testing.assert_array_equal(together(again, 2)[0][0], expected[returned][0])


def test_a_snapshot_is_complete() -> None:
    rule = Rule(sync=True, optimizer="momentum")
    with chain() as servers:
        ranks = [Rank(servers, rank, 2, rule) for rank in range(2)]
        together(ranks, 3)
        ranks[0].servers.commit(1)
        ranks[1].servers.leave()
        server = servers.processes[0]
        message, arrays = snapshot.taken(server._groups, server._gone)
        copies = [array.copy() for array in arrays]
        groups, gone = snapshot.restored(json.loads(json.dumps(message)), copies)
        assert gone == server._gone
        again, others = snapshot.taken(groups, gone)
        assert json.dumps(again) == json.dumps(message)
        for one, other in zip(arrays, others, strict=True):
            np.testing.assert_array_equal(one, other)
