"""Gossip in the background, against a model with the same order of events."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from farandole.errors import SettingsError
from farandole.strategies.gossip.background import AsyncGossip
from farandole.strategies.gossip.graphs import GRAPHS, higher_neighbours
from farandole.strategies.options import GradientOptions, gradient_options
from farandole.strategies.specs import strategy_of
from farandole.strategies.weights import StatefulExchange, WeightExchange
from tests.kits.messages import mentioning
from tests.run_job import job
from tests.strategies.modes.test_modes import SHAPES, drift
from tests.strategies.modes.test_parameter_servers import ORDER

SPECS = ["gossip_async", "gossip_async:complete,every=2", "gossip_async:ring,damp=1"]


def rested(exchange: WeightExchange) -> None:
    """Wait until no average is in progress."""
    assert exchange._session is not None
    pairs = exchange._session.pairs(None)
    assert pairs._group is not None
    pairs._group.rest()


def take_turns(
    rank: int,
    exchange: WeightExchange,
    weights: list[Any],
    slots: Any,
    statistics: list[Any],
    drift: Callable[[int, int], list[Any]],
    then: Callable[[int], None] = lambda place: None,
) -> None:
    """The steps of all ranks, one after the other in ``ORDER``, and exchanges that are due;
    ``then``: after each.
    """
    import farandole.numpy as hvd
    from farandole.core.gossip import peer_group

    step, patience = 0, peer_group.BUSY
    peer_group.BUSY = 30.0  # no rank begins the next average while another ends one
    for place, turn in enumerate(ORDER):
        # no rank is at the end of an average of all: others would get earlier weights
        hvd.barrier()
        if turn == rank:
            step += 1
            for weight, change in zip(weights, drift(rank, place), strict=True):
                weight += change
            statistics[0] += rank
            if exchange.strategy.due(step):
                exchange(weights, slots, step, statistics=statistics)
                rested(exchange)
        hvd.barrier()
        then(place)
    peer_group.BUSY = patience


def test_ranks_are_their_model() -> None:
    def fn(rank: int) -> list[Any]:
        found = []
        for spec in SPECS:
            strategy = strategy_of(spec)
            assert isinstance(strategy, AsyncGossip)
            weights, statistics = [np.ones(shape) for shape in SHAPES], [np.full(2, float(rank))]
            exchange = WeightExchange("test", GradientOptions(), strategy)
            slots = exchange.slots(weights)
            # from now on each goes by itself
            exchange.average(weights, slots, statistics=statistics)
            assert statistics[0].tolist() == [1.0, 1.0]
            take_turns(rank, exchange, weights, slots, statistics, drift)
            own = [weight.copy() for weight in weights]
            exchange.average(weights, slots, statistics=statistics)
            found.append(
                (
                    own,
                    weights,
                    strategy.staleness.mean,
                    strategy.staleness.maximum,
                    statistics[0].tolist(),
                )
            )
            exchange.restart()
        return found

    results = job(3, fn, store=True)
    for number, spec in enumerate(SPECS):
        strategy = strategy_of(spec)
        assert isinstance(strategy, AsyncGossip)
        ranks, mean, staleness = model(strategy)
        for rank, of_rank in enumerate(results):
            own, end, average, most, statistics = of_rank[number]
            assert (average, most) == (np.mean(staleness[rank]), max(staleness[rank])), spec
            assert np.allclose(statistics, 1 + sum(ORDER) / 3)
            for found, wanted in ((own, ranks[rank]), (end, mean)):
                for one, other in zip(found, wanted, strict=True):
                    np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9, err_msg=spec)
            assert all(
                np.array_equal(one, two)
                for one, two in zip(end, results[0][number][1], strict=True)
            )


def model(strategy: AsyncGossip) -> tuple[list[Any], list[Any], list[list[int]]]:
    """Return each rank's last weights; the mean of all ranks, with the residuals; and each rank's
    averages between exchanges.
    """
    start = [np.ones(shape) for shape in SHAPES]
    ranks, anchors, shown = ([list(start) for _ in range(3)] for _ in range(3))
    steps, averages, seen = [0] * 3, [0] * 3, [0] * 3
    staleness: list[list[int]] = [[], [], []]

    def add(rank: int, damp: bool) -> int:
        stale, seen[rank] = averages[rank] - seen[rank], averages[rank]
        factor = max(stale, 1) if damp else 1
        columns = zip(shown[rank], ranks[rank], anchors[rank], strict=True)
        shown[rank] = [value + (weight - anchor) / factor for value, weight, anchor in columns]
        ranks[rank], anchors[rank] = list(shown[rank]), list(shown[rank])
        return stale

    for place, rank in enumerate(ORDER):
        ranks[rank] = [
            weight + change for weight, change in zip(ranks[rank], drift(rank, place), strict=True)
        ]
        steps[rank] += 1
        if strategy.due(steps[rank]):
            staleness[rank].append(add(rank, strategy.damp))
            for other in higher_neighbours(strategy.graph, rank, 3, steps[rank] // strategy.every)[
                :1
            ]:
                mean = [(one + two) / 2 for one, two in zip(shown[rank], shown[other], strict=True)]
                shown[rank], shown[other] = list(mean), list(mean)
                averages[rank] += 1
                averages[other] += 1
    final = [list(weights) for weights in ranks]
    for rank in range(3):
        add(rank, False)
    return final, [sum(column) / 3 for column in zip(*shown, strict=True)], staleness


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 6, 8, 13])
def test_pairs_of_every_graph_come_to_one_mind(graph: str, n: int) -> None:
    values = np.random.default_rng(n).standard_normal(n)
    mean = values.mean()
    for turn in range(400):
        for rank in range(n):
            others = higher_neighbours(graph, rank, n, turn)
            assert all(other > rank for other in others)
            if others:
                values[rank] = values[others[0]] = (values[rank] + values[others[0]]) / 2
    assert np.ptp(values) < 1e-6
    assert abs(values.mean() - mean) < 1e-9


def test_ranks_end_and_join_when_they_like() -> None:
    """The mean contains the changes of all ranks, for any choice of pairs."""

    def fn(rank: int) -> None:
        import farandole.numpy as hvd
        from farandole.job import context

        def trained(kept: StatefulExchange, weights: list[Any], steps: int) -> None:
            for step in range(1, steps + 1):
                kept.begin(weights, np.copy)
                for weight in weights:
                    weight += 1.0
                kept(weights, step)

        kept = StatefulExchange("test", GradientOptions(), AsyncGossip("complete"))
        weights = [np.zeros(2), np.zeros(3, dtype=np.float32)]
        trained(kept, weights, 10 * rank)  # rank 0 has no data
        hvd.join()
        trained(kept, weights, 5)
        kept.average(weights)
        assert all(np.allclose(weight, 10 * 1.5 + 5) for weight in weights)
        weights.append(np.ones(4))  # a layer that came later
        trained(kept, weights, 3)
        kept.average(weights)
        assert [round(float(weight[0]), 4) for weight in weights] == [23.0, 23.0, 4.0]
        state = kept.state_dict()
        trained(kept, weights, rank)
        hvd.barrier()
        kept.load_state_dict(state)
        weights = [slot.copy() for slot in state["slots"][0]]
        trained(kept, weights, 2)
        kept.average(weights)
        assert [round(float(weight[0]), 4) for weight in weights] == [25.0, 25.0, 6.0]

        mine = [context.add_process_set([0, 1]), context.add_process_set([2, 3])][rank // 2]
        of_set = StatefulExchange("test", GradientOptions(process_set=mine), AsyncGossip())
        weights = [np.full(2, 10.0 * (rank // 2))]
        trained(of_set, weights, 4 + rank)
        of_set.average(weights)
        assert np.allclose(weights[0], 4.5 + 12.0 * (rank // 2))
        last = StatefulExchange("test", GradientOptions(), AsyncGossip("ring"))
        trained(last, weights, 1 + 30 * rank)  # the others do not wait for those that have ended

    job(4, fn, store=True, dynamic_process_sets=True)


def test_averages_stay_where_weights_are_added() -> None:
    """When a weight is added, one rank has applied an average and the other has not."""

    def fn(rank: int) -> None:
        import farandole.numpy as hvd

        kept = StatefulExchange("test", GradientOptions(), AsyncGossip())
        weights, learned = [np.zeros(3)], 0

        def step() -> None:
            nonlocal learned
            kept.begin(weights, np.copy, stepping=True)
            weights[0] += 1.0 + rank
            learned += 1
            kept(weights, learned)
            rested(kept.exchange)

        def grow() -> None:
            step()
            hvd.barrier()
            if rank == 0:
                step()
            hvd.barrier()
            weights.append(np.full(3, 7.0))
            step()

        grow()
        weights[0] = weights[1] * 2  # a weight of the same shape is in its place
        kept.moved([None, 1])
        step()
        kept.average(weights)
        assert np.allclose(weights[0], 14 + 1.5)

        weights[0][:] = 0.0
        kept.restart()
        grow()
        kept.average(weights)
        assert np.allclose(weights[0], (3 * 1.0 + 2 * 2.0) / 2)

    job(2, fn, store=True)


def test_pairs_with_unequal_weights_are_reported() -> None:
    """Each has frozen a different parameter."""

    def fn(rank: int) -> None:
        kept = StatefulExchange("test", GradientOptions(), AsyncGossip())
        weights, names = [np.full(3, 1.0), np.full(3, 2.0)], ["first", "second"]
        steps = itertools.count(1)

        def step() -> None:
            kept.begin(weights, np.copy, stepping=True)
            kept(weights, next(steps), names)

        def go_on() -> None:
            while True:
                step()

        step()
        del weights[rank], names[rank]
        kept.moved([1 - rank])
        with pytest.raises(ValueError, match=mentioning("rank 0", "rank 1")):
            go_on()
        assert weights[0].tolist() == [2.0 - rank] * 3

    job(2, fn, store=True)


@pytest.mark.parametrize(
    ("spec", "full"),
    [
        ("gossip_async", "gossip_async:exponential,every=1"),
        ("gossip_async:every=4", "gossip_async:exponential,every=4"),
        ("gossip_async:ring,every=2,damp=1", "gossip_async:ring,every=2,damp=1"),
        ("gossip:ring,every=4", "gossip:ring,every=4"),
    ],
)
def test_specs(spec: str, full: str) -> None:
    found = strategy_of(spec)
    assert not isinstance(found, str)
    assert found.spec == full


def test_the_consensus_step_of_a_pair_is_an_argument() -> None:
    assert AsyncGossip.parse("ring,gamma=0.25").spec == "gossip_async:ring,every=1,gamma=0.25"
    with pytest.raises(ValueError, match=mentioning("gossip_async", "gamma='2'", "0", "1")):
        AsyncGossip(gamma="2")


def test_invalid_gossip_async_options_are_refused() -> None:
    for spec, text in [
        ("gossip_async:star", ("gossip_async", "graph='star'", "ring", "torus")),
        ("gossip_async:every=0", "every='0'"),
        (
            "gossip_async:ring,torus",
            "gossip_async:ring,every=4",
        ),
        ("gossip_async:damp=2", "damp='2'"),
    ]:
        with pytest.raises(ValueError, match=mentioning(text)):
            strategy_of(spec)
    for codec in ("sign", "int8"):
        with pytest.raises(SettingsError, match=mentioning(f"codec='{codec}'", "gossip")):
            gradient_options(strategy="gossip_async", codec=codec)

    def fn(rank: int) -> None:
        for strategy, weights, text in [
            (
                AsyncGossip(every=1 + rank),
                [np.ones(2)],
                (f"rank {rank}", f"'gossip_async:exponential,every={1 + rank}'"),
            ),
            (
                AsyncGossip(),
                [np.ones(2 + rank)],
                ("'weight 0'", "[2] on rank 0", "[3] on rank 1"),
            ),
        ]:
            exchange = WeightExchange("DistributedOptimizer", GradientOptions(), strategy)
            with pytest.raises(ValueError, match=mentioning(text)):
                exchange(weights, exchange.slots(weights), 1)

    job(2, fn, store=True)
    with pytest.raises(ValueError, match=mentioning("store")):
        job(2, _exchange)


def _exchange(rank: int) -> None:
    exchange = WeightExchange("DistributedOptimizer", GradientOptions(), AsyncGossip())
    exchange([np.ones(2)], exchange.slots([np.ones(2)]), 1)
