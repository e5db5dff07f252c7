"""States of the servers' optimizers in a commit, loaded by another number of servers."""

from __future__ import annotations

import logging
import threading
from typing import Any

import numpy as np
import pytest

from farandole.base.pickled import dumps
from farandole.core.ps.client import CentreClient, Servers
from farandole.core.ps.clocks import Rule
from farandole.core.ps.saved_states import LoadedStates, SavedOptimizer
from farandole.errors import DataError
from tests.core.ps.test_memberships import ADAM, Chain, Rank, chain, together, undisturbed
from tests.core.ps.test_server import serving
from tests.kits.messages import mentioning, mentions

SHAPES = [(3, 4), (), (0,), (1100, 1000)]  # of the last there are two pieces
NAMES = [f"w{number}" for number in range(len(SHAPES))]
RULES = [Rule(sync=True, optimizer=kind, lr=0.1) for kind in ("momentum", "adagrad", "adam")]


def begun(rank: int, servers: Servers, rule: Rule, weights: list[Any]) -> CentreClient:
    return servers.group("test.weights.1", range(2), rule, "spec", weights, NAMES)


def steps_of(rank: int, centre: CentreClient, weights: list[Any], steps: range) -> list[Any]:
    for step in steps:
        random = np.random.default_rng([rank, step])
        changes = [random.normal(size=weight.shape).astype(weight.dtype) for weight in weights]
        centre.push(weights, changes)
        weights = changes
    return weights


def initial() -> list[Any]:
    return [np.ones(shape, "f4" if place % 2 else "f8") for place, shape in enumerate(SHAPES)]


def trained(
    servers: int,
    rule: Rule,
    steps: range,
    weights: list[Any] | None = None,
    loaded: LoadedStates | None = None,
) -> tuple[list[Any], list[SavedOptimizer]]:
    """Return the weights after ``steps``, and the states at a commit after them."""
    done = threading.Barrier(2)
    with serving(count=servers, replicas=2) as ranks:

        def body(rank: int, own: Servers) -> Any:
            own.loaded = loaded or own.loaded
            mine = [one.copy() for one in weights or initial()]
            centre = begun(rank, own, rule, mine)
            found = steps_of(rank, centre, mine, steps)
            done.wait(60.0)
            if rank:
                return found, []
            own.commit(7)
            return found, own.optimizer_states(7)

        (found, states), _ = ranks.run(2, body)
    return found, states


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.optimizer)
def test_other_servers_continue_exactly(rule: Rule) -> None:
    expected, _ = trained(1, rule, range(5))
    weights, states = trained(2, rule, range(3))
    assert [each.steps for each in states] == [3]
    assert len(dumps(states)) > sum(weight.nbytes for weight in weights)
    found, _ = trained(3, rule, range(3, 5), weights, LoadedStates(7, states))
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.tobytes() == theirs.tobytes()


def test_an_asynchronous_centre_sends_its_present_state() -> None:
    rule = Rule(optimizer="momentum", lr=0.1)
    weights, states = trained(2, rule, range(3))
    assert [each.steps for each in states] == [6]
    _, later = trained(1, rule, range(1), weights, LoadedStates(7, states))
    assert [each.steps for each in later] == [8]


def test_a_state_without_its_commit_is_refused() -> None:
    with serving() as ranks:

        def body(rank: int, servers: Servers) -> None:
            centre = begun(rank, servers, RULES[2], initial())
            steps_of(rank, centre, initial(), range(1))
            if not rank:
                servers.commit(3)
                with pytest.raises(DataError, match=mentioning("server 0", "commit 2")):
                    servers.optimizer_states(2)

        ranks.run(2, body)


@pytest.mark.parametrize("states", [None, [], "other"])
def test_a_state_that_is_missing_is_reported(states: Any, caplog: pytest.LogCaptureFixture) -> None:
    if states == "other":
        states = [SavedOptimizer("test.weights.1", "momentum", [("w0", (2,))], 1, [])]
    with caplog.at_level(logging.WARNING):
        trained(2, RULES[2], range(1), None, LoadedStates(7, states))
    messages = [record.getMessage() for record in caplog.records]
    if states == []:  # the commit was made before the first exchange
        assert messages == []
    else:
        (message,) = messages
        assert mentions(message, "commit 7", "adam", "4 weight")


def test_each_centre_takes_one_state() -> None:
    weights = [("w", (3,))]
    names = ["a.weights.1.0.1/0,1", "a.weights.2.0.1/0,1", "b.weights.3.0.1/0,1"]
    states = [SavedOptimizer(name, "adam", weights, 1, []) for name in names]
    loaded, adam = LoadedStates(7, states), Rule(sync=True, optimizer="adam")
    assert loaded.find("a.weights.2.0.1/0,1,2", adam, weights, []) is states[1]
    assert loaded.find("a.weights.9.0.1/0", adam, weights, [states[0]]) is states[1]
    assert loaded.find("b.weights.1.0.1/0", adam, weights, [states[2]]) is None
    assert loaded.find("a.weights.1.0.1/0,1", adam, [("w", (4,))], []) is None
    assert loaded.find("a.weights.1.0.1/0,1", Rule(optimizer="adagrad"), weights, []) is None
    loaded.drop(states[:1])
    assert loaded.find("a.weights.1.0.1/0,1", adam, weights, []) is states[1]


def test_a_membership_lost_before_its_first_commit_keeps_states() -> None:
    """Only the lost first rank had loaded the states."""

    def ranks_of(servers: Chain, scope: str, weights: list[Any]) -> list[Rank]:
        found = [Rank(servers, rank, 2, ADAM, scope, commit=8) for rank in range(2)]
        for each in found:
            each.weights = [weight.copy() for weight in weights]
        return found

    with chain() as servers:
        before = [Rank(servers, rank, 2, ADAM) for rank in range(2)]
        weights = together(before, 3)[0]
        before[0].servers.commit(7)
        states = before[0].servers.optimizer_states(7)
    with chain() as servers:
        lost = ranks_of(servers, "1.1", weights)
        lost[0].servers.loaded = LoadedStates(7, states)
        together(lost, 1)
        found = together(ranks_of(servers, "2.1", weights), 2)
    for mine, theirs in zip(found[0], undisturbed(ADAM, 5), strict=True):
        assert mine.tobytes() == theirs.tobytes()
