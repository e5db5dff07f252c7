"""The engine over real wires: any order, errors on all ranks, endings."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from farandole.base.contracts import Observer, Waiting
from farandole.base.types import Buffer, DType, Kind, ReduceOp, Request
from farandole.core.engine import Engine, Entry
from farandole.core.engine.subscribers import Subscribers
from farandole.core.observe.stall import StallCheck
from farandole.errors import HorovodInternalError, MismatchError, PeerLostError, ShutDownError
from farandole.job.config import Settings
from tests.kits.messages import mentioning, mentions
from tests.kits.worlds import until
from tests.pool import procs, ranks

SIZES = [1, 2, 3, 4]


def entry(
    name: str, array: np.ndarray, kind: Kind = Kind.ALLREDUCE, serial: int = 0, **kwargs: Any
) -> Entry:
    flat, dtype = array.reshape(-1), DType(str(array.dtype))
    return Entry(
        Request(name, kind, dtype, array.shape, **kwargs), Buffer(flat, flat, dtype), serial
    )


def engines(n: int, fn: Callable[[Engine], Any], wire: Any = ranks, **settings: Any) -> list[Any]:
    """Run ``fn(engine)`` on n ranks."""

    def body(transport: Any) -> Any:
        engine = Engine(transport, Settings(**settings))
        try:
            result = fn(engine)
            meet(engine)
            return result
        finally:
            engine.shutdown()

    return wire(n, body)


def meet(engine: Engine) -> None:
    engine.run([entry("meet", np.zeros(0, np.float32), Kind.BARRIER)])


@pytest.mark.parametrize("n", SIZES)
def test_a_hundred_handles_in_different_orders(n: int) -> None:
    def body(engine: Engine) -> None:
        shuffled = random.Random(engine.rank)
        for turn in range(3):  # new names, known names, remembered decisions
            tensors = {
                f"t{i}": np.full(i % 7, i + engine.rank + turn, np.float32) for i in range(100)
            }
            names = shuffled.sample(sorted(tensors), len(tensors))
            handles = {name: engine.submit([entry(name, tensors[name])]) for name in names}
            for name in shuffled.sample(names, len(names)):
                handles[name].wait()
                assert handles[name].done()
                expected = n * (int(name[1:]) + turn) + n * (n - 1) / 2
                assert np.all(tensors[name] == expected), name

    engines(n, body)


def test_different_collectives_are_an_error_on_all_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("farandole.core.engine.engine._PATIENCE", 0.0)
    monkeypatch.setattr("farandole.core.engine.engine._TICK", 0.01)

    def body(engine: Engine) -> None:
        one = np.ones(3, np.float32)
        verbs = ["allreduce", "allgather", "broadcast"]
        for serial, text in ((0, "name: w"), (7, "number")):
            label = "noname" if serial else "w"
            for turn in range(2):  # with requests in full, and by number
                verb = verbs[(engine.rank + turn) % 3 if serial else engine.rank]
                with pytest.raises(MismatchError, match=mentioning(text)):
                    engine.run(
                        [
                            entry(
                                f"{verb}.{label}",
                                one.copy(),
                                Kind[verb.upper()],
                                serial and serial + turn,
                            )
                        ]
                    )
        handles = [
            engine.submit([entry(f"{verb}.w", one.copy(), Kind[verb.upper()])])
            for verb in verbs[engine.rank :]
        ]
        handles += [
            engine.submit([entry(f"{verb}.w", one.copy(), Kind[verb.upper()])])
            for verb in verbs[: engine.rank]
        ]
        for handle in handles:
            handle.wait()

    engines(3, body)


def test_the_same_over_shared_memory_between_processes() -> None:
    def body(engine: Engine) -> float:
        total = 0.0
        for step in range(30):
            tensors = [np.full(1000, engine.rank + step, np.float32) for _ in range(20)]
            order = random.Random(engine.rank * 1000 + step).sample(range(20), 20)
            handles = [
                engine.submit([entry(f"g{i}", tensors[i], op=ReduceOp.AVERAGE)]) for i in order
            ]
            for handle in handles:
                handle.wait()
            total += sum(float(tensor.sum()) for tensor in tensors)
        return total

    expected = sum(20 * 1000 * (step + 0.5) for step in range(30))
    assert engines(2, body, procs) == [expected] * 2


@pytest.mark.parametrize("n", SIZES)
def test_every_kind(n: int) -> None:
    def body(engine: Engine) -> None:
        rank = engine.rank
        rows = np.full((rank + 1, 2), rank, np.int32)
        ((gathered, parts),) = engine.run([entry("g", rows, Kind.ALLGATHER)])
        assert parts == tuple(range(1, n + 1))
        assert gathered.tolist() == [r for r in range(n) for _ in range(2 * (r + 1))]
        word = np.full(5, rank, np.int64)
        engine.run([entry("b", word, Kind.BROADCAST, root=n - 1)])
        assert np.all(word == n - 1)
        splits = tuple(range(n))
        ((received, got),) = engine.run(
            [entry("x", np.full(sum(splits), rank, np.int16), Kind.ALLTOALL, splits=splits)]
        )
        assert got == (rank,) * n
        assert received.tolist() == [r for r in range(n) for _ in range(rank)]
        (mine,) = engine.run([entry("r", np.ones((2 * n + 1, 3), np.float64), Kind.REDUCESCATTER)])
        assert len(mine) == 3 * (2 + (rank == 0))
        assert np.all(mine == n)
        memory = engine.allocate(1 << 18).view(np.float32)
        memory[:] = rank + 1
        engine.run([entry("m", memory, op=ReduceOp.MAX)])
        assert np.all(memory == n)

    engines(n, body)


def test_memory_may_be_allocated_while_something_waits() -> None:
    def body(engine: Engine) -> None:
        late = np.ones(2, np.float32)
        if engine.rank == 0:
            handle = engine.submit([entry("late", late)])
            engine.allocate(1 << 12)
        else:
            engine.allocate(1 << 12)
            handle = engine.submit([entry("late", late)])
        handle.wait()
        assert np.all(late == 2)

    engines(2, body)


def test_groups_run_as_one_and_mixed_dtypes_are_fine() -> None:
    def body(engine: Engine) -> None:
        arrays = [np.ones(4, np.float32), np.ones(5, np.int32), np.ones(6, np.float32)]
        entries = [entry(f"g_{i}of3", a, group="g", group_size=3) for i, a in enumerate(arrays)]
        if engine.rank:
            entries.reverse()
        engine.run(entries)
        assert all(np.all(array == 2) for array in arrays)

    engines(2, body)


def test_unnamed_collectives_are_matched_by_serial_number() -> None:
    def body(engine: Engine) -> None:
        arrays = [np.full(3, i, np.float32) for i in range(50)]
        handles = [engine.submit([entry("noname", a, serial=i + 1)]) for i, a in enumerate(arrays)]
        for handle in reversed(handles):
            handle.wait()
        assert [a[0] for a in arrays] == [2 * i for i in range(50)]

    engines(2, body)


@pytest.mark.parametrize("n", [2, 4])
def test_a_mismatch_fails_on_all_ranks_and_the_engine_lives(n: int) -> None:
    def body(engine: Engine) -> None:
        for turn in range(3):
            odd = np.ones(3 if engine.rank == n - 1 else 4, np.float32)
            with pytest.raises(
                HorovodInternalError, match=mentioning("Mismatched ALLREDUCE", "shapes")
            ):
                engine.run([entry("odd", odd)])
            good = np.ones(3, np.float32)
            engine.run([entry("odd", good)])
            assert np.all(good == n), turn

    engines(n, body)


def test_a_name_in_use_refuses_the_whole_group() -> None:
    def body(engine: Engine) -> None:
        if engine.rank == 0:
            first = engine.submit([entry("a", np.ones(2, np.float32))])
            with pytest.raises(HorovodInternalError, match=mentioning("name", "tensor")):
                engine.submit(
                    [entry("b", np.ones(2, np.float32)), entry("a", np.ones(2, np.float32))]
                )
            second = engine.submit([entry("b", np.ones(2, np.float32))])
        else:
            first, second = (engine.submit([entry(name, np.ones(2, np.float32))]) for name in "ab")
        first.wait()
        second.wait()

    engines(2, body)


def test_several_threads_submit_concurrently() -> None:
    def body(engine: Engine) -> None:
        def work(lane: int) -> None:
            for i in range(20):
                array = np.full(10, lane, np.float32)
                engine.run([entry(f"lane{lane}.{i}", array)])
                assert np.all(array == 2 * lane)

        lanes = [threading.Thread(target=work, args=(lane,)) for lane in range(4)]
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()

    engines(2, body)


@pytest.mark.parametrize(
    "settings", [{"cache_capacity": 0}, {"cache_capacity": 3}, {"fusion_threshold": 0}]
)
def test_small_caches_and_no_fusion_change_nothing(settings: dict[str, int]) -> None:
    def body(engine: Engine) -> None:
        for _ in range(5):
            arrays = [np.ones(100, np.float32) for _ in range(8)]
            handles = [engine.submit([entry(f"t{i}", a)]) for i, a in enumerate(arrays)]
            for handle in handles:
                handle.wait()
            assert all(np.all(array == 3) for array in arrays)

    engines(3, body, **settings)


def test_the_departure_of_a_rank_is_reported_to_the_others() -> None:
    def body(transport: Any) -> str:
        engine = Engine(transport, Settings())
        meet(engine)
        if engine.rank == 0:
            engine.shutdown()
            return "left"
        with pytest.raises(ShutDownError, match=mentioning("Farandole", "shut down")) as caught:
            engine.run([entry("a", np.ones(2, np.float32))])
        with pytest.raises(ShutDownError):
            engine.submit([entry("b", np.ones(2, np.float32))])
        engine.shutdown()
        return str(caught.value)

    texts = ranks(3, body)
    assert all(mentions(text, "Rank 0") and "waited for a" in text for text in texts[1:])


def test_shutdown_fails_pending_collectives() -> None:
    def body(transport: Any) -> None:
        engine = Engine(transport, Settings())
        if engine.rank == 0:
            handle = engine.submit([entry("never", np.ones(2, np.float32))])
            engine.shutdown()
            with pytest.raises(ShutDownError):
                handle.wait()
        else:
            engine.shutdown()

    ranks(2, body)


def test_a_killed_peer_is_named_with_the_pending_tensor() -> None:
    def body(transport: Any) -> str:
        import os
        import signal

        engine = Engine(transport, Settings())
        meet(engine)
        if engine.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(PeerLostError) as caught:
            engine.run([entry("grad.w", np.ones(2, np.float32))])
        engine.shutdown()
        return f"{caught.value.rank} {caught.value}"

    texts = procs(2, body, deaths=True)
    assert texts[0].startswith("1 rank 1 ")
    assert "waiting for grad.w" in texts[0]


def test_a_stalled_rank_ends_the_job_after_the_limit() -> None:
    release = threading.Event()

    def body(transport: Any) -> int:
        settings = Settings(stall_warning_seconds=0.3, stall_shutdown_seconds=0.8)
        engine = Engine(transport, settings, [StallCheck(settings, transport.rank)])
        try:
            if engine.rank == 1:
                release.wait(60)
                return -1
            with pytest.raises(
                PeerLostError, match=mentioning("rank 1", "grad", "0.8 s")
            ) as caught:
                engine.run([entry("grad", np.ones(2, np.float32))])
            return caught.value.rank
        finally:
            release.set()
            engine.shutdown()

    assert ranks(2, body)[0] == 1, "the one that stayed away is named"


def test_observers_see_running_and_waiting_collectives() -> None:
    heard = threading.Event()

    class Notes(Observer):
        def __init__(self) -> None:
            self.ran: list[tuple[str, tuple[str, ...], int]] = []
            self.waited: list[Waiting] = []

        def started(self, kind: Kind, names: Sequence[str], nbytes: int) -> None:
            self.ran.append((kind.name, tuple(names), nbytes))

        def finished(self, kind: Kind, names: Sequence[str]) -> None:
            self.ran.append(("done", tuple(names), 0))

        def waiting(self, collectives: Sequence[Waiting]) -> str:
            self.waited += collectives
            heard.set()
            return ""

    def body(transport: Any) -> Notes:
        notes = Notes()
        engine = Engine(transport, Settings(), [notes])
        assert engine.rank == 0 or heard.wait(60)
        engine.run([entry("a", np.ones(2, np.float32))])
        engine.shutdown()
        return notes

    first = ranks(2, body)[0]
    assert first.ran == [("ALLREDUCE", ("a",), 8), ("done", ("a",), 0)]
    assert [(each.name, each.missing) for each in first.waited][:1] == [("a", (1,))]


def test_only_overridden_methods_of_observers_are_called() -> None:
    class Deaf(Observer):
        pass

    class Half(Observer):
        def finished(self, kind: Kind, names: Sequence[str]) -> None: ...

    deaf, half, stall = Deaf(), Half(), StallCheck(Settings(), 0)
    heard = Subscribers([deaf, half, stall])
    assert heard.running == (half,)
    assert heard.waiting == (stall,)
    assert heard.agreed == heard.settled == ()
    heard.remove(half)
    assert heard.running == ()
    with pytest.raises(ValueError, match=mentioning("engine")):
        heard.remove(half)


@pytest.mark.parametrize("warm", [0, 3])  # three rounds: a remembered decision
def test_a_wait_of_the_program_counts_until_it_ends(warm: int) -> None:
    def body(engine: Engine) -> tuple[float, float]:
        seen: list[float] = []
        for _ in range(warm):
            engine.run([entry("a", np.ones(3))])
        engine.round_listeners.append(lambda: seen.append(engine.blocked))
        before = engine.blocked
        if engine.rank == 1:
            time.sleep(0.3)
        engine.run([entry("a", np.ones(3))])
        during, after = seen[0] - before, engine.blocked - before
        time.sleep(0.3)
        assert engine.blocked - before == after
        return during, after

    waiting, late = engines(2, body)
    assert all(after >= during > 0.0 for during, after in (waiting, late))
    assert waiting[0] > late[0]


def test_a_synchronous_collective_needs_no_other_thread() -> None:
    def body(engine: Engine) -> set[str]:
        seen: set[str] = set()

        class Where(Observer):
            def started(self, kind: Kind, names: Sequence[str], nbytes: int) -> None:
                seen.add(threading.current_thread().name)

        engine.observers.add(Where())
        for _ in range(20):
            engine.run([entry("a", np.ones(2, np.float32))])
        return seen

    for rank, seen in enumerate(engines(2, body)):
        assert seen == {f"rank {rank}"}


def test_a_failed_collective_ends_all_ranks_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def body(transport: Any) -> str:
        engine = Engine(transport, Settings())
        meet(engine)
        if engine.rank == 1:

            def broken(*args: Any) -> None:
                raise MemoryError("no room")

            transport.allreduce = broken
        with pytest.raises(HorovodInternalError) as caught:
            engine.run([entry("a", np.ones(2, np.float32))])
        engine.shutdown()
        return str(caught.value)

    assert all(mentions(text, "rank 1", "MemoryError") for text in ranks(2, body))


@pytest.mark.parametrize("present", [False, True])
def test_ranks_run_out_of_data_one_after_the_other(present: bool) -> None:
    ops = [ReduceOp.SUM, ReduceOp.AVERAGE, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT]
    dtypes = [np.float32, np.float64, np.float16, np.int32, np.uint8]

    def body(engine: Engine) -> int:
        for step in range(3 + engine.rank):
            have = [rank for rank in range(3) if step < 3 + rank]
            for op in ops:
                for dtype in dtypes:
                    array = np.full(4, engine.rank + 2, dtype)
                    engine.run([entry(f"{op.name}.{np.dtype(dtype)}", array, op=op)])
                    values = [rank + 2 for rank in have]
                    expected = {
                        ReduceOp.SUM: sum(values),
                        ReduceOp.AVERAGE: sum(values) / (len(have) if present else 3),
                        ReduceOp.MIN: min(values),
                        ReduceOp.MAX: max(values),
                        ReduceOp.PRODUCT: np.prod(values),
                    }[op]
                    want = np.asarray(expected).astype(dtype)
                    assert np.allclose(array.astype(float), float(want), rtol=1e-3), (
                        step,
                        op,
                        dtype,
                        array,
                    )
        (last,) = engine.run([entry("join", np.zeros(0, np.uint8), Kind.JOIN)])
        return last

    assert engines(3, body, join_mean_of_present=present) == [2, 2, 2]


def test_a_synchronous_collective_skips_the_tick_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank 1 has asked for "both" already; rank 0 asks for it while its background thread waits for
    "alone".
    """

    def body(engine: Engine) -> float:
        if engine.rank:
            for name in ("both", "alone"):
                engine.run([entry(name, np.ones(2, np.float32))])
            return 0.0
        handle = engine.submit([entry("alone", np.ones(2, np.float32))])
        until(
            lambda: "alone" in engine._rounds.waiting and not engine._outbox.posted,
            "a round in which rank 1 asks for another",
        )
        time.sleep(0.01)  # the background thread goes to sleep
        start = time.monotonic()
        engine.run([entry("both", np.ones(2, np.float32))])
        seconds = time.monotonic() - start
        handle.wait()
        return seconds

    monkeypatch.setattr("farandole.core.engine.engine._TICK", 60.0)
    assert max(engines(2, body)[0] for _ in range(5)) < 60.0


@pytest.mark.parametrize("n", [1, 2])
def test_callbacks_run_once_after_success_or_failure(n: int) -> None:
    def body(engine: Engine) -> None:
        calls: list[str] = []
        done = threading.Event()
        before = engine.submit([entry("before", np.ones(3, np.float32))])
        before.when_done(lambda: calls.append(f"first {before.done()}"))
        before.when_done(done.set)
        assert done.wait(60)
        before.when_done(lambda: calls.append("after"))
        bad = engine.submit([entry("bad", np.ones(3 + engine.rank, np.float32))])
        over = threading.Event()
        bad.when_done(over.set)
        assert over.wait(60)
        if n > 1:
            with pytest.raises(HorovodInternalError, match="Mismatched"):
                bad.wait()
        assert calls == ["first True", "after"]

    engines(n, body)
