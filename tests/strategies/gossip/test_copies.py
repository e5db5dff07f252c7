"""``gossip`` with a codec (CHOCO-SGD) against a model, and the invariants for any codec."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest

import farandole.numpy
from farandole.base.contracts import Consensus
from farandole.errors import JoinedError
from farandole.strategies.codecs import codec as codec_of
from farandole.strategies.gossip.copies import Copies
from farandole.strategies.gossip.graphs import GRAPHS
from farandole.strategies.gossip.synchronous import Gossip
from farandole.strategies.options import GradientOptions
from farandole.strategies.weights import StatefulExchange, WeightExchange
from tests.kits.messages import mentioning, mentions
from tests.run_job import job

SHAPES = [(3, 4), (), (0,), (5,)]
CODECS = [
    "fp16",
    "bf16",
    "int8",
    "onebit",
    "topk:0.2",
    "randomk:0.2",
    "threshold:0.05",
    "powersgd:1",
]

Arrays = list[Any]


def beginning(rank: int) -> Arrays:
    return [np.full(shape, 1.0 + rank) for shape in SHAPES]


def drift(rank: int, step: int) -> Arrays:
    """Return the change of a rank's weights by its own step."""
    random = np.random.default_rng(1000 * step + rank)
    return [random.standard_normal(shape) for shape in SHAPES]


def flat(weights: Arrays) -> Any:
    return np.concatenate([weight.reshape(-1) for weight in weights])


def largest(change: Any, share: float) -> Any:
    sent = np.zeros_like(change)
    places = np.argsort(-np.abs(change))[: math.ceil(share * len(change))]
    sent[places] = change[places]
    return sent


def model(n: int, graph: str, gamma: float, steps: int) -> list[Any]:
    """Return the weights by algorithm 2 of the paper, with all ranks in one process."""
    turns = range(n)
    to = [
        {other for turn in turns for other in GRAPHS[graph](rank, n, turn)} - {rank}
        for rank in range(n)
    ]
    weights = [flat(beginning(rank)) for rank in range(n)]
    copies = [weight.copy() for weight in weights]
    for step in range(1, steps + 1):
        weights = [weight + flat(drift(rank, step)) for rank, weight in enumerate(weights)]
        copies = [
            copy + largest(weight - copy, 0.3) for weight, copy in zip(weights, copies, strict=True)
        ]
        for rank in range(n):
            heard = [other for other in range(n) if rank in to[other]]
            share = 1 / (len(heard) + 1)
            weights[rank] = weights[rank] + gamma * sum(
                share * (copies[other] - copies[rank]) for other in heard
            )
    return weights


@pytest.mark.parametrize("n", [2, 3, 4])
def test_gossip_with_a_codec_is_its_model(n: int) -> None:
    cases = [(graph, gamma) for graph in GRAPHS for gamma in (None, 0.5)]

    def fn(rank: int) -> list[Any]:
        ends = []
        for graph, gamma in cases:
            weights = beginning(rank)
            exchange = WeightExchange(
                "test", GradientOptions(codec="topk:0.3"), Gossip(graph, gamma=gamma)
            )
            slots = exchange.slots(weights)
            for step in range(1, 9):
                for weight, change in zip(weights, drift(rank, step), strict=True):
                    weight += change
                exchange(weights, slots, step)
            ends.append(flat(weights))
        return ends

    found = job(n, fn)
    for place, (graph, gamma) in enumerate(cases):
        for rank, expected in enumerate(model(n, graph, gamma or 0.1, 8)):
            np.testing.assert_allclose(
                found[rank][place], expected, rtol=1e-12, atol=1e-12, err_msg=graph
            )


@pytest.mark.parametrize("graph", ["ring", "exponential"])
def test_ranks_reach_the_mean_with_each_codec(graph: str) -> None:
    def fn(rank: int) -> list[Any]:
        found = []
        for spec in CODECS:
            weights = [np.random.default_rng(rank).standard_normal(40), np.full(3, float(rank))]
            exchange = WeightExchange("test", GradientOptions(codec=spec), Gossip(graph))
            slots = exchange.slots(weights)
            for step in range(1, 301):
                exchange(weights, slots, step)
            assert exchange.codec is not None
            assert exchange.codec.sent > 0
            found.append(flat(weights))
        return found

    ends = job(4, fn)
    mean = np.mean(
        [
            flat([np.random.default_rng(rank).standard_normal(40), np.full(3, float(rank))])
            for rank in range(4)
        ],
        axis=0,
    )
    for spec, *ranks in zip(CODECS, *ends, strict=True):
        np.testing.assert_allclose(np.mean(ranks, axis=0), mean, atol=1e-6, err_msg=spec)
        # what is smaller than a threshold is never sent; by two means for all numbers the last of
        # the way is long
        bound = 0.2 if spec in ("threshold:0.05", "onebit") else 0.05
        assert np.abs(np.array(ranks) - mean).max() < bound, spec


