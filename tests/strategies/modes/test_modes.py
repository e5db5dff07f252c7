"""Every mode against a plain model: all ranks' weights in one process, step by step, in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import farandole.numpy
from farandole.base.contracts import Part, Strategy, Transport
from farandole.base.types import ReduceOp
from farandole.errors import HorovodInternalError
from farandole.strategies.gossip.graphs import GRAPHS
from farandole.strategies.gossip.synchronous import Gossip
from farandole.strategies.modes.easgd import EASGD
from farandole.strategies.modes.local_sgd import BMUF, DiLoCo, LocalSGD
from farandole.strategies.options import GradientOptions, gradient_options
from farandole.strategies.references import NoReference
from farandole.strategies.specs import strategy_of
from farandole.strategies.weights import StatefulExchange, WeightExchange
from tests.kits.messages import mentioning, mentions
from tests.run_job import job

SHAPES = [(3, 4), (), (0,), (5,)]


def drift(rank: int, step: int) -> list[Any]:
    """Return the change of a rank's weights by its own step."""
    random = np.random.default_rng(1000 * step + rank)
    return [random.standard_normal(shape) for shape in SHAPES]


class Whole:
    """A codec that loses nothing."""

    sent = saved = 0

    def __init__(self) -> None:
        self.spec = "whole"

    def allreduce(self, parts: Sequence[Part], scale: float, transport: Transport) -> None:
        transport.allreduce([part.buffer for part in parts], ReduceOp.SUM, scale)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


def train(n: int, strategy: Strategy, steps: int, codec: str | type[Whole] = "") -> list[list[Any]]:
    """Return each rank's last weights."""

    def fn(rank: int) -> list[Any]:
        weights = [np.ones(shape) for shape in SHAPES]
        options = GradientOptions(codec=codec if isinstance(codec, str) else codec())
        exchange = WeightExchange("test", options, strategy)
        slots = exchange.slots(weights)
        for step in range(1, steps + 1):
            for weight, change in zip(weights, drift(rank, step), strict=True):
                weight += change
            if strategy.due(step):
                exchange(weights, slots, step)
        return weights

    return job(n, fn)


def model(n: int, strategy: Strategy, steps: int) -> list[list[Any]]:
    """The same, after the papers' formulas."""
    ranks = [[np.ones(shape) for shape in SHAPES] for _ in range(n)]
    kept: dict[str, Any] = {
        "anchor": [np.ones(shape) for shape in SHAPES],
        "v": [np.zeros(shape) for shape in SHAPES],
    }
    for step in range(1, steps + 1):
        ranks = [
            [weight + change for weight, change in zip(weights, drift(rank, step), strict=True)]
            for rank, weights in enumerate(ranks)
        ]
        if strategy.due(step):
            for place in range(len(SHAPES)):
                column = _exchanged(
                    strategy, [weights[place] for weights in ranks], kept, place, step
                )
                for weights, value in zip(ranks, column, strict=True):
                    weights[place] = value
    return ranks


