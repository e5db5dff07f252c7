"""Strategies over parameter servers, against models with the same order of events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farandole.strategies.gossip.background import AsyncGossip
from farandole.strategies.modes.parameter_server import SSP, AsyncParameterServer, ParameterServer
from farandole.strategies.options import GradientOptions
from farandole.strategies.specs import strategy_of
from farandole.strategies.weights import StatefulExchange, WeightExchange
from tests.kits.messages import mentioning, mentions
from tests.run_job import job
from tests.strategies.modes.test_modes import SHAPES, drift

# Ranks in the order in which they step: some more often than others.
ORDER = [0, 1, 2, 0, 0, 2, 1, 0, 2, 1, 1, 0]
ASYNC = [
    "ps_async",
    "ps_async:2",
    "ps_async:1,damp=1",
    "ssp:4,every=1",
    "ps_async:1,optimizer=adam,lr=0.1",
    "ps_async threshold:0.7",
    "ssp:4,damp=1 threshold:0.7",
]
PUSHED = ("bf16", "int8", "onebit", "topk:0.2", "randomk:0.3", "powersgd:1")


def test_asynchronous_ranks_are_their_model() -> None:
    def fn(rank: int) -> list[Any]:
        import farandole.numpy as hvd

        found = []
        for spec in ASYNC:
            name, _, codec = spec.partition(" ")
            strategy = strategy_of(name)
            assert isinstance(strategy, ParameterServer)
            weights = [np.ones(shape) for shape in SHAPES]
            exchange = WeightExchange("test", GradientOptions(codec=codec), strategy)
            slots, step = exchange.slots(weights), 0
            # all ranks have found their strategies equal: from now on each trains alone
            exchange.average([np.zeros(1)])
            for place, turn in enumerate(ORDER):
                if turn == rank:
                    step += 1
                    for weight, change in zip(weights, drift(rank, place), strict=True):
                        weight += change
                    if strategy.due(step):
                        exchange(weights, slots, step)
                hvd.barrier()
            own = [weight.copy() for weight in weights]
            exchange.average(weights, slots)
            found.append((own, weights, strategy.staleness.mean, strategy.staleness.maximum))
        return found

    results = job(3, fn, store=True, servers=2)
    for number, spec in enumerate(ASYNC):
        strategy = strategy_of(spec.partition(" ")[0])
        assert isinstance(strategy, ParameterServer)
        ranks, centre, staleness = model(strategy, float(spec.partition(" threshold:")[2] or 0))
        for rank, of_rank in enumerate(results):
            own, end, mean, most = of_rank[number]
            assert (mean, most) == (np.mean(staleness[rank]), max(staleness[rank])), spec
            for found, wanted in ((own, ranks[rank]), (end, centre)):
                for one, other in zip(found, wanted, strict=True):
                    np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9, err_msg=spec)


def model(strategy: ParameterServer, bound: float) -> tuple[list[Any], list[Any], list[list[int]]]:
    """Return each rank's last weights; the centre, with the values not yet pushed; and the
    staleness of each rank's pushes. A push sends only values of at least ``bound``, and the rest
    with the next push.
    """
    start = [np.ones(shape) for shape in SHAPES]
    ranks, anchors = [list(start) for _ in range(3)], [list(start) for _ in range(3)]
    centre, version, pulled, steps = list(start), 0, [0] * 3, [0] * 3
    staleness: list[list[int]] = [[], [], []]
    kept = {"m": [0.0 * value for value in start], "s": [0.0 * value for value in start], "t": 0}

    unsent = [[0.0 * value for value in start] for _ in range(3)]

    def take(rank: int, factor: float, least: float = bound, *, counts: bool = True) -> None:
        ways = [weight - anchor for weight, anchor in zip(ranks[rank], anchors[rank], strict=True)]
        kept["t"] += 1
        for place, way in enumerate(ways):
            whole = way + unsent[rank][place]
            sent = np.where(np.abs(whole) >= least, whole, 0.0)
            unsent[rank][place] = whole - sent
            own = stepped(strategy, sent * factor, kept, place) if counts else sent * strategy.lr
            centre[place] = centre[place] + own

    for place, rank in enumerate(ORDER):
        ranks[rank] = [
            weight + change for weight, change in zip(ranks[rank], drift(rank, place), strict=True)
        ]
        steps[rank] += 1
        if steps[rank] % strategy.every == 0:
            stale = version - pulled[rank]
            staleness[rank].append(stale)
            take(rank, 1 / max(stale, 1) if strategy.damp else 1.0)
            version += 1
            pulled[rank], ranks[rank], anchors[rank] = version, list(centre), list(centre)
    final = [list(weights) for weights in ranks]
    for rank in range(3):
        take(rank, 1.0, least=0.0, counts=False)  # added, and no step of the servers' optimizer
    return final, centre, staleness


def stepped(strategy: ParameterServer, way: Any, kept: Any, place: int) -> Any:
    if strategy.optimizer != "adam":
        return way
    kept["m"][place] = 0.9 * kept["m"][place] + 0.1 * way
    kept["s"][place] = 0.999 * kept["s"][place] + 0.001 * way**2
    mean, square = (
        kept["m"][place] / (1 - 0.9 ** kept["t"]),
        kept["s"][place] / (1 - 0.999 ** kept["t"]),
    )
    return strategy.lr * mean / (np.sqrt(square) + 1e-8 / np.sqrt(1 - 0.999 ** kept["t"]))


def test_ranks_that_push_by_a_codec_come_to_their_goal() -> None:
    """The residual of a push is sent with a later one, at the latest at the end."""
    goal = [np.random.default_rng(7).standard_normal(shape) for shape in SHAPES]

    def fn(rank: int) -> list[list[Any]]:
        found = []
        for strategy, rate in ((ParameterServer(2), 0.05), (SSP(1, every=2), 0.02)):
            for spec in PUSHED:
                weights = [np.full(shape, float(rank)) for shape in SHAPES]
                exchange = WeightExchange("test", GradientOptions(codec=spec), strategy)
                slots = exchange.slots([np.zeros(shape) for shape in SHAPES])
                for step in range(1, 121):
                    for weight, best in zip(weights, goal, strict=True):
                        weight -= rate * (weight - best)
                    if strategy.due(step):
                        exchange(weights, slots, step)
                if strategy.sync:
                    found.append([weight.copy() for weight in weights])
                exchange.average(weights, slots)
                assert exchange.codec is not None
                assert exchange.codec.sent > 0
                found.append(weights)
        return found

    ends = job(3, fn, store=True, servers=2)
    for of_rank in ends:
        for weights, first in zip(of_rank, ends[0], strict=True):
            for one, alike, best in zip(weights, first, goal, strict=True):
                assert one.tobytes() == alike.tobytes()
                np.testing.assert_allclose(one, best, atol=0.05)


def test_synchronous_ranks_step_together_also_after_a_join() -> None:
    """Rank r has r + 2 steps before each join; later steps use the mean of the present ranks."""

    def fn(rank: int) -> None:
        import farandole.numpy as hvd

        exchange = WeightExchange("test", GradientOptions(), ParameterServer())
        weights, statistics = (
            [np.zeros(2), np.zeros(3, dtype=np.float32)],
            [np.full(1, float(rank))],
        )
        slots, want, step = exchange.slots(weights), 0.0, 0
        for _ in range(2):
            for number in range(rank + 2):
                step += 1
                for weight in weights:
                    weight += rank + 1
                exchange(weights, slots, step, statistics=statistics)
                here = [other + 1 for other in range(3) if number < other + 2]
                want += np.mean(here)
                assert np.allclose(weights[0], want)
                assert np.allclose(weights[1], want)
                assert np.isclose(statistics[0][0], np.mean(here) - 1) or number
            hvd.join()
            for weight in weights:
                weight += rank == 0  # not pushed yet
            exchange.average(weights, slots, statistics=statistics)
            want = round(float(hvd.broadcast(weights[0][:1], 2)[0]), 6)
            assert np.allclose(weights[0], want)

    job(3, fn, store=True)


def test_statistics_of_stopped_ranks_do_not_come_back() -> None:
    """Statistics belong to the weights: rank 2 has the last ones, and unpushed statistics count
    like its weights. A stopped rank has old ones, which the centre has already counted.
    """

    def fn(rank: int) -> None:
        import farandole.numpy as hvd

        for strategy in (ParameterServer(2), AsyncParameterServer(2), SSP(9, every=2)):
            exchange = WeightExchange("test", GradientOptions(), strategy)
            weights, statistics = [np.zeros(2)], [np.zeros(1, dtype=np.float32)]
            slots, last = exchange.slots(weights), 0.0
            exchange.average([np.zeros(1)])  # all ranks have found their strategies equal
            # one after the other if no rank waits
            for turn in [rank] if strategy.sync else range(3):
                for step in range(1, 4 * rank + 4) if turn == rank else ():
                    weights[0] += 1
                    statistics[0] += 0.9 * (step - statistics[0])
                    if strategy.due(step):  # the third, the seventh and the eleventh are not pushed
                        exchange(weights, slots, step, statistics=statistics)
                        last = float(statistics[0][0])
                if not strategy.sync:
                    hvd.barrier()
            unpushed = float(statistics[0][0]) - last
            hvd.join()
            # as the last rank that pushed has pulled it
            centre = hvd.broadcast(np.array([last]), 2)
            exchange.average(weights, slots, statistics=statistics)
            want = centre + hvd.allreduce(np.array([unpushed]), op=hvd.Average)
            np.testing.assert_allclose(statistics[0], want, rtol=1e-5, err_msg=strategy.spec)

    job(3, fn, store=True, servers=2)


def test_process_sets_have_a_centre_each() -> None:
    def fn(rank: int) -> None:
        from farandole.job import context

        sets = [context.add_process_set([0, 1]), context.add_process_set([2, 3])]
        mine = sets[rank // 2]
        for strategy in (SSP(0), ParameterServer(), AsyncParameterServer()):
            exchange = WeightExchange("test", GradientOptions(process_set=mine), strategy)
            weights = [np.full(2, 10.0 * (rank // 2))]
            slots = exchange.slots(weights)
            for step in range(1, 4):
                weights[0] += 1
                exchange(weights, slots, step)
            assert 13 <= weights[0][0] - 10.0 * (rank // 2) + 10 <= 16
        exchange = WeightExchange("test", GradientOptions(), SSP(1))
        for step in range(1, 5 + 5 * rank):  # the others do not wait for those that have ended
            weights[0] += 1
            exchange(weights, slots, step)

    job(4, fn, store=True, dynamic_process_sets=True)


def test_a_centre_is_that_of_the_weights_of_now() -> None:
    """For weights added later, an earlier loaded state, and a recreated process set."""

    def fn(rank: int) -> None:
        from farandole.job import context

        kept = StatefulExchange("test", GradientOptions(), ParameterServer())
        weights = [np.full(2, 5.0)]
        kept.begin(weights, np.copy)
        weights[0] += rank
        kept(weights, 1)
        assert weights[0].tolist() == [6.0, 6.0]
        weights.append(np.full(3, 7.0))
        kept.begin(weights, np.copy)
        for weight in weights:
            weight += 1 + rank
        kept(weights, 2, statistics=[np.zeros(1)])
        assert [weight.tolist() for weight in weights] == [[8.0] * 2, [9.0] * 3]
        kept.load_state_dict(
            {"strategy": kept.strategy.spec, "slots": [[np.zeros(2), np.zeros(3)]]}
        )
        weights = [np.full(2, float(rank)), np.zeros(3)]
        kept(weights, 3)
        assert [weight.tolist() for weight in weights] == [[1.0] * 2, [0.0] * 3]
        for begin in (1.0, 11.0):
            pair = context.add_process_set([1, 2])
            if rank:
                of_pair = StatefulExchange(
                    "test", GradientOptions(process_set=pair), AsyncParameterServer()
                )
                weights = [np.full(2, begin)]
                of_pair.begin(weights, np.copy)
                of_pair(weights, 1)
                assert weights[0].tolist() == [begin] * 2
            context.remove_process_set(pair)

    job(3, fn, store=True, dynamic_process_sets=True)


@pytest.mark.parametrize("spec", ["ps", "ssp:1"])
def test_a_rank_that_alone_adds_a_weight_is_named_on_all(spec: str) -> None:
    def fn(rank: int) -> str:
        kept = StatefulExchange("test", GradientOptions(), strategy_of(spec))  # type: ignore[arg-type]
        weights, names = [np.zeros(2)], ["first"]
        try:
            for step in range(1, 10):
                if rank == 1 and step == 3:
                    weights.append(np.zeros(3))
                    names.append("second")
                kept.begin(weights, np.copy)
                kept(weights, step, names)
        except ValueError as error:
            return str(error)
        return ""

    for text in job(2, fn, store=True):
        assert mentions(text, "rank 1", "(3,)", "float64", "2", "rank 0"), text


def test_exchanges_that_are_no_collectives_are_in_the_timeline(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"

    def fn(rank: int) -> None:
        import farandole.numpy as hvd

        for strategy in (AsyncParameterServer(), AsyncGossip()):
            exchange = WeightExchange("test", GradientOptions(), strategy)
            weights = [np.zeros(2)]
            slots = exchange.slots(weights)
            for step in (1, 2):
                exchange(weights, slots, step)
                hvd.barrier()  # all show their weights
            exchange.average(weights, slots)

    job(2, fn, store=True, timeline=str(path))
    events = json.loads(path.read_text())
    lines = {
        event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"
    }
    activities = {
        (lines[event["pid"]], event["name"])
        for event in events
        if event["ph"] == "X" and event["dur"]
    }
    assert {("test.weights.1", "SERVERS_PUSH"), ("test.weights.1", "SERVERS_PULL")} <= activities
    assert ("test.weights.2", "AVERAGE_WITH_RANK_1") in activities


def test_ranks_that_took_no_step_have_the_centre_in_the_end() -> None:
    def fn(rank: int) -> None:
        kept = StatefulExchange("test", GradientOptions(), AsyncParameterServer(4))
        weights = [np.ones(2)]
        if rank:
            kept.begin(weights, np.copy)
            weights[0] += rank
        kept.average(weights)
        assert weights[0].tolist() == [2.0] * 2

    job(2, fn, store=True)


def test_leaving_while_handling_an_exception_is_no_failure() -> None:
    def fn(rank: int) -> None:
        from farandole.job import context
        from farandole.job.context import parameter_servers

        exchange = WeightExchange("test", GradientOptions(), ParameterServer())
        weights = [np.zeros(2)]
        slots = exchange.slots(weights)
        for step in range(1, 3 if rank else 7):
            weights[0] += 1
            exchange(weights, slots, step)
        served = parameter_servers.access()
        try:
            raise KeyError(rank)
        except KeyError:
            context.shutdown()
        assert parameter_servers._kept == [served], "until it is known whether this process fails"
        served.close(False)  # after all goodbyes
        parameter_servers._kept.clear()

    job(2, fn, store=True)


@pytest.mark.parametrize(
    ("spec", "full"),
    [
        ("ps", "ps:1,backup=0"),
        ("ps:2,backup=1", "ps:2,backup=1"),
        ("ps_async", "ps_async:1"),
        ("ps:backup=1", "ps:1,backup=1"),
        ("ps_async:4,damp=1", "ps_async:4,damp=1"),
        ("ssp:2", "ssp:2,every=1"),
        ("ssp:0,every=8,optimizer=momentum", "ssp:0,every=8,optimizer=momentum,lr=1,momentum=0.9"),
        ("ps_async:1,optimizer=adam", "ps_async:1,optimizer=adam,lr=0.001,momentum=0.9"),
    ],
)
def test_specs(spec: str, full: str) -> None:
    found = strategy_of(spec)
    assert not isinstance(found, str)
    assert found.spec == full


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("ps:0", ("every='0'", "1", "number")),
        ("ssp:-1", "bound='-1'"),
        ("ps:1,2", ("strategy='ps:1,2'", "argument")),
        (
            "ps_async:2,backup=1",
            ("ps_async", "backup='1'"),
        ),
        ("ps_async:damp=2", ("damp='2'", "0", "1")),
        ("ps:optimizer=lamb", ("add", "sgd", "momentum", "adagrad")),
        ("ps:optimizer=sgd,lr=x", ("lr='x'", "number")),
        ("ps:optimizer=sgd,lr=-1", ("lr='-1'", "0", "number")),
        ("ps:backup=1,2", "argument"),
    ],
)
def test_contradictory_server_options_are_refused(spec: str, text: str | tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=mentioning(text)):
        strategy_of(spec)


def test_servers_refuse_options_the_job_cannot_meet() -> None:
    def fn(rank: int) -> None:
        for strategy, weights, text in [
            (
                ParameterServer(backup=2),
                [np.ones(2)],
                "backup=2",
            ),
            (
                SSP(1 + rank),
                [np.ones(2)],
                (f"rank {rank} has 'ssp:{1 + rank},every=1'", f"rank {1 - rank}"),
            ),
            (
                SSP(0),
                [np.ones(2 + rank)],
                ("rank 0", "(2,)", "rank 1", "(3,)"),
            ),
        ]:  # type: ParameterServer, Sequence[Any], str | tuple[str, ...]
            exchange = WeightExchange("DistributedOptimizer", GradientOptions(), strategy)
            with pytest.raises(ValueError, match=mentioning(text)):
                exchange(weights, exchange.slots(weights), 1)

    job(2, fn, store=True)


def test_without_a_job_there_is_a_cure() -> None:
    def fn(rank: int) -> None:
        exchange = WeightExchange("DistributedOptimizer", GradientOptions(), SSP())
        with pytest.raises(
            ValueError,
            match=mentioning("parameter servers", "store"),
        ):
            exchange([np.ones(2)], exchange.slots([np.ones(2)]), 1)

    job(2, fn)
    with pytest.raises(ValueError, match=mentioning("--replicas 2")):
        job(2, _train, store=True, replicas=2)


def _train(rank: int) -> None:
    exchange = WeightExchange("DistributedOptimizer", GradientOptions(), SSP())
    exchange([np.ones(2)], exchange.slots([np.ones(2)]), 1)


def test_without_rank_0_and_driver_no_servers_start() -> None:
    def fn(rank: int) -> None:
        from farandole.errors import RendezvousError
        from farandole.job import context

        if rank:
            with pytest.raises(
                RendezvousError,
                match=mentioning("0.1 s", "rank 0"),
            ):
                context.servers()

    job(2, fn, store=True, start_timeout=0.1)
