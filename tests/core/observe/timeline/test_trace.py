"""The trace: events of the life of each tensor, from records. Pure."""

from __future__ import annotations

import json
from collections import Counter

from farandole.base.types import Kind
from farandole.core.observe.timeline.trace import (
    ExchangePart,
    Finished,
    Scope,
    Settled,
    Started,
    Trace,
)
from tests.core.observe.timeline.events import REQUEST, check, events_from, life, of, tensors


def test_the_life_of_a_tensor() -> None:
    events = events_from(
        Settled(101.0, [[("a", REQUEST)], []], [[100.5], []], [], []),
        Settled(102.0, [[], [("a", REQUEST)]], [[], [101.5]], ["a"], []),
        Started(102.25, Kind.ALLREDUCE, ["a"], 24),
        Finished(102.5, Kind.ALLREDUCE, ["a"]),
    )
    check(events)
    assert of(events, "a") == life("ALLREDUCE", "SHM", 2)
    times = {(each["ph"], each["name"]): each["ts"] for each in events if each["ph"] in "BEX"}
    assert times["B", "NEGOTIATE_ALLREDUCE"] == times["X", "0"] == 0.5e6
    assert times["X", "1"] == 1.5e6
    assert (
        times["E", "NEGOTIATE_ALLREDUCE"] == times["B", "ALLREDUCE"] == times["B", "QUEUE"] == 2e6
    )
    assert times["E", "QUEUE"] == times["B", "SHM_ALLREDUCE"] == 2.25e6
    assert times["E", "SHM_ALLREDUCE"] == times["E", "ALLREDUCE"] == 2.5e6
    assert events[-1]["args"] == {"dtype": "float32", "shape": "[2, 3]"}


def test_parts_are_nested_in_exchanges_next_to_the_network() -> None:
    events = events_from(
        Settled(102.0, [[("a", REQUEST)], [("a", REQUEST)]], [[], []], ["a"], []),
        Started(102.0, Kind.ALLREDUCE, ["a"], 24),
        ExchangePart(102.2, 102.1, "SHM_REDUCESCATTER", "a"),
        ExchangePart(102.6, 102.2, "NETWORK_ALLREDUCE", "a"),
        ExchangePart(102.5, 102.3, "SHM_REDUCESCATTER", "a"),
        ExchangePart(102.5, 102.3, "SHM_REDUCESCATTER", "not known"),
        Finished(103.0, Kind.ALLREDUCE, ["a"]),
        Settled(104.0, [[("a", REQUEST)], [("a", REQUEST)]], [[], []], ["a"], []),
    )
    check(events)
    parts = [each for each in events if each["ph"] == "X" and not each["name"].isdigit()]
    assert [(each["name"], each["ts"], each["dur"]) for each in parts] == [
        ("SHM_REDUCESCATTER", 2.1e6, 1e5),
        ("NETWORK_ALLREDUCE", 2.2e6, 4e5),
        ("SHM_REDUCESCATTER", 2.3e6, 2e5),
    ]
    (own,) = {each["tid"] for each in events if each["name"] == "ALLREDUCE"}
    assert [each["tid"] == own for each in parts] == [True, False, True]


def test_a_rank_without_a_ready_time_is_ready_on_arrival() -> None:
    events = events_from(
        Settled(101.0, [[("a", REQUEST)], [("a", REQUEST)]], [[100.5], []], [], [])
    )
    assert [(each["name"], each["ts"]) for each in events if each["ph"] == "X"] == [
        ("0", 0.5e6),
        ("1", 1e6),
    ]


def test_ticks_are_in_the_order_of_time() -> None:
    events = events_from(
        Settled(102.0, [[("a", REQUEST)], [("a", REQUEST)]], [[101.5], [101.0]], [], [])
    )
    assert [(each["name"], each["ts"]) for each in events if each["ph"] == "X"] == [
        ("1", 1e6),
        ("0", 1.5e6),
    ]


def test_failed_collectives_end_with_their_negotiation() -> None:
    both = [[("a", REQUEST)]] * 2
    events = events_from(
        Settled(101.0, both, [[100.5]] * 2, [], ["a"]),
        Settled(102.0, both, [[101.5]] * 2, [], ["a"]),
    )
    check(events)
    assert of(events, "a") == 2 * life("ALLREDUCE", "SHM", 2)[:4]


def test_a_tensor_never_begins_before_it_ended() -> None:
    """A quick peer may ask for the next step's tensor while this rank is still in the last one."""
    both = [[("a", REQUEST)]] * 2
    events = events_from(
        Settled(101.0, both, [[100.5]] * 2, ["a"], []),
        Started(101.0, Kind.ALLREDUCE, ["a"], 24),
        Finished(103.0, Kind.ALLREDUCE, ["a"]),
        Settled(104.0, both, [[103.5], [102.0]], ["a"], []),
    )
    check(events)
    assert [each["ts"] for each in events if each["name"] == "NEGOTIATE_ALLREDUCE"] == [
        0.5e6,
        1e6,
        3e6,
        4e6,
    ]


def test_records_that_were_lost_leave_no_knot() -> None:
    both = [[("a", REQUEST)]] * 2
    settled = Settled(101.0, both, [[100.5]] * 2, ["a"], [])
    check(events_from(settled, settled, Started(101.5, Kind.ALLREDUCE, ["a"], 24)))
    check(
        events_from(
            Started(101.5, Kind.ALLREDUCE, ["a"], 24), Finished(102.0, Kind.ALLREDUCE, ["a"])
        )
    )
    check(events_from(settled, Finished(102.0, Kind.ALLREDUCE, ["a"]), settled))


def test_unnamed_tensors_in_flight_together_lie_side_by_side() -> None:
    request = REQUEST._replace(name="allreduce.noname")
    named = [(f"allreduce.noname.{serial}", request) for serial in (1, 2)]
    names = [name for name, _ in named]
    round_ = [
        Settled(101.0, [named] * 2, [[100.5, 100.6]] * 2, names, []),
        Started(101.5, Kind.ALLREDUCE, names, 48),
        Finished(102.0, Kind.ALLREDUCE, names),
    ]
    events = events_from(*round_, *(each._replace(time=each.time + 9) for each in round_))
    check(events)
    assert list(tensors(events)) == ["allreduce.noname"]
    assert Counter(each["tid"] for each in events if each["name"] == "ALLREDUCE") == {0: 4, 1: 4}


def test_the_engines_of_two_sets_do_not_mix() -> None:
    trace = Trace(0, 4, 100.0, 0.0)
    sets = [Scope("one/", "SHM", [0, 1]), Scope("two/", "SHM", [0, 3])]
    both = [[("a", REQUEST)]] * 2
    lines = trace.opening()
    for record in (
        Settled(101.0, both, [[100.5]] * 2, ["a"], []),
        Started(102.0, Kind.ALLREDUCE, ["a"], 24),
        Finished(103.0, Kind.ALLREDUCE, ["a"]),
    ):
        for scope in sets:
            lines += trace.events((scope, record))
    events = [json.loads(line) for line in lines]
    check(events)
    for name, ranks_of_set in (("one/a", ["0", "1"]), ("two/a", ["0", "3"])):
        assert [what for phase, what in of(events, name) if phase == "X"] == ranks_of_set
        assert len(of(events, name)) == len(life("ALLREDUCE", "SHM", 2))