def _exchanged(
    strategy: Any, weights: list[Any], kept: dict[str, Any], place: int, step: int
) -> list[Any]:
    n, mean = len(weights), sum(weights) / len(weights)
    anchor = kept["anchor"][place]
    if isinstance(strategy, Gossip):
        sent = [GRAPHS[strategy.graph](rank, n, step // strategy.every) for rank in range(n)]
        groups = [
            [source for source in range(n) if rank in sent[source] or source == rank]
            for rank in range(n)
        ]
        return [sum(weights[source] for source in group) / len(group) for group in groups]
    if isinstance(strategy, EASGD):
        kept["anchor"][place] = (1 - strategy.beta) * anchor + strategy.beta * mean
        alpha = strategy.beta / n
        return [(1 - alpha) * weight + alpha * anchor for weight in weights]
    if strategy.outer is not None:
        velocity = kept["v"][place] = strategy.momentum * kept["v"][place] + (anchor - mean)
        way = (
            velocity
            if strategy.outer == "momentum"
            else (anchor - mean) + strategy.momentum * velocity
        )
        mean = kept["anchor"][place] = anchor - strategy.lr * way
    return [mean] * n


@pytest.mark.parametrize("n", [2, 3, 4])
def test_every_mode_is_its_model(n: int) -> None:
    for strategy in [
        LocalSGD(3),
        LocalSGD(4, warmup=2),
        LocalSGD(2, outer="nesterov", lr=0.5),
        BMUF(2),
        DiLoCo(3),
        EASGD(2),
        *(Gossip(graph) for graph in GRAPHS),
        Gossip("ring", every=2),
    ]:
        for codec in ("", Whole) if not isinstance(strategy, Gossip) else ("",):
            for found, expected in zip(
                train(n, strategy, 7, codec), model(n, strategy, 7), strict=True
            ):
                for one, two in zip(found, expected, strict=True):
                    np.testing.assert_allclose(
                        one, two, rtol=1e-12, atol=1e-12, err_msg=strategy.spec
                    )


def test_a_codec_compresses_changes_since_the_last_exchange() -> None:
    """The residual is sent later; all ranks have equal bits; a rank with different first weights is
    corrected.
    """
    goal = [np.random.default_rng(7).standard_normal(shape) for shape in SHAPES]

    def fn(rank: int) -> tuple[list[Any], int, int]:
        weights = [np.full(shape, float(rank)) for shape in SHAPES]
        exchange = WeightExchange("test", GradientOptions(codec=codec), LocalSGD(2))
        slots = exchange.slots(weights)
        for step in range(1, 161):
            for weight, best in zip(weights, goal, strict=True):
                weight -= 0.05 * (weight - best)
            if step % 2 == 0:
                exchange(weights, slots, step)
        assert exchange.codec is not None
        return weights, exchange.codec.sent, exchange.codec.saved

    for codec in ("topk:0.2", "int8", "onebit", "powersgd:1"):
        ends = job(3, fn)
        for weights, sent, _ in ends:
            assert sent > 0
            for one, first, best in zip(weights, ends[0][0], goal, strict=True):
                assert one.tobytes() == first.tobytes()
                np.testing.assert_allclose(one, best, atol=0.05, err_msg=codec)


def test_ranks_that_restart_apart_come_together_again() -> None:
    def fn(rank: int) -> list[Any]:
        kept = StatefulExchange("test", GradientOptions(codec="int8"), LocalSGD(1))
        for begin in (1.0, 7.0 * rank):  # the second time each has a state of its own
            weights = [np.full(5, begin)]
            kept.restart()
            kept.begin(weights, np.copy)
            for step in (1, 2):
                weights[0] += rank
                kept(weights, step)
        return weights

    ends = job(2, fn)
    assert ends[0][0].tobytes() == ends[1][0].tobytes()
    np.testing.assert_allclose(ends[0][0], 4.5, atol=0.05)


def test_a_rank_that_had_joined_is_brought_up_to_date() -> None:
    def fn(rank: int) -> list[Any]:
        weights = [np.full(5, float(rank))]
        exchange = WeightExchange("test", GradientOptions(codec="int8"), LocalSGD(1))
        slots = exchange.slots(weights)
        for step in range(1, 6 if rank else 3):
            weights[0] += rank
            exchange(weights, slots, step)
        farandole.numpy.join()
        exchange(weights, slots, 9)
        return weights

    ends = job(3, fn)
    assert all(weights[0].tobytes() == ends[0][0].tobytes() for weights in ends)


def test_a_codec_compresses_distances_from_the_centre() -> None:
    """Centres have equal bits on all ranks, also after one has joined; the residual is sent later."""
    goal = [np.random.default_rng(7).standard_normal(shape) for shape in SHAPES]

    def fn(rank: int) -> tuple[list[Any], list[Any], int]:
        weights = [np.full(shape, float(rank)) for shape in SHAPES]
        exchange = WeightExchange("test", GradientOptions(codec=codec), EASGD(2))
        slots = exchange.slots(weights)
        assert len(slots) == 1, "nothing is kept but the centre"
        for step in range(1, 161):
            if step == 41:
                if rank:
                    farandole.numpy.join()
                else:
                    for late in range(2):
                        exchange(weights, slots, 42 + 2 * late)
                    farandole.numpy.join()
            for weight, best in zip(weights, goal, strict=True):
                weight -= 0.1 * (weight - best - 0.1 * (rank - 1))  # each has a goal of its own
            if step % 2 == 0:
                exchange(weights, slots, step)
        assert exchange.codec is not None
        return weights, slots[0], exchange.codec.sent

    for codec in ("int8", "topk:0.3"):
        ends = job(3, fn)
        for weights, centres, sent in ends:
            assert sent > 0
            for one, first, weight, best in zip(centres, ends[0][1], weights, goal, strict=True):
                assert one.tobytes() == first.tobytes()
                np.testing.assert_allclose(one, best, atol=0.05, err_msg=codec)
                np.testing.assert_allclose(weight, best, atol=0.15, err_msg=codec)


def test_the_rest_of_a_distance_does_not_count_twice() -> None:
    """The residual is part of the next distance: with the sum of both, a centre would run away from
    all ranks.
    """

    def fn(rank: int) -> float:
        weights = [np.ones(50)]
        exchange = WeightExchange("test", GradientOptions(codec="topk:0.02"), EASGD(1))
        slots = exchange.slots([np.zeros(50)])
        most = 0.0
        for step in range(1, 151):
            exchange(weights, slots, step)
            most = max(most, float(np.abs(slots[0][0]).max()), float(np.abs(weights[0]).max()))
        assert float(np.abs(slots[0][0] - weights[0]).max()) < 0.5, "they have come together"
        return most

    assert max(job(2, fn)) <= 1.0


def test_a_rank_without_data_exchanges_in_the_next_epoch() -> None:
    def fn(rank: int) -> None:
        weights = [np.full(2, float(rank))]
        exchange = WeightExchange("test", GradientOptions(), LocalSGD(1))
        for step in range(2 * rank):
            exchange(weights, [], step)
        farandole.numpy.join()
        exchange(weights, [], 5)
        assert weights[0].tolist() == [1.0] * 2  # 1.5 and 1.5, and 0

    job(3, fn)


def test_gossip_requires_all_ranks() -> None:
    def fn(rank: int) -> str:
        weights = [np.full(2, float(rank))]
        exchange = WeightExchange("test", GradientOptions(), Gossip())
        exchange(weights, [], 1)
        try:
            exchange(weights, [], 2) if rank else farandole.numpy.join()
        except HorovodInternalError as error:
            return str(error)
        return "no error"

    found = job(2, fn)
    assert mentions(found[1], "strategy='gossip:exponential,every=1'", "join()"), found


class Apart:
    """Ranks have nothing in common."""

    spec = "apart"
    epochs = False
    reference = NoReference()
    slots: tuple[str, ...] = ()

    def due(self, step: Any) -> Any:
        return step > 0

    def exchange(self, weights: Any, slots: Any, peers: Any, step: int) -> None:
        pass


def test_codecs_and_strategies_that_do_not_go_together() -> None:
    with pytest.raises(
        ValueError,
        match=mentioning("codec='int8'", "strategy='apart'", "local_sgd", "ps_async"),
    ):
        gradient_options(strategy=Apart(), codec="int8")
    for codec in ("sign", "net:int8"):
        for strategy, what in (
            ("ps", "pushes"),
            ("gossip", "neighbours"),
        ):
            with pytest.raises(ValueError, match=mentioning(f"codec='{codec}'", what, "int8")):
                gradient_options(strategy=strategy, codec=codec)
    for codec in ("sign", "sign:0.9", "net:sign"):  # nothing makes a step of votes smaller
        for strategy in ("local_sgd:4", "local_sgd:epoch", "easgd:4"):
            with pytest.raises(
                ValueError,
                match=mentioning(f"codec='{codec}'", "-1, 0", f"strategy='{strategy}", "int8"),
            ):
                gradient_options(strategy=strategy, codec=codec)
    # the outer rate does, if it is small
    for strategy, reach in (("bmuf:4", "2"), ("diloco:4", "7"), ("diloco:4,lr=0.05", "0.5")):
        with pytest.raises(ValueError, match=mentioning("codec='sign'", reach, "lr=0.002")):
            gradient_options(strategy=strategy, codec="sign")
    assert gradient_options(strategy="bmuf:4,lr=0.01", codec="sign").codec == "sign"
    assert gradient_options(strategy="diloco:4,lr=0.002", codec="sign:0.9").codec == "sign:0.9"
    for strategy in ("diloco:8", "easgd:4", "ps_async", "gossip"):
        assert gradient_options(strategy=strategy, codec="int8").codec == "int8"
    for wrong, text in (
        (7, "codec=7"),
        ("threshold:inf", "argument"),
    ):
        with pytest.raises(ValueError, match=mentioning(text)):
            gradient_options(codec=wrong)  # type: ignore[arg-type]

    def fn(rank: int) -> None:
        exchange = WeightExchange(
            "test", GradientOptions(codec="int8" if rank else ""), LocalSGD(1)
        )
        weights = [np.ones(3)]
        with pytest.raises(
            ValueError, match=r"'local_sgd:1' and rank|'local_sgd:1 with the codec int8' and rank"
        ):
            exchange(weights, exchange.slots(weights), 1)

    job(2, fn)


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 6, 8, 13])
def test_gossip_keeps_the_mean_and_comes_to_one_mind(graph: str, n: int) -> None:
    weights = np.random.default_rng(n).standard_normal(n)
    mean = weights.mean()
    for turn in range(200):
        to = [set(GRAPHS[graph](rank, n, turn)) - {rank} for rank in range(n)]
        heard = [[source for source in range(n) if rank in to[source]] for rank in range(n)]
        assert all(len(to[rank]) == len(heard[rank]) for rank in range(n)), (
            "the mean would not stay"
        )
        weights = np.array(
            [
                (weights[rank] + weights[heard[rank]].sum()) / (1 + len(heard[rank]))
                for rank in range(n)
            ]
        )
        assert abs(weights.mean() - mean) < 1e-9
    assert np.ptp(weights) < 1e-3


