"""Servers and clients over real sockets, in threads of one process."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from farandole.core.ps import connection as connection_module
from farandole.core.ps import replicas as replicas_module
from farandole.core.ps import server as server_module
from farandole.core.ps.client import CentreClient, Servers
from farandole.core.ps.clocks import Rule
from farandole.core.ps.dial import dial
from farandole.core.ps.server import CentreServer
from farandole.errors import AuthenticationError, PeerLostError
from farandole.net.handshake import hang_up, new_secret
from tests.kits.messages import mentioning
from tests.pool import threads

SHAPES = [(3, 4), (), (0,), (1100, 1000)]


class Ranks:
    """The ranks of a job, as threads, with ``count`` servers of so many replicas."""

    def __init__(self, count: int, replicas: int, tls: bool = False) -> None:
        self.secret = new_secret(tls=tls)
        self.left: dict[int, str] = {}
        self.servers: list[list[CentreServer]] = []
        for _ in range(count):
            own: list[CentreServer] = []
            for place in range(replicas):
                own.append(
                    CentreServer(self.secret, ["127.0.0.1"], self._ended, self._others(own, place))
                )
            self.servers.append(own)

    def _ended(self, scope: str, rank: int) -> str:
        return self.left.get(rank, "")

    @staticmethod
    def _others(own: Sequence[CentreServer], place: int) -> Callable[[], list[str]]:
        return lambda: [server.address for server in own[place + 1 :]]

    def client(self, rank: int, patience: float = 0.0) -> Servers:
        addresses = [[server.address for server in own] for own in self.servers]
        return Servers(addresses, "127.0.0.1", self.secret, rank, "0.1", patience)

    def run(self, n: int, fn: Callable[[int, Servers], Any]) -> list[Any]:
        class Wire:
            """Closed by ``threads`` when a rank fails."""

            def __init__(self, servers: Servers) -> None:
                self.servers = servers

            def abort(self, why: str) -> None:
                self.servers.close(failed=True)

            def close(self) -> None: ...

        return threads(
            n,
            lambda rank: Wire(self.client(rank)),
            lambda wire: fn(wire.servers.rank, wire.servers),
        )


@contextmanager
def serving(count: int = 1, replicas: int = 1, tls: bool = False) -> Iterator[Ranks]:
    made = Ranks(count, replicas, tls)
    try:
        yield made
    finally:
        for server in (server for own in made.servers for server in own):
            server.close()


def weights(dtype: str = "f8") -> list[Any]:
    return [np.ones(shape, dtype=dtype) for shape in SHAPES]


def group_of(
    servers: Servers, n: int, rule: Rule, own: Sequence[Any], statistics: Sequence[Any] = ()
) -> CentreClient:
    names = [f"w{number}" for number in range(len(own))]
    return servers.group("test.weights.1", range(n), rule, "spec", own, names, statistics)


def trained(
    servers: Servers,
    n: int,
    rule: Rule,
    steps: int,
    each: Callable[[int], None] = lambda step: None,
) -> Any:
    """Return each rank's last weights. Each step of rank r adds r + 1."""
    anchors = weights()
    for one in anchors[1:]:
        one += servers.rank  # rank 0's count
    centre = group_of(servers, n, rule, anchors)
    for step in range(steps):
        each(step)
        changes = [np.full(shape, servers.rank + 1.0) for shape in SHAPES]
        centre.push(anchors, changes)
        anchors = changes
    return anchors


@pytest.mark.parametrize("tls", [False, True], ids=["", "tls"])
def test_centres_of_synchronous_and_asynchronous_ranks(
    tls: bool,
) -> None:
    with serving(count=2, tls=tls) as ranks:

        def fn(rank: int, servers: Servers) -> Any:
            return trained(servers, 3, Rule(sync=True), 4)

        for found in ranks.run(3, fn):
            assert [one.shape for one in found] == SHAPES
            assert all(np.all(one == 1.0 + 4 * 2.0) for one in found)
    with serving(count=3) as ranks:

        def other(rank: int, servers: Servers) -> Any:
            own = trained(servers, 3, Rule(bound=1), 4)
            servers.close()
            return own

        ranks.run(3, other)

        def last(rank: int, servers: Servers) -> Any:
            into = weights()
            group_of(servers, 3, Rule(bound=1), into).pull(into)
            return into

        (found,) = ranks.run(1, last)
        assert all(np.all(one == 1.0 + 4 * 6.0) for one in found)