@pytest.mark.parametrize("codec", ["int8", "topk:0.2", "powersgd:1"])
def test_a_run_continues_bit_for_bit(codec: str) -> None:
    """Copies of neighbours are not in a checkpoint: neighbours send theirs once in full."""

    def fn(rank: int) -> None:
        def trained(kept: StatefulExchange, weights: Arrays, steps: range) -> None:
            for step in steps:
                kept.begin(weights, np.copy, stepping=True)
                for weight, change in zip(weights, drift(rank, step), strict=True):
                    weight += np.asarray(change, weight.dtype)
                kept(weights, step)

        weights = [
            weight.astype(kind) for weight, kind in zip(beginning(rank), "fdff", strict=True)
        ]
        kept = StatefulExchange("test", GradientOptions(codec=codec), Gossip("ring"))
        trained(kept, weights, range(1, 6))
        assert kept.exchange.codec is not None
        saved = pickle.dumps((kept.state_dict(), kept.exchange.codec.state_dict(), weights))
        trained(kept, weights, range(6, 12))
        state, of_codec, others = pickle.loads(saved)
        again = StatefulExchange("test", GradientOptions(codec=codec), Gossip("ring"))
        again.load_state_dict(state)
        assert again.exchange.codec is not None
        again.exchange.codec.load_state_dict(of_codec)
        trained(again, others, range(6, 12))
        assert [weight.tobytes() for weight in others] == [weight.tobytes() for weight in weights]

    job(3, fn)


def test_a_copy_missing_at_neighbours_is_sent_again() -> None:
    """For example after rank 0's state was sent to all in mid-run: the mean of all weights stays."""

    def fn(rank: int) -> tuple[Any, Any]:
        weights = [np.random.default_rng(rank).standard_normal(30)]
        exchange = WeightExchange("test", GradientOptions(codec="topk:0.1"), Gossip("ring"))
        slots = exchange.slots(weights)
        for step in range(1, 6):
            exchange(weights, slots, step)
        slots[-1][0][:] = np.random.default_rng(0).standard_normal(30)
        before = weights[0].copy()
        for step in range(6, 200):
            exchange(weights, slots, step)
        return before, weights[0]

    befores, afters = zip(*job(3, fn), strict=True)
    np.testing.assert_allclose(np.mean(afters, axis=0), np.mean(befores, axis=0), atol=1e-9)
    assert np.ptp(afters, axis=0).max() < 0.1


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_ranks_recover_from_a_weight_that_is_not_finite(wrong: float) -> None:
    """All ranks load earlier weights; no difference could repair a copy."""

    def fn(rank: int) -> list[Any]:
        found = []
        for spec in CODECS:
            weights = [np.random.default_rng(rank).standard_normal(30)]
            exchange = WeightExchange("test", GradientOptions(codec=spec), Gossip("ring"))
            slots = exchange.slots(weights)
            exchange(weights, slots, 1)
            before = weights[0].copy()
            if rank == 1:
                weights[0][3] = wrong
            with np.errstate(all="ignore"):
                exchange(weights, slots, 2)
            weights[0][:] = before
            for step in range(3, 6):
                exchange(weights, slots, step)
            found.append((before, weights[0]))
        return found

    for spec, *ranks in zip(CODECS, *job(3, fn), strict=True):
        befores, afters = zip(*ranks, strict=True)
        np.testing.assert_allclose(
            np.mean(afters, axis=0), np.mean(befores, axis=0), atol=1e-9, err_msg=spec
        )


def test_old_copies_do_not_undo_an_average() -> None:
    def fn(rank: int) -> Any:
        weights = [np.random.default_rng(rank).standard_normal(30)]
        exchange = WeightExchange("test", GradientOptions(codec="topk:0.1"), Gossip("ring"))
        slots = exchange.slots(weights)
        for step in range(1, 4):
            weights[0] += np.random.default_rng([rank, step]).standard_normal(30)
            exchange(weights, slots, step)
        exchange.average(weights, slots)
        exchange(weights, slots, 4)
        return weights[0]

    assert np.ptp(job(3, fn), axis=0).max() < 1e-12


def test_an_average_leaves_slots_of_a_strategy_alone() -> None:
    """Without a codec there is no copy behind them."""

    class Slotted(Gossip):
        slots = ("zeros",)

    def fn(rank: int) -> list[float]:
        weights = [np.full(2, 1.0 + rank)]
        exchange = WeightExchange("test", GradientOptions(), Slotted())
        slots = exchange.slots(weights)
        exchange.average(weights, slots)
        assert weights[0].tolist() == [1.5] * 2
        return slots[0][0].tolist()

    assert job(2, fn) == [[0.0] * 2] * 2


