"""Ranks that wait at a server: for others, or because it is stopped."""

from __future__ import annotations

import contextlib
import queue
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from farandole.core.ps import connection as connection_module
from farandole.core.ps import server as server_module
from farandole.core.ps.client import CentreClient, Servers
from farandole.core.ps.clocks import Rule
from farandole.errors import AuthenticationError, PeerLostError
from tests.core.ps.test_server import group_of, serving
from tests.kits.messages import mentioning, mentions


@pytest.mark.parametrize("where", ["answer", "sending", "receiving"])
def test_a_stopped_server_without_replica_is_lost_in_the_end(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops while it answers, in the middle of received and sent arrays."""
    goes_on, warned = threading.Event(), list[str]()
    monkeypatch.setattr(
        connection_module.logger, "warning", lambda text, *values: warned.append(text % values)
    )

    def stopped(*args: Any, **kwargs: Any) -> Any:
        goes_on.wait(60)
        raise AuthenticationError("it was stopped")

    with serving() as ranks:
        servers = ranks.client(0, patience=0.01)
        large = [np.zeros(1 << 21)]
        centre = group_of(servers, 1, Rule(), large)
        centre.push(large, [np.ones(1 << 21)])
        (server,) = ranks.servers[0]
        monkeypatch.setattr(server._newcomers, "admit", stopped)
        monkeypatch.setattr(connection_module, "SILENCE", 0.05)
        monkeypatch.setattr(connection_module, "PROOF", 0.1)

        receive_into, send = server_module.receive_into, server_module.send

        def receives(*arguments: Any) -> None:
            goes_on.wait(60)
            receive_into(*arguments)

        def sends(session: Any, message: Any, arrays: Any = None) -> None:
            send(session, message)
            session.stream.send(b"head")
            goes_on.wait(60)

        if where == "sending":
            monkeypatch.setattr(server_module, "receive_into", receives)
        elif where == "receiving":
            monkeypatch.setattr(server_module, "send", sends)
        lock = server.changed if where == "answer" else contextlib.nullcontext()
        with (
            lock,
            pytest.raises(
                PeerLostError,
                match=mentioning("server 0", "parameter server"),
            ),
        ):
            centre.push(large, [np.ones(1 << 21)])
        goes_on.set()
        servers.close(failed=True)
    assert any(mentions(text, "connections", "--replicas 2") for text in warned)


@contextlib.contextmanager
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, queue.Queue[str]]]:
    """Yield ranks whose server warns early, and its warnings."""
    monkeypatch.setattr(server_module, "LOOK", 0.02)
    warned = queue.Queue[str]()
    monkeypatch.setattr(
        server_module.logger, "warning", lambda text, *values: warned.put(text % values)
    )
    with serving() as ranks:
        (server,) = ranks.servers[0]
        server._warning = 0.05
        yield ranks, warned


def test_ranks_that_others_wait_for_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with impatient(monkeypatch) as (ranks, warned):

        def fn(rank: int, servers: Servers) -> None:
            centre = group_of(servers, 3, Rule(sync=True), [np.zeros(1)])
            if rank == 2:
                text = warned.get(timeout=60.0)
                assert re.match(
                    r"rank [01] has waited for \d+ s at .* \(of test.weights.1\) for rank\(s\) ",
                    text,
                )
                while "rank(s) 2 " not in text:
                    text = warned.get(timeout=60.0)
            centre.push([np.zeros(1)], [np.ones(1)])
            servers.close()

        ranks.run(3, fn)


@pytest.mark.parametrize("servers_of_each", [1, 2], ids=["alone", "replicas"])
@pytest.mark.parametrize(
    ("rule", "pushes", "flush"),
    [
        (Rule(sync=True), 1, False),
        (Rule(bound=2), 3, False),
        (Rule(), 3, True),
        (Rule(sync=True), 0, True),
    ],
)
def test_one_rank_with_different_weights_is_reported_on_all(
    rule: Rule, pushes: int, flush: bool, servers_of_each: int
) -> None:
    """Rank ``odd`` adds some weights and omits others. Other ranks wait for it, or flush at the
    end.
    """

    def body(odd: int) -> Callable[[int, Servers], str]:
        def fn(rank: int, servers: Servers) -> str:
            first = [np.zeros(1), np.zeros(2)]
            centre = group_of(servers, 2, rule, first)
            centre.push(first, [np.ones(1), np.ones(2)])
            try:
                if rank == odd:
                    first = [np.zeros(1), np.zeros((2, 3))]
                    centre = servers.group(
                        "test.weights.1.2",
                        range(2),
                        rule,
                        "spec",
                        first,
                        ["w0", "new"],
                        after=centre,
                    )
                for _ in range(1 if rank == odd else pushes):
                    centre.push(first, [np.ones_like(one) for one in first])
                if flush:
                    centre.flush(first, [np.ones_like(one) for one in first])
                both_flush.wait(60.0)  # a barrier of both
                centre.push(first, [np.ones_like(one) for one in first])
            except ValueError as error:
                both_flush.abort()
                return str(error)
            except threading.BrokenBarrierError:
                return "in consequence"
            return ""

        return fn

    for odd in range(2):
        both_flush = threading.Barrier(2)
        with serving(count=2, replicas=servers_of_each) as ranks:
            warned = ranks.run(2, body(odd))
        assert [text for text in warned if text != "in consequence"], warned
        for text in warned:
            assert text == "in consequence" or re.match(
                rf"test: all ranks must train the same weights, but rank {odd} has frozen or removed"
                r" w1 of shape "
                r"\(2,\) and type float64 and has added new of shape \(2, 3\) .* after exchange 1,"
                rf" and rank {1 - odd} "
                r"continued .* in the same step; .* call average_weights\(\) before$",
                text,
            ), text


def test_pushing_to_an_abandoned_centre_is_an_error() -> None:
    """No rank waits in this mode, and ranks may take different numbers of steps."""
    with serving() as ranks:
        (server,) = ranks.servers[0]
        server._warning = 0.0
        moved = threading.Event()

        def fn(rank: int, servers: Servers) -> None:
            first = [np.zeros(1)]
            centre = group_of(servers, 2, Rule(), first)
            centre.push(first, [np.ones(1)])
            if rank == 0:
                centre = servers.group(
                    "test.weights.1.2", range(2), Rule(), "spec", first, ["other"], after=centre
                )
                centre.push(first, [np.ones(1)])
                moved.set()
            else:
                assert moved.wait(60.0)
            with pytest.raises(ValueError, match=mentioning("rank 0", "w0", "rank 1")):
                push_on(centre, first)

        def push_on(centre: CentreClient, first: list[Any]) -> None:
            while True:
                centre.push(first, [np.ones(1)])

        ranks.run(2, fn)


def test_a_rank_alone_at_a_new_centre_is_warned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with impatient(monkeypatch) as (ranks, warned):

        def fn(rank: int, servers: Servers) -> None:
            if rank == 0:
                text = warned.get(timeout=60.0)
                assert re.match(
                    r"rank 1 has waited for \d+ s at .* for rank\(s\) 0 to push: its weights"
                    r" initialize",
                    text,
                )
                assert mentions(text, "parameters", "step")
            group_of(servers, 2, Rule(), [np.zeros(1)]).push([np.zeros(1)], [np.ones(1)])
            servers.close()

        ranks.run(2, fn)