def test_the_exponential_graph_has_the_mean_after_one_pass() -> None:
    weights = [np.array([float(rank)]) for rank in range(8)]
    for turn in range(3):
        sources = {GRAPHS["exponential"](rank, 8, turn)[0]: rank for rank in range(8)}
        weights = [(weights[rank] + weights[sources[rank]]) / 2 for rank in range(8)]
    assert [float(weight[0]) for weight in weights] == [3.5] * 8


@pytest.mark.parametrize(
    ("spec", "full"),
    [
        ("local_sgd:8", "local_sgd:8"),
        ("local_sgd", "local_sgd:8"),
        ("local_sgd:epoch", "local_sgd:epoch"),
        ("bmuf:16", "bmuf:16,lr=1,momentum=0.5"),
        ("diloco:50", "diloco:50,lr=0.7,momentum=0.9"),
        ("easgd:4", "easgd:4,beta=0.9"),
        ("gossip", "gossip:exponential,every=1"),
        ("gossip:ring", "gossip:ring,every=1"),
        ("local_sgd:3,warmup=2", "local_sgd:3,warmup=2"),
        ("local_sgd:4,outer=nesterov,lr=0.5", "local_sgd:4,outer=nesterov,lr=0.5,momentum=0.9"),
        ("easgd:4,beta=0.5", "easgd:4,beta=0.5"),
        ("ps:2,optimizer=adam", "ps:2,backup=0,optimizer=adam,lr=0.001,momentum=0.9"),
    ],
)
def test_specs(spec: str, full: str) -> None:
    found = strategy_of(spec)
    assert not isinstance(found, str)
    assert found.spec == full
    again = strategy_of(full)
    assert not isinstance(again, str)
    assert again.spec == full, "what a message shows may be given"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            "locl_sgd:8",
            ("'locl_sgd'", "local_sgd"),
        ),
        ("local_sgd:0", ("local_sgd", "every='0'", "1")),
        ("local_sgd:x", ("local_sgd", "every='x'")),
        ("diloco:8,lr=-1", ("lr='-1'", "number")),
        (
            "local_sgd:4,nesterov",
            ("local_sgd:8", "warmup=100"),
        ),
        ("easgd:4,beta=x", ("beta='x'", "0")),
        ("gossip:star", ("graph='star'", "ring", "torus")),
        ("allreduce:3", "argument"),
        ("local_sgd:", ("argument", "colon")),
        (LocalSGD, "class"),
        (7, ("spec", "epochs", "reference", "slots")),
    ],
)
def test_unknown_strategies_are_refused(given: Any, text: str | tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=mentioning(text)):
        strategy_of(given)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: LocalSGD(2.5),
        lambda: LocalSGD(outer="adam"),
        lambda: LocalSGD(momentum=1.0),
        lambda: LocalSGD(lr=0.0),
        lambda: EASGD(beta=0),
        lambda: Gossip(every=0),
        lambda: LocalSGD(warmup=-1),
    ],
)
def test_options_that_make_no_sense(wrong: Any) -> None:
    with pytest.raises(ValueError, match=mentioning("must")):
        wrong()


