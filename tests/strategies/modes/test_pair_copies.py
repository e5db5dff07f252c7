"""``gossip_async`` with a codec (CHOCO-SGD in pairs) against a model, and what must stay whatever
gets lost.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from farandole.core.ps.pairs import SharedWeights, WholeAverages
from farandole.strategies.codecs import codec as codec_of
from farandole.strategies.modes.gossip_async import AsyncGossip, asked
from farandole.strategies.options import GradientOptions
from farandole.strategies.pair_copies import CodedAverages
from farandole.strategies.weights import WeightExchange
from tests.run_job import job
from tests.strategies.modes.test_gossip_async import take_turns
from tests.strategies.modes.test_neighbours import CODECS, beginning, drift, flat, largest
from tests.strategies.modes.test_parameter_servers import ORDER

GAMMA, SHARE = 0.1, 0.3  # of topk


class Model:
    """Three ranks, all in one process. Nothing travels: each pair has the two copies once."""

    def __init__(self) -> None:
        self.weights = [flat(beginning(rank)) for rank in range(3)]
        self.statistics = [np.zeros(2) for _ in range(3)]
        self._copies: dict[tuple[int, int], list[Any]] = {}

    def average(self, low: int, high: int) -> None:
        pair = (low, high)
        if pair not in self._copies:
            self._copies[pair] = [self.weights[rank].copy() for rank in pair]
        copies = self._copies[pair]
        for place, rank in enumerate(pair):
            copies[place] = copies[place] + largest(self.weights[rank] - copies[place], SHARE)
        way = GAMMA / 2 * (copies[1] - copies[0])
        self.weights[low] = self.weights[low] + way
        self.weights[high] = self.weights[high] - way
        mean = (self.statistics[low] + self.statistics[high]) / 2
        self.statistics[low], self.statistics[high] = mean, mean

    def settle(self) -> None:
        self.weights = [sum(self.weights) / 3] * 3
        self.statistics = [sum(self.statistics) / 3] * 3
        self._copies.clear()


@pytest.mark.parametrize("graph", ["ring", "complete"])
def test_ranks_are_their_model(graph: str) -> None:
    settled = len(ORDER) // 2

    def fn(rank: int) -> Any:
        weights, statistics = beginning(rank), [np.zeros(2)]
        exchange = WeightExchange(
            "test", GradientOptions(codec=f"topk:{SHARE}"), AsyncGossip(graph)
        )
        slots = exchange.slots(weights)

        def settle(place: int) -> None:
            if place == settled:
                exchange.average(weights, slots, statistics=statistics)

        exchange.average(weights, slots, statistics=statistics)  # from now on each goes by itself
        take_turns(rank, exchange, weights, slots, statistics, drift, settle)
        own = flat(weights)
        for weight in weights:
            weight += 1.0
        exchange.average(weights, slots, statistics=statistics)
        return own, flat(weights), statistics[0]

    found = job(3, fn, store=True)
    model, steps = Model(), [0] * 3
    model.settle()
    # as each rank had them after its last exchange, before the average that it asked for
    mine = list(model.weights)
    for place, rank in enumerate(ORDER):
        steps[rank] += 1
        model.weights[rank] = model.weights[rank] + flat(drift(rank, place))
        model.statistics[rank] = model.statistics[rank] + rank
        mine[rank] = model.weights[rank]
        for other in asked(graph, rank, 3, steps[rank])[:1]:
            model.average(rank, other)
        if place == settled:
            model.settle()
            mine = list(model.weights)
    model.settle()
    for rank, (own, weights, statistics) in enumerate(found):
        np.testing.assert_allclose(own, mine[rank], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(weights, model.weights[0] + 1.0, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(statistics, model.statistics[0], rtol=1e-9)


def ranks_of(spec: str, n: int) -> list[tuple[SharedWeights, CodedAverages, Any]]:
    found = []
    for rank in range(n):
        random, codec = np.random.default_rng(rank), codec_of(spec)
        assert codec is not None
        first = [random.standard_normal(40), np.full(3, rank, np.float32), np.full(2, float(rank))]
        shared = SharedWeights(first, statistics=1)
        found.append((shared, CodedAverages(shared, codec, ["a", "b"], rank), codec))  # type: ignore[arg-type]
    return found


def average(
    ranks: list[tuple[SharedWeights, CodedAverages, Any]], low: int, high: int, lost: str = ""
) -> None:
    """As two ``PeerGroup`` do. ``lost``: on which way a message gets lost, and whether ``high``
    hears of it.
    """
    asking, answering = ranks[low][1], ranks[high][1]
    answering.greeted(low, asking.greeting(high))
    asking.greeted(high, answering.greeting(low))
    lent = asking.lend(high)
    if lost == "there":
        return
    room = answering.room([array.nbytes for array in lent])
    for place, array in zip(room, lent, strict=True):
        place[...] = array
    given = answering.halve(low, room)
    if lost == "back":
        answering.undo(low)
    elif not lost:
        asking.move(high, given)


@pytest.mark.parametrize("spec", CODECS)
def test_the_sum_stays_and_ranks_come_to_one_mind_whatever_gets_lost(spec: str) -> None:
    ranks = ranks_of(spec, 4)
    first = [
        [array.copy() for array in (*shared.trained, *shared.statistics)] for shared, _, _ in ranks
    ]
    random = np.random.default_rng(7)
    for turn in range(4000):
        low, high = sorted(random.choice(4, 2, replace=False).tolist())
        average(ranks, low, high, lost=("there" if turn % 2 else "back") if turn % 10 == 3 else "")
        if turn == 1000:
            ranks[2][1].forget()  # it has begun anew
    # what is smaller than a threshold is never sent; by two means for all numbers the last of the
    # way is long
    bound = 0.2 if spec in ("threshold:0.05", "onebit") else 0.05
    for place in range(3):
        mean = np.mean([arrays[place] for arrays in first], axis=0)
        now = [[*shared.trained, *shared.statistics][place] for shared, _, _ in ranks]
        np.testing.assert_allclose(np.mean(now, axis=0), mean, atol=1e-5)
        assert max(np.abs(one - mean).max() for one in now) < bound
    assert all(codec.sent > 0 and not codec.state_dict() for _, _, codec in ranks)


@pytest.mark.parametrize(
    ("spec", "shape", "to"),
    [
        ("topk:0.02", (1000,), 0.5),
        ("topk:0.004", (1000,), 0.5),
        ("randomk:0.02", (1000,), 0.5),
        ("powersgd:1", (100, 100), 0.8),
        ("powersgd:4", (100, 100), 0.5),
    ],
)
def test_ranks_do_not_come_apart_where_little_is_sent(
    spec: str, shape: tuple[int, ...], to: float
) -> None:
    codecs, random = [codec_of(spec) for _ in range(2)], np.random.default_rng(3)
    shared = [SharedWeights([random.standard_normal(shape)]) for _ in range(2)]
    ranks = [
        (one, CodedAverages(one, codec, ["a"], rank), codec)  # type: ignore[arg-type]
        for rank, (one, codec) in enumerate(zip(shared, codecs, strict=True))
    ]
    away = [np.linalg.norm(shared[1].trained[0] - shared[0].trained[0])]
    for turn in range(1, 501):
        average(ranks, 0, 1)
        if turn % 100 == 0:
            away.append(np.linalg.norm(shared[1].trained[0] - shared[0].trained[0]))
    assert max(away[1:]) < away[0], away
    assert away[-1] < to * away[0], away


def test_how_far_a_pair_goes_is_an_argument() -> None:
    for codec in ("", "int8"):
        shared = [SharedWeights([np.full(300, float(rank))]) for rank in range(2)]
        made = codec_of(codec)
        ranks: list[Any] = [
            (
                one,
                CodedAverages(one, made, ["a"], rank, 0.5) if made else WholeAverages(one, 0.5),
                made,
            )  # type: ignore[arg-type]
            for rank, one in enumerate(shared)
        ]
        average(ranks, 0, 1)
        assert np.allclose(shared[0].trained[0], 0.25)
        assert np.allclose(shared[1].trained[0], 0.75)
    assert AsyncGossip.parse("ring,gamma=0.25").spec == "gossip_async:ring,every=1,gamma=0.25"
    with pytest.raises(
        ValueError, match=r"gossip_async: gamma='2' must be more than 0 and at most 1"
    ):
        AsyncGossip(gamma="2")


def test_weights_that_became_no_numbers_are_replaced_when_they_are_numbers_again() -> None:
    ranks = ranks_of("topk:0.3", 2)
    for _ in range(3):
        average(ranks, 0, 1)
    with np.errstate(all="ignore"):
        ranks[0][0].trained[0][:] = np.nan
        average(ranks, 0, 1)
    for shared, _, _ in ranks:
        shared.trained[0][:] = 2.0
    for _ in range(200):
        average(ranks, 0, 1)
    assert all(np.allclose(shared.trained[0], 2.0, atol=0.05) for shared, _, _ in ranks)


def test_ranks_without_numbers_average_their_statistics() -> None:
    codec, found = codec_of("int8"), []
    for rank in range(2):
        shared = SharedWeights([np.zeros(0), np.full(2, float(rank))], statistics=1)
        found.append((shared, CodedAverages(shared, codec, ["a"], rank), codec))  # type: ignore[arg-type]
    average(found, 0, 1)
    assert all(shared.statistics[0].tolist() == [0.5, 0.5] for shared, _, _ in found)


def test_messages_that_do_not_fit() -> None:
    ranks = ranks_of("int8", 2)
    asking, answering, other = ranks[0][1], ranks[1][1], ranks_of("topk:0.1", 1)[0][1]
    for sizes in ([], [1 << 30, 16], [-1, 16], [100, 24], [100], [100, 16, 16]):
        with pytest.raises(ValueError, match=r"a message of .* bytes does not fit"):
            answering.room(sizes)
    for message in (np.zeros(24, np.uint8), np.zeros(3, np.uint8), other.lend(1)[0]):
        with pytest.raises(
            ValueError, match=r"rank 1 cannot read what rank 0 sent of its weights .*the same codec"
        ):
            answering.halve(0, [message, np.zeros(2)])
    asking.lend(1)