def test_types_and_statistics_go_together() -> None:
    with serving(count=2) as ranks:

        def fn(rank: int, servers: Servers) -> Any:
            own = [np.zeros(3, dtype=np.float32), np.zeros(2)]
            statistics = [np.full(2, float(rank))]
            centre = group_of(servers, 2, Rule(sync=True), own, statistics)
            changes = [np.full(3, 1.0 + rank, dtype=np.float32), np.full(2, 5.0)]
            centre.push([*own, *statistics], [*changes, *statistics])
            return [*changes, *statistics]

        for found in ranks.run(2, fn):
            assert [one.tolist() for one in found] == [[1.5] * 3, [5.0] * 2, [0.5] * 2]
            assert [one.dtype.name for one in found] == ["float32", "float64", "float64"]


def test_a_primary_that_dies_in_the_middle_loses_nothing() -> None:
    with serving(count=2, replicas=3) as ranks:
        killed = threading.Event()

        def fn(rank: int, servers: Servers) -> Any:
            def each(step: int) -> None:
                if step in (2, 4) and rank == 0:
                    ranks.servers[1][step // 4].close()
                    killed.set()

            own = trained(servers, 3, Rule(sync=True), 6, each)
            servers.close()
            return own

        for found in ranks.run(3, fn):
            assert all(np.all(one == 1.0 + 6 * 2.0) for one in found)
        assert killed.is_set()


def test_a_server_without_a_replica_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "GRACE", 0.0)
    with serving(count=2) as ranks:

        def fn(rank: int, servers: Servers) -> str:
            def each(step: int) -> None:
                if step == 2 and rank == 0:
                    ranks.servers[1][0].close()

            with pytest.raises(PeerLostError) as lost:
                trained(servers, 3, Rule(bound=2), 99, each)
            servers.close(failed=True)
            return str(lost.value)

        # Ranks that wait at the other server hear that the first to notice has gone.
        messages = ranks.run(3, fn)
        wanted = r"parameter server 1 on .* \(process \d+\) was lost .*no replica"
        named = [text for text in messages if re.search(wanted, text)]
        assert named, messages
        assert all(text in named or "closed" in text for text in messages), messages


def test_unequal_models_or_strategies_are_reported_on_all_ranks() -> None:
    with serving() as ranks:
        turns = [threading.Event() for _ in range(3)]

        def fn(rank: int, servers: Servers) -> None:
            own = [np.ones(3), np.ones(4 if rank == 2 else 5)]

            def both() -> None:
                centre = group_of(servers, 3, Rule(sync=True), own)
                turns[rank].set()
                centre.push(own, own)

            if rank:
                turns[rank - 1].wait(60)
            with pytest.raises(ValueError, match=mentioning("rank 2", "w1", "(4,)", "rank 0")):
                both()

        ranks.run(3, fn)


def trained_until_lost(centre: CentreClient, anchors: list[Any]) -> None:
    while True:
        centre.push(anchors, [np.ones(1)])


def test_a_lost_rank_ends_the_wait_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "GRACE", 0.0)
    with serving() as ranks:

        def fn(rank: int, servers: Servers) -> Any:
            own = [np.zeros(1)]
            centre = group_of(servers, 3, Rule(sync=True), own)
            pushed = [np.ones(1)]
            centre.push(own, pushed)
            if rank == 2:
                servers.close()  # bye
            elif rank == 1:
                centre.push(pushed, [np.ones(1)])
                servers.close(failed=True)
            else:
                with pytest.raises(PeerLostError, match=mentioning("rank 1")) as lost:
                    trained_until_lost(centre, pushed)
                assert lost.value.rank == 1

        ranks.run(3, fn)


def test_ranks_that_never_came_and_have_left_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "LOOK", 0.05)
    with serving() as ranks:
        ranks.left = {0: "bye", 2: "leave"}

        def fn(place: int, servers: Servers) -> Any:
            servers.rank = 1
            own = [np.zeros(1)]
            centre = group_of(servers, 3, Rule(sync=True), own)
            pushed = [np.full(1, 7.0)]
            centre.push(own, pushed)
            return pushed[0].tolist()

        addresses = [[server.address for server in own] for own in ranks.servers]
        client = Servers(addresses, "127.0.0.1", ranks.secret, 1, "0.1")
        assert fn(0, client) == [7.0]
        client.close()