def test_other_strategies_and_weights_are_errors_on_all_ranks() -> None:
    def fn(rank: int) -> None:
        for mine, text in [
            (
                LocalSGD(2 + rank),
                (
                    f"rank {rank} has 'local_sgd:{2 + rank}'",
                    f"rank {1 - rank} has 'local_sgd:{3 - rank}'",
                ),
            ),
            (LocalSGD(2), ("arrays", "order")),
        ]:
            exchange = WeightExchange("DistributedOptimizer", GradientOptions(), mine)
            with pytest.raises(ValueError, match=mentioning(text)):
                exchange([np.ones(3 + rank)], [], 2)

    job(2, fn)


def test_slots_begin_with_new_weights_and_are_of_one_model() -> None:
    one, two = np.ones(3, np.float32), np.full(2, 7, np.float32)
    kept = StatefulExchange("test", GradientOptions(), LocalSGD(2, outer="nesterov"))
    kept.begin([one], lambda weight: weight)
    kept.begin([one * 2, two], lambda weight: weight)
    weights, velocities = kept.state_dict()["slots"]
    assert [weight.tolist() for weight in weights] == [[1, 1, 1], [7, 7]]
    assert [velocity.tolist() for velocity in velocities] == [[0, 0, 0], [0, 0]]
    other = StatefulExchange("test", GradientOptions(), LocalSGD(2, outer="nesterov"))
    state = kept.state_dict()
    assert state["waiting"] == [0, 1]
    other.load_state_dict({**state, "waiting": []})  # as after an exchange
    with pytest.raises(
        ValueError,
        match=mentioning("2", "1", "weights", "optimizer"),
    ):
        other([one], 2)
    # the checkpoint knew of no frozen ones
    other.begin([one, two, one * 3], np.copy, [False, True, False])
    assert [weights[0] for weights in other.state_dict()["slots"]] == [
        pytest.approx(one),
        pytest.approx(0 * one),
    ]
    assert [weights[2] for weights in other.state_dict()["slots"]] == [None, None]
    assert other.chosen("abc") == ["b"]
    other.begin([one, two, one * 3], lambda weight: weight, [True, False, False], stepping=True)
    assert other.chosen("abc") == ["a", "b"]  # nothing was exchanged yet
