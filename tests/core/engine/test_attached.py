"""Small tensors that travel with the messages give the same results as over the transport."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from farandole.base.contracts import Observer
from farandole.base.types import Buffer, DType, Kind, ReduceOp, Request
from farandole.core.engine import Engine, Entry, attached, wire
from farandole.job.config import Settings
from tests.kits.oracle import values
from tests.pool import procs, ranks


class Counted:
    """A transport that counts its collectives."""

    def __init__(self, transport: Any) -> None:
        self._transport, self.done = transport, 0

    def __getattr__(self, name: str) -> Any:
        if name in ("allreduce", "allgather", "broadcast", "barrier", "alltoall", "reducescatter"):
            self.done += 1
        return getattr(self._transport, name)


def entry(name: str, flat: Any, dtype: DType, kind: Kind = Kind.ALLREDUCE, **kwargs: Any) -> Entry:
    return Entry(Request(name, kind, dtype, flat.shape, **kwargs), Buffer(flat, flat.copy(), dtype))


def cases(rank: int) -> list[Entry]:
    """Return one case for each kind, operation and type that may travel."""
    found = []
    ops = (ReduceOp.SUM, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT, ReduceOp.AVERAGE)
    for dtype in DType:
        for op in ops[1:3] if dtype is DType.BOOL else ops[: 4 if dtype is DType.INT64 else 5]:
            post = 0.75 if dtype.is_float else 1.0
            found.append(
                entry(
                    f"{dtype.value}.{op.name}", values(dtype, 9, rank), dtype, op=op, postscale=post
                )
            )
        found.append(
            entry(f"{dtype.value}.gathered", values(dtype, 5, rank), dtype, Kind.ALLGATHER)
        )
        found.append(
            entry(f"{dtype.value}.cast", values(dtype, 3, rank), dtype, Kind.BROADCAST, root=1)
        )
    found.append(entry("empty", np.empty(0, np.float32), DType.FLOAT32))
    found.append(entry("barrier", np.empty(0, np.float32), DType.FLOAT32, Kind.BARRIER))
    return found


def bits(entries: Sequence[Entry], results: Sequence[Any]) -> list[bytes]:
    """Also of what an allgather returns, which stands in no buffer."""
    return [
        (
            result[0].tobytes() + repr(result[1]).encode()
            if result is not None
            else entry.buffer.out.tobytes()
        )
        for entry, result in zip(entries, results, strict=True)
    ]


@pytest.mark.parametrize("together", [False, True])
def test_results_have_the_bits_that_the_transport_gives(together: bool) -> None:
    def body(transport: Any) -> list[bytes]:
        counted = Counted(transport)
        engine = Engine(counted, Settings())  # type: ignore[arg-type]
        entries = cases(engine.rank)
        batches = [entries] if together else [[one] for one in entries]
        assert sum(attached.weight(one.request) for one in entries) <= attached.room(engine.size)
        by_turn = []
        for turn in range(3):  # new ones go over the transport; then nothing does
            before = counted.done
            by_turn.append([bit for batch in batches for bit in bits(batch, engine.run(batch))])
            assert (counted.done > before) == (turn == 0), turn
            for one in entries:
                one.buffer.out[:] = 0
        assert by_turn[0] == by_turn[1] == by_turn[2]
        engine.shutdown()
        return [
            bit
            for one, bit in zip(entries, by_turn[2], strict=True)
            if one.request.kind is not Kind.BARRIER
        ]

    first, *others = ranks(3, body)
    assert all(other == first for other in others)


def test_the_same_over_shared_memory_and_tcp() -> None:
    def body(transport: Any) -> list[float]:
        counted = Counted(transport)
        engine = Engine(counted, Settings())  # type: ignore[arg-type]
        sums = []
        for step in range(20):
            array = np.full(1024, engine.rank + step, np.float32)
            engine.run(
                [
                    Entry(
                        Request("a", Kind.ALLREDUCE, shape=(1024,)),
                        Buffer(array, array, DType.FLOAT32),
                    )
                ]
            )
            sums.append(float(array.mean()))
        assert counted.done == 1
        engine.shutdown()
        return sums

    for name in ("shm", "tcp"):
        assert procs(2, body, wire=name) == [[2.0 * step + 1 for step in range(20)]] * 2


def test_a_request_of_one_round_only_uses_the_transport() -> None:
    def body(transport: Any) -> None:
        engine = Engine(transport, Settings())
        for turn in range(9):
            one, two = np.full(4, turn, np.float32), np.full(4, 2 * turn, np.float32)
            pair = [entry("one", one, DType.FLOAT32), entry("two", two, DType.FLOAT32)]
            if engine.rank == turn % 3 and turn > 2:
                pair.reverse()
            handles = [engine.submit([each]) for each in pair[:1]]
            engine.run(pair[1:])
            handles[0].wait()
            assert {each.request.name: each.buffer.out[0] for each in pair} == {
                "one": 3 * turn,
                "two": 6 * turn,
            }
        engine.shutdown()

    ranks(3, body)


def test_large_or_mixed_reductions_use_the_transport() -> None:
    room = attached.room(2)
    plain = Request("a", Kind.ALLREDUCE, DType.FLOAT32, (room // 4,))
    assert attached.weight(plain) == room
    assert attached.room(1) == attached.room(attached.CROWD + 1) == 0
    for odd in (
        plain._replace(shape=(room // 4 + 1,)),
        plain._replace(op=ReduceOp.ADASUM),
        plain._replace(codec="fp8"),
        plain._replace(device="GPU"),
        plain._replace(dtype=DType.INT64, shape=(1,), op=ReduceOp.AVERAGE),
        plain._replace(dtype=DType.INT32, shape=(1,), prescale=0.5),
        plain._replace(kind=Kind.ALLTOALL, shape=(1,)),
    ):
        assert attached.weight(odd) > room, odd


@pytest.mark.parametrize("ended", [False, True])
def test_a_traced_rank_attaches_nothing_and_all_agree(
    ended: bool,
) -> None:
    class Tracer(Observer):
        def settled(self, asked: Any, since: Any, agreed: Any, failed: Any) -> None:
            """Ignore the round: an observer with this method gets every one."""

    def body(transport: Any) -> int:
        counted = Counted(transport)
        tracer = Tracer()
        engine = Engine(counted, Settings(), [tracer] if engine_of_zero(transport) else [])  # type: ignore[arg-type]
        for turn in range(6):
            array = np.full(4, turn, np.float32)
            engine.run(
                [
                    Entry(
                        Request("a", Kind.ALLREDUCE, shape=(4,)),
                        Buffer(array, array, DType.FLOAT32),
                    )
                ]
            )
            assert array[0] == 2 * turn
            if ended and turn == 2 and engine.rank == 0:
                engine.observers.remove(tracer)
        engine.shutdown()
        return counted.done

    # the note of a rank whose last tracer has gone stays for one more round
    assert set(ranks(2, body)) == {4 if ended else 6}


def engine_of_zero(transport: Any) -> bool:
    return bool(transport.rank == 0)


def test_ranks_are_in_step_when_all_but_the_elements_is_the_same() -> None:
    def message(number: int, serial: int, elements: bytes | None = b"x" * 8) -> bytes:
        return wire.encode([(number, serial)], [], elements=elements)

    assert wire.in_step([message(1, 5), message(1, 5, b"y" * 8)])
    assert not wire.in_step([message(1, 5), message(1, 6)])
    assert not wire.in_step([message(1, 5), message(1, 5, None)])
    assert not wire.in_step([message(1, 5), b""])
    assert wire.signatures(message(1, 5)) == wire.signatures(message(1, 6, None))
    two = wire.encode([(1, 5), (2, 6)], [], elements=b"z" * 16)
    assert (
        wire.decode(two)
        == wire.decode(wire.without_note(two)[0])
        == wire.Post(False, [(1, 5), (2, 6)], [])
    )
    assert two[wire.elements_at(2) :] == b"z" * 16