def test_copies_of_other_shapes_travel_whole_and_count() -> None:
    """Added weights may have no bytes, and others the same number of bytes."""

    def fn(rank: int) -> None:
        for more in (np.empty(0), np.empty(0, np.float32)):
            weights = [np.zeros(2), np.zeros(6)]
            exchange = WeightExchange("test", GradientOptions(codec="fp16"), Gossip("ring"))
            exchange(weights, exchange.slots(weights), 1)
            assert exchange.codec is not None
            assert exchange.codec.sent == 2 * (64 + 16)
            exchange(weights, exchange.slots(weights), 2)
            assert exchange.codec.sent == 2 * (64 + 16 + 16)
            for others in (
                [*weights, more],
                [np.ones((6, 1)), np.ones(2)],
                [np.ones(2), np.ones((1, 6))],
            ):
                exchange(others, exchange.slots(others), 3)

    job(3, fn)


def test_a_lost_message_is_sent_again() -> None:
    """A rank that has called ``join()`` refuses it; the copies of neighbours do not have it."""

    def fn(rank: int) -> tuple[Any, Any]:
        weights = [np.random.default_rng(rank).standard_normal(30)]
        exchange = WeightExchange("test", GradientOptions(codec="topk:0.1"), Gossip("ring"))
        slots = exchange.slots(weights)
        exchange(weights, slots, 1)
        if rank:
            with pytest.raises(JoinedError, match=mentioning("join", "weights")):
                exchange(weights, slots, 2)
        farandole.numpy.join()
        before = weights[0].copy()
        for step in range(3, 6):
            exchange(weights, slots, step)
        return before, weights[0]

    befores, afters = zip(*job(3, fn), strict=True)
    np.testing.assert_allclose(np.mean(afters, axis=0), np.mean(befores, axis=0), atol=1e-12)


@pytest.mark.parametrize("codec", ["", "int8"])
def test_other_weights_of_the_same_size_are_an_error(codec: str) -> None:
    """Each rank has frozen a different parameter: they would average unrelated weights."""

    def fn(rank: int) -> str:
        kept = StatefulExchange("test", GradientOptions(codec=codec or None), Gossip("ring"))
        weights, names = [np.full(3, 1.0), np.full(3, 2.0)], ["first", "second"]
        for step in range(1, 5):
            if step == 3:
                del weights[rank], names[rank]
                kept.moved([1 - rank])
            kept.begin(weights, np.copy)
            try:
                kept(weights, step, names)
            except ValueError as error:
                assert weights[0].tolist() == [2.0 - rank] * 3
                return str(error)
        return ""

    for rank, text in enumerate(job(2, fn)):
        left = ("second", "first")[rank]
        assert mentions(text, f"rank {1 - rank}", f"rank {rank}", left)


def test_messages_of_other_weights_are_refused() -> None:
    codec = codec_of("int8")
    own, weights = [np.zeros(9)], [np.ones(9)]
    message = Copies(codec, 0).message(weights, own, ["w"], 1)  # type: ignore[arg-type]
    assert own[0].tolist() == [1.0] * 9
    for wrong in (message[:-1], message[:10], message[:0], np.concatenate([message, message[:1]])):
        with pytest.raises(ValueError, match=mentioning("bytes", "weights")):
            Copies(codec, 1).read(0, wrong, weights)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=mentioning("bytes", "weights")):
        Copies(codec, 1).read(0, message, [np.zeros(8)])  # type: ignore[arg-type]
    later = Copies(codec, 0)  # type: ignore[arg-type]
    later.message(weights, own, ["w"], 1)
    with pytest.raises(ValueError, match=mentioning("bytes", "weights")):
        Copies(codec, 1).read(0, later.message(weights, own, ["w"], 1), weights)  # type: ignore[arg-type]


def test_consensus_steps_of_codecs() -> None:
    found = {}
    for spec in [*CODECS, "randomk:0.01", "powersgd:4", "topk:0.01"]:
        codec = codec_of(spec)
        assert isinstance(codec, Consensus)
        found[spec] = codec.consensus_step([(3, 300, 2), (64, 100), (300, 1), (7,)])
    assert found == {
        "fp16": 1.0,
        "bf16": 1.0,
        "int8": 1.0,
        "onebit": 0.5,
        "topk:0.2": 0.1,
        "topk:0.01": 0.02,
        "randomk:0.2": 0.1,
        "randomk:0.01": 0.005,
        "threshold:0.05": 0.5,
        "powersgd:1": 1 / 64,
        "powersgd:4": 4 / 64,
    }
    assert Gossip("ring", gamma="0.25").spec == "gossip:ring,every=1,gamma=0.25"
    assert Gossip.parse("ring,gamma=1").gamma == 1.0
    for wrong in (0, 1.5, "x", "nan"):
        with pytest.raises(ValueError, match=mentioning("0", "1")):
            Gossip(gamma=wrong)