def test_a_flush_waits_for_answers_that_are_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank 0 flushes while rank 1 is about to get the answer to its push of the same step."""
    until = CentreServer.until

    def slow(server: CentreServer, true: Callable[[], object], name: Any, client: Any) -> bool:
        found = until(server, true, name, client)
        centre = server.group(name).centre
        if client.rank == 1 and centre is not None and server.group(name).clocks.version == 1:
            server.changed.wait_for(lambda: centre.values[0][0] > 1, 0.3)
        return found

    monkeypatch.setattr(CentreServer, "until", slow)
    with serving() as ranks:

        def fn(rank: int, servers: Servers) -> Any:
            own, pushed = [np.zeros(1)], [np.ones(1)]
            centre = group_of(servers, 2, Rule(sync=True), own)
            centre.push(own, pushed)
            stepped = pushed[0].copy()
            centre.flush(own, [np.full(1, 2.0)])
            servers.close()
            return stepped

        assert [found.tolist() for found in ranks.run(2, fn)] == [[1.0], [1.0]]


@pytest.mark.parametrize("heard", [0, 1, 2], ids=["no answer", "one", "one, and half of the other"])
def test_an_interrupted_push_counts_once(heard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "GRACE", 30.0)
    calls: list[str] = []
    name, last = [("receive", 1), ("receive", 2), ("receive_into", 2)][heard]
    function = getattr(connection_module, name)

    def receive(*args: Any) -> Any:
        calls.append(name)
        if len(calls) == last:
            raise KeyboardInterrupt
        return function(*args)

    with serving(count=2) as ranks:
        one, other = ranks.client(0), ranks.client(1)
        zeros = [np.zeros(1), np.zeros(1)]
        centre, near = (group_of(servers, 2, Rule(), zeros) for servers in (one, other))
        centre.push(zeros, [np.ones(1), np.ones(1)])
        with monkeypatch.context() as patch:
            patch.setattr(connection_module, name, receive)
            with pytest.raises(KeyboardInterrupt):
                centre.push(zeros, [np.ones(1), np.ones(1)])
        for wanted in (2.0, 3.0, 4.0):
            into = [np.ones(1), np.ones(1)]
            centre.push(zeros, into)
            assert [float(value[0]) for value in into] == [wanted, wanted]
        into = [np.ones(1), np.ones(1)]
        near.push(zeros, into)
        assert [float(value[0]) for value in into] == [5.0, 5.0], "the others go on"
        for servers in (one, other):
            servers.close()


def test_a_flush_after_an_interrupted_push_blocks_no_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "GRACE", 30.0)
    with serving() as ranks:
        (server,) = ranks.servers[0]

        calls: list[Any] = []
        await_answer = connection_module.await_answer

        def interrupted(*args: Any) -> Any:
            calls.append(args)
            if len(calls) < 3:  # the server wants the first weights
                return await_answer(*args)
            (group,) = server._groups.values()
            with server.changed:
                assert server.changed.wait_for(lambda: group.clocks.clocks[0] == 1, 60.0)
            raise KeyboardInterrupt

        first = ranks.client(0)
        centre = group_of(first, 2, Rule(sync=True), [np.zeros(1)])
        with monkeypatch.context() as patch:
            patch.setattr(connection_module, "await_answer", interrupted)
            with pytest.raises(KeyboardInterrupt):
                centre.push([np.zeros(1)], [np.ones(1)])
        centre.flush([np.zeros(1)], [np.ones(1)])

        def fn(place: int, unused: Servers) -> None:
            other = ranks.client(1)
            near = group_of(other, 2, Rule(sync=True), [np.zeros(1)])
            for _ in range(2):
                near.push([np.zeros(1)], [np.ones(1)])
            other.close()

        ranks.run(1, fn)
        first.close()


def test_a_late_answer_to_bye_does_no_harm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "GRACE", 0.0)
    monkeypatch.setattr(connection_module, "LAST", 0.1)
    with serving(replicas=2) as ranks:
        one, other = ranks.client(0), ranks.client(1)
        zeros = [np.zeros(1)]
        centres = [group_of(servers, 2, Rule(), zeros) for servers in (one, other)]
        for centre in centres:
            centre.push(zeros, [np.ones(1)])
        (primary, replica), *_ = ranks.servers
        with primary.changed:
            one.close()
            assert primary._ranks == 2
            assert primary.changed.wait_for(lambda: primary._ranks == 1, 60.0)
        into = [np.ones(1)]
        centres[1].push(zeros, into)
        assert into[0][0] == 3.0
        assert not replica._promoted
        other.close()


def test_all_ranks_follow_one_to_the_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "GRACE", 30.0)
    with serving(replicas=2) as ranks:

        def fn(rank: int, servers: Servers) -> Any:
            def each(step: int) -> None:
                if step == 2 and not rank:
                    session = servers.servers[0]._session
                    assert session is not None
                    hang_up(session.sock)

            own = trained(servers, 3, Rule(sync=True), 4, each)
            servers.close()
            return own

        for found in ranks.run(3, fn):
            assert all(np.all(one == 1.0 + 4 * 2.0) for one in found)
        assert ranks.servers[0][1]._promoted


def test_the_replica_replaces_a_stopped_primary_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "SILENCE", 0.05)
    looks = threading.Semaphore(0)

    def looked(*args: Any) -> Any:
        looks.release()
        return dial(*args)

    with serving(replicas=2) as ranks:
        monkeypatch.setattr(connection_module, "reach", looked)
        primary, replica = ranks.servers[0]
        met, goes_on = threading.Barrier(2), threading.Event()

        def stopped(*args: Any, **kwargs: Any) -> Any:
            goes_on.wait(60)
            raise AuthenticationError("it was stopped")

        def fn(rank: int, servers: Servers) -> Any:
            zeros, into = [np.zeros(1)], [np.ones(1)]
            centre = group_of(servers, 2, Rule(sync=True), zeros)
            met.wait(60)
            assert rank or all(looks.acquire(timeout=60.0) for _ in range(4)), (
                "two to connect, two while rank 1 waits"
            )
            centre.push(zeros, into)
            assert not replica._promoted
            met.wait(60)
            servers.close()
            return into[0].tolist()

        assert ranks.run(2, fn) == [[1.0], [1.0]]
        servers, zeros, into = ranks.client(2), [np.zeros(1)], [np.ones(1)]
        centre = servers.group("other", [2], Rule(), "spec", zeros, ["w"])
        monkeypatch.setattr(connection_module, "PROOF", 0.1)
        monkeypatch.setattr(primary._newcomers, "admit", stopped)
        with primary.changed:
            centre.push(zeros, into)
        goes_on.set()
        assert into[0][0] == 1.0
        assert replica._promoted
        servers.close()


def test_a_stopped_replica_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replicas_module, "ANSWER", 0.1)
    with serving(replicas=2) as ranks:
        servers = ranks.client(0)
        zeros, into = [np.zeros(1)], [np.ones(1)]
        centre = group_of(servers, 1, Rule(), zeros)
        replica = ranks.servers[0][1]
        with replica.changed:
            centre.push(zeros, into)
            centre.push(into, [np.ones(1)])
            assert replica.changed.wait_for(lambda: replica._closed, 60.0)
        centre.pull(into)
        assert into[0][0] == 2.0
        servers.close()


def test_an_ended_rank_is_let_go_while_others_are_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "LOOK", 0.1)
    with serving() as ranks:
        ranks.left = {0: "bye"}
        (server,) = ranks.servers[0]
        done = threading.Event()

        def change() -> None:
            while not done.wait(0.001):
                with server.changed:
                    server.changed.notify_all()

        def fn(rank: int, servers: Servers) -> Any:
            if not rank:
                change()
                return None
            try:
                pushed = [np.ones(1)]
                group_of(servers, 2, Rule(sync=True), [np.zeros(1)]).push([np.zeros(1)], pushed)
                servers.close()
                return pushed[0].tolist()
            finally:
                done.set()

        assert ranks.run(2, fn) == [None, [1.0]]


def test_arrays_that_are_not_those_of_the_beginning_are_refused() -> None:
    with serving() as ranks:
        servers = ranks.client(0)
        zeros = [np.zeros(1), np.zeros(2)]
        centre = group_of(servers, 1, Rule(), zeros)
        with pytest.raises(
            ValueError,
            match=mentioning("3", "2", "weights", "optimizer"),
        ):
            centre.push([*zeros, np.zeros(1)], [*zeros, np.zeros(1)])
        with pytest.raises(ValueError, match=mentioning("array 1", "3", "2")):
            centre.push(zeros, [np.zeros(1), np.zeros(3)])
        with pytest.raises(ValueError, match=mentioning("1", "weights")):
            centre.pull(zeros[:1])
        into = [np.ones(1), np.ones(2)]
        centre.push(zeros, into)
        assert [one.tolist() for one in into] == [[1.0], [1.0, 1.0]]
        servers.close()


def test_a_stranger_is_refused() -> None:
    with serving() as ranks:
        import json

        address = json.loads(ranks.servers[0][0].address)
        with pytest.raises((AuthenticationError, OSError)):
            dial(address, "127.0.0.1", new_secret())
        assert trained(ranks.client(0), 1, Rule(), 1)[0][0, 0] == 2.0, "and the job goes on"
