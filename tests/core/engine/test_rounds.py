"""A rank's rounds, without threads and wires: messages in, units out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from farandole.base.types import Buffer, DType, Kind, Request, Sizes
from farandole.core.engine import wire
from farandole.core.engine.handle import Entry, Handle, Item
from farandole.core.engine.rounds import RoundDecision, Rounds
from farandole.errors import ShutDownError
from farandole.job.config import Settings
from tests.kits.messages import mentioning


def item(name: str, serial: int = 0, count: int = 4) -> Item:
    data = np.zeros(count, np.float32)
    request = Request(name, Kind.ALLREDUCE, DType.FLOAT32, (count,))
    return Item(
        Entry(request, Buffer(data, data, DType.FLOAT32), serial),
        Handle(1, lambda handle: None),
        0,
        0.0,
    )


def no_stand_in(name: str, request: Request) -> Any:
    raise AssertionError(f"nobody has joined, and {name} needs somebody who has")


def crew(size: int, **settings: Any) -> list[Rounds]:
    return [Rounds(rank, size, Settings(**settings), no_stand_in) for rank in range(size)]


def round_of(
    ranks: list[Rounds], batches: list[list[Item]], notes: dict[int, wire.Note] | None = None
) -> list[RoundDecision]:
    """One round; all must decide the same."""
    notes = notes or {}
    notes = notes or {}  # by rank
    messages = [
        each.message(batch, notes.get(rank)) if batch else b""
        for rank, (each, batch) in enumerate(zip(ranks, batches, strict=True))
    ]
    decisions = [each.decide(messages, batch) for each, batch in zip(ranks, batches, strict=True)]
    units = [[placed.unit.names for placed in decision.placed] for decision in decisions]
    assert units == [units[0]] * len(ranks)
    return decisions


def test_repeated_requests_are_decided_once() -> None:
    ranks = crew(3)
    learned, known, again = [
        round_of(ranks, [[item("a", serial, 10_000), item("b", serial, 10_000)] for _ in ranks])[1]
        for serial in (1, 2, 3)
    ]
    assert [len(decision.responses) for decision in (learned, known, again)] == [2, 2, 0]
    assert again.placed is known.placed
    assert again.asked is None
    assert [entry.entry.name for entry in again.items] == ["a.3", "b.3"]


def test_requests_of_some_ranks_wait_for_the_others() -> None:
    ranks = crew(2)
    assert not round_of(ranks, [[item("a")], [item("b")]])[0].placed
    assert [list(each.waiting) for each in ranks] == [["a"], ["b"]]
    assert ranks[0].missing() == {"a": (1,), "b": (0,)}
    decisions = round_of(ranks, [[item("b")], [item("a")]])
    assert [sorted(entry.entry.name for entry in decision.items) for decision in decisions] == [
        ["a", "b"]
    ] * 2
    assert not any(each.waiting for each in ranks)


def test_a_rank_waiting_for_another_call_voids_the_decision() -> None:
    ranks = crew(2)
    for serial in (1, 2):
        round_of(ranks, [[item("a", serial)], [item("a", serial)]])
    round_of(ranks, [[item("late")], []])
    decision = round_of(ranks, [[item("a", 3)], [item("a", 3)]])[0]
    assert decision.asked is not None, "somebody waits: nothing is remembered"
    assert [placed.unit.names for placed in decision.placed] == [("a.3",)]


def test_attached_elements_need_equal_requests_of_all_ranks() -> None:
    ranks = crew(2)
    for serial in (1, 2):
        round_of(ranks, [[item("a", serial), item("b", serial)]] * 2)
    assert round_of(ranks, [[item("a", 3), item("b", 3)]] * 2)[0].attached
    apart = round_of(ranks, [[item("a", 4)], [item("b", 4)]])[0]
    assert not apart.placed
    met = round_of(ranks, [[item("b", 4)], [item("a", 4)]])[0]
    assert all(placed.here is None for placed in met.placed)


def test_rank_0_changes_the_sizes_of_all_in_one_round() -> None:
    ranks = crew(2)
    for serial in (1, 2):
        round_of(ranks, [[item("a", serial), item("b", serial)]] * 2)
    usual = ranks[0].sizes
    sizes = Sizes(0, 1 << 20)
    notes = {0: wire.Note(sizes, [1.0, 2.0]), 1: wire.Note(Sizes(1, 1), [])}
    decision = round_of(ranks, [[item("a", 3), item("b", 3)]] * 2, notes)[1]
    assert usual != sizes
    assert [each.sizes for each in ranks] == [sizes, sizes]
    assert len(decision.placed) == 2, "nothing is fused any more, from this round on"
    assert decision.since == [[1.0, 2.0], []]


def test_the_memory_of_signatures_is_cleared_on_all_ranks() -> None:
    ranks = crew(2, cache_capacity=2)
    for turn in range(6):
        names = ["a", "b", "c"][turn % 3 :] + ["a", "b", "c"][: turn % 3]
        for name in names:
            assert len(round_of(ranks, [[item(name, turn + 1)]] * 2)[0].placed) == 1


def test_a_departed_rank_is_reported_with_waiting_tensors() -> None:
    ranks = crew(2)
    batch = [item("loss")]
    messages = [ranks[0].message(batch), wire.encode([], [], shutdown=True)]
    with pytest.raises(ShutDownError, match=mentioning("rank 1", "rank 0", "loss")):
        ranks[0].decide(messages, batch)
    assert list(ranks[0].waiting) == ["loss"]
