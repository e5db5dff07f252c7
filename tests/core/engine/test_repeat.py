"""Repeated lone collectives run without a queue and a decision, and take the normal path as soon as
anything differs.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from farandole.base.contracts import Observer, Waiting
from farandole.base.types import Buffer, DType, Kind, Request, Sizes
from farandole.core.engine import Engine, Entry
from farandole.core.engine import engine as module
from farandole.errors import (
    DUPLICATE_NAME,
    HorovodInternalError,
    RequestError,
    ShutDownError,
    StalledError,
)
from farandole.job.config import Settings
from tests.kits.messages import mentions
from tests.kits.worlds import until
from tests.pool import ranks


def entry(
    name: str, value: float, kind: Kind = Kind.ALLREDUCE, serial: int = 0, count: int = 4
) -> Entry:
    flat = np.full(count, value, np.float32)
    return Entry(
        Request(name, kind, DType.FLOAT32, (count,)), Buffer(flat, flat, DType.FLOAT32), serial
    )


def summed(engine: Engine, name: str, value: float, serial: int = 0, count: int = 4) -> float:
    one = entry(name, value, serial=serial, count=count)
    engine.run([one])
    return float(one.buffer.out[0])


class Decisions:
    """Counts the decisions of one engine."""

    def __init__(self, engine: Engine) -> None:
        self.made, self._decide = 0, engine._rounds.decide
        engine._rounds.decide = self._counted  # type: ignore[method-assign]

    def _counted(self, *args: Any) -> Any:
        self.made += 1
        return self._decide(*args)


def engines(n: int, fn: Callable[[Engine], Any], observers: Any = (), **settings: Any) -> list[Any]:
    def body(transport: Any) -> Any:
        engine = Engine(transport, Settings(**settings), observers)
        try:
            result = fn(engine)
            engine.run([entry("end", 0.0, Kind.BARRIER)])
            return result
        finally:
            engine.shutdown()

    return ranks(n, body)


@pytest.mark.parametrize("count", [4, 100_000], ids=["with the message", "over the transport"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_from_the_third_time_on_nothing_is_decided(n: int, count: int) -> None:
    def body(engine: Engine) -> int:
        decisions = Decisions(engine)
        for step in range(10):
            assert summed(engine, "a", engine.rank + step, count=count) == sum(range(n)) + n * step
            assert summed(engine, "unnamed", engine.rank, serial=step + 1, count=count) == sum(
                range(n)
            )
        return decisions.made

    assert engines(n, body) == [4] * n


@pytest.mark.parametrize("count", [4, 5000], ids=["with the message", "over the transport"])
def test_a_random_program_of_several_threads_per_rank(count: int) -> None:
    def body(engine: Engine) -> None:
        wrong: list[str] = []
        shuffled = random.Random(engine.rank)

        def lane(mine: str) -> None:
            try:
                for step in range(60):
                    names = [f"{mine}{place}" for place in range(3)]
                    one, two, three = shuffled.sample(names, 3) if step % 3 else names
                    early = [entry(name, step, count=count) for name in (one, two)]
                    handles = [engine.submit([each]) for each in early]
                    got = [summed(engine, three, step, count=count)]
                    for handle, each in zip(handles, early, strict=True):
                        handle.wait()
                        got.append(float(each.buffer.out[0]))
                    got.append(summed(engine, mine, step, count=count))
                    if set(got) != {3.0 * step}:
                        wrong.append(f"{mine}, step {step}: {got}")
            except Exception as error:
                wrong.append(repr(error))

        lanes = [threading.Thread(target=lane, args=(mine,)) for mine in "xyz"]
        for each in lanes:
            each.start()
        for each in lanes:
            each.join()
        assert not wrong

    engines(3, body)


def test_a_rank_with_a_different_request_first() -> None:
    def body(engine: Engine) -> list[float]:
        for _ in range(4):
            summed(engine, "a", 1)
        if engine.rank:
            return [summed(engine, "b", 10), summed(engine, "a", 1), summed(engine, "a", 2)]
        other = entry("b", 20)
        found = []
        waits = threading.Thread(target=lambda: found.append(summed(engine, "a", 3)))
        waits.start()
        until(lambda: engine._outbox.posted or bool(engine._rounds.waiting), "asking for a")
        engine.run([other])
        waits.join()
        return [float(other.buffer.out[0]), *found, summed(engine, "a", 5)]

    assert engines(2, body) == [[30, 4, 7]] * 2


def test_a_name_in_use_leaves_the_running_collective_alone() -> None:
    asked, refused = threading.Event(), threading.Event()

    def body(engine: Engine) -> float:
        for _ in range(4):
            summed(engine, "a", 1)
        if engine.rank:
            assert asked.wait(30)
            assert refused.wait(30)
            return summed(engine, "a", 10)
        found: list[float] = []
        waits = threading.Thread(target=lambda: found.append(summed(engine, "a", 20)))
        waits.start()
        until(lambda: engine._outbox.posted, "asking for a")
        asked.set()
        with pytest.raises(RequestError, match=DUPLICATE_NAME):
            engine.submit([entry("a", 5)])
        with pytest.raises(RequestError, match=DUPLICATE_NAME):
            engine.run([entry("a", 5)])
        refused.set()
        waits.join()
        return found[0]

    assert engines(2, body) == [30, 30]


def any_way(engine: Engine, name: str, value: float) -> float:
    """Return the sum, computed by ``run`` or by ``submit``, which may differ between ranks."""
    if random.random() < 0.5:
        return summed(engine, name, value)
    one = entry(name, value)
    engine.submit([one], soon=True).wait()
    return float(one.buffer.out[0])


def test_a_full_cache_keeps_repeated_calls_correct() -> None:
    def body(engine: Engine) -> None:
        same = random.Random(0)
        for step in range(200):
            name = same.choice("aaabcde")
            assert any_way(engine, name, step + engine.rank) == 2 * step + 1, (step, name)

    engines(2, body, cache_capacity=3)


def test_while_anything_waits_all_take_the_long_way() -> None:
    def body(engine: Engine) -> None:
        for step in range(20):
            assert any_way(engine, "a", step) == 2 * step
        early = entry("late", 1)
        handle = engine.submit([early]) if engine.rank else None
        for step in range(20):
            assert any_way(engine, "a", step) == 2 * step
        (handle or engine.submit([early])).wait()
        assert early.buffer.out[0] == 2

    engines(2, body)


def test_a_departed_rank_and_the_waiting_tensors_are_named() -> None:
    def body(transport: Any) -> str:
        engine = Engine(transport, Settings())
        for _ in range(4):
            summed(engine, "a", 1)
        if engine.rank:
            engine.shutdown()
            return ""
        with pytest.raises(ShutDownError) as caught:
            summed(engine, "a", 1)
        with pytest.raises(ShutDownError):
            summed(engine, "a", 1)
        engine.shutdown()
        return str(caught.value)

    assert mentions(ranks(2, body)[0], "Rank 1", "rank 0")


def test_a_joined_rank_takes_part() -> None:
    def body(engine: Engine) -> list[float]:
        for _ in range(4):
            summed(engine, "a", 1)
        more = [summed(engine, "a", 5) for _ in range(3)] if engine.rank == 0 else []
        engine.run([entry("join", 0, Kind.JOIN, count=0)])
        return [*more, summed(engine, "a", 7)]

    assert engines(2, body) == [[5, 5, 5, 14], [14]]


def test_sizes_change_on_all_ranks_in_one_round() -> None:
    def body(engine: Engine) -> set[int]:
        seen = set()
        for step in range(12):
            if engine.rank == 0 and step == 6:
                engine.propose(Sizes(1000, 2000))
            assert summed(engine, "a", step) == 2 * step
            seen.add((step, engine.sizes.bucket_bytes == 2000))
        return seen

    first, second = engines(2, body)
    assert first == second
    assert (5, False) in first
    assert (6, True) in first


def test_a_late_observer_gets_the_remaining_events() -> None:
    class Heard(Observer):
        def __init__(self) -> None:
            self.names: list[str] = []

        def started(self, kind: Any, names: Any, nbytes: int) -> None:
            self.names += names

    def body(engine: Engine) -> list[str]:
        heard = Heard()
        for step in range(8):
            if engine.rank == 0 and step == 5:
                engine.observers.add(heard)
            summed(engine, "a", 1)
        return heard.names[:3]

    assert engines(2, body) == [["a"] * 3, []]


def test_observers_see_waiting_repeated_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TICK", 0.02)

    class Impatient(Observer):
        def waiting(self, collectives: Any) -> str:
            (wait,) = collectives
            assert isinstance(wait, Waiting)
            return f"{wait.name} waits for {wait.missing}" if wait.missing == (1,) else ""

    over = threading.Event()

    def body(transport: Any) -> str:
        engine = Engine(transport, Settings(), [Impatient()] if transport.rank == 0 else [])
        for _ in range(4):
            summed(engine, "a", 1)
        if engine.rank:
            assert over.wait(30)
            engine.shutdown()
            return ""
        try:
            with pytest.raises(StalledError) as caught:
                summed(engine, "a", 1)
        finally:
            over.set()
        engine.shutdown()
        return str(caught.value)

    assert ranks(2, body)[0].startswith("a waits for (1,)")


def test_an_interrupt_leaves_the_round_to_the_background() -> None:
    interrupted, answered = threading.Event(), threading.Event()

    def body(engine: Engine) -> list[float]:
        for _ in range(4):
            summed(engine, "a", 1)
        if engine.rank == 0:
            board: Any = engine.transport.board
            wait = board.wait

            def interrupting(*args: Any, **kwargs: Any) -> None:
                board.wait = wait
                interrupted.set()
                raise KeyboardInterrupt

            board.wait = interrupting
            with pytest.raises(KeyboardInterrupt):
                summed(engine, "a", 1)
            assert answered.wait(30)
            until(lambda: not engine._outbox.posted, "the end of the round")
            return [summed(engine, "b", 2), summed(engine, "a", 3)]
        assert interrupted.wait(30)
        assert summed(engine, "a", 1) == 2
        answered.set()
        return [summed(engine, "b", 3), summed(engine, "a", 2)]

    assert engines(2, body) == [[5, 5]] * 2


@pytest.mark.parametrize("count", [4, 5000], ids=["with the message", "over the transport"])
def test_a_failure_while_it_runs_ends_all_ranks(count: int) -> None:
    def body(transport: Any) -> str:
        engine = Engine(transport, Settings())
        for _ in range(4):
            summed(engine, "a", 1, count=count)
        one = entry("a", 1, count=count)
        if engine.rank:
            one.buffer.out.flags.writeable = False
        with pytest.raises(HorovodInternalError) as caught:
            [engine.run([one]) for _ in range(2)]  # rank 0 has all that it needs for the first
        engine.shutdown()
        return str(caught.value)

    first, second = ranks(2, body)
    assert mentions(second, "rank 1", "ValueError")
    assert mentions(first, "rank 1", "ValueError")
