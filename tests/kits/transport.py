"""Conformance kit of wires. A new wire runs it in five lines:

    class TestMine(TransportKit):
        def joiner(self, size):
            secret, scope = new_secret(), fresh_scope()
            return lambda rank: mine.connect(rank, size, secret, scope, 60.0)

``joiner(size)`` creates one world, and returns a function that each rank calls once, in its own
thread.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
import pytest

from farandole.base.contracts import Transport
from farandole.base.types import Buffer, DType, ReduceOp
from farandole.core import kernels
from tests.kits.failure import BoardKit as BoardKit
from tests.kits.failure import FailureKit as FailureKit
from tests.kits.oracle import assert_reduced, values
from tests.kits.worlds import OPS as OPS
from tests.kits.worlds import SIZES as SIZES
from tests.kits.worlds import Worlds as Worlds
from tests.kits.worlds import check_sum as check_sum
from tests.kits.worlds import collect as collect
from tests.kits.worlds import fresh_scope as fresh_scope
from tests.kits.worlds import in_place as in_place
from tests.kits.worlds import rounds as rounds
from tests.kits.worlds import until as until
from tests.kits.worlds import wait_forever as wait_forever
from tests.kits.worlds import wait_in as wait_in
from tests.kits.worlds import wait_until as wait_until


class ReduceKit(Worlds):
    """allreduce, reducescatter, allocate."""

    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize("dtype", list(DType))
    def test_allreduce_every_op(self, size: int, dtype: DType) -> None:
        cases = [
            (op, scale) for op in OPS for scale in ((1.0, 1 / 3) if op is ReduceOp.SUM else (1.0,))
        ]

        def body(transport: Transport) -> list[Any]:
            results = []
            for (op, scale), length in itertools.product(cases, (33, 40_001 // dtype.itemsize)):
                array = values(dtype, length, transport.rank)
                transport.allreduce([in_place(array, dtype)], op, scale)
                results.append(array)
            return results

        results = self.run(size, body)
        for index, ((op, scale), length) in enumerate(
            itertools.product(cases, (33, 40_001 // dtype.itemsize))
        ):
            parts = [values(dtype, length, rank) for rank in range(size)]
            for rank in range(size):
                assert_reduced(results[rank][index], parts, dtype, op, scale, f"rank {rank}")
                assert results[rank][index].tobytes() == results[0][index].tobytes(), "ranks differ"

    @pytest.mark.parametrize("size", SIZES)
    def test_allreduce_every_length(self, size: int) -> None:
        lengths = sorted(
            {0, 1, max(0, size - 1), size, 7, 1023, 1024, (1 << 18) + 3, (1 << 20) + 3}
        )

        def body(transport: Transport) -> list[Any]:
            arrays = [values(DType.FLOAT32, length, transport.rank) for length in lengths]
            for array in arrays:
                transport.allreduce([in_place(array, DType.FLOAT32)], ReduceOp.SUM)
            return arrays

        results = self.run(size, body)
        for index, length in enumerate(lengths):
            parts = [values(DType.FLOAT32, length, rank) for rank in range(size)]
            for rank in range(size):
                assert_reduced(
                    results[rank][index], parts, DType.FLOAT32, ReduceOp.SUM, note=f"rank {rank}"
                )
                assert results[rank][index].tobytes() == results[0][index].tobytes(), "ranks differ"

    @pytest.mark.parametrize("size", [2, 3, 5])
    @pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.FLOAT64, DType.UINT8])
    def test_allreduce_out_of_place_larger_than_any_chunk(self, size: int, dtype: DType) -> None:
        length = 5_000_003 // dtype.itemsize

        def body(transport: Transport) -> Any:
            data = values(dtype, length, transport.rank)
            out = np.zeros_like(data)
            transport.allreduce([Buffer(data, out, dtype)], ReduceOp.SUM)
            assert data.tobytes() == values(dtype, length, transport.rank).tobytes(), (
                "the input was written to"
            )
            return out

        results = self.run(size, body)
        parts = [values(dtype, length, rank) for rank in range(size)]
        assert_reduced(results[0], parts, dtype, ReduceOp.SUM)
        assert all(result.tobytes() == results[0].tobytes() for result in results)

    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize("unit", [1, 40_000])
    @pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16])
    def test_allreduce_several_buffers(self, size: int, unit: int, dtype: DType) -> None:
        lengths = [0, 3 * unit, unit, 0, 1, 7 * unit + 5, 2, 2, 0]

        def body(transport: Transport) -> list[Any]:
            arrays = [
                values(dtype, length, 100 * index + transport.rank)
                for index, length in enumerate(lengths)
            ]
            outs = [
                array if index % 2 else np.zeros_like(array) for index, array in enumerate(arrays)
            ]
            buffers = [Buffer(array, out, dtype) for array, out in zip(arrays, outs, strict=True)]
            transport.allreduce(buffers, ReduceOp.SUM, 0.5)
            return outs

        results = self.run(size, body)
        for index, length in enumerate(lengths):
            parts = [values(dtype, length, 100 * index + rank) for rank in range(size)]
            for rank in range(size):
                assert_reduced(
                    results[rank][index], parts, dtype, ReduceOp.SUM, 0.5, f"buffer {index}"
                )
                assert results[rank][index].tobytes() == results[0][index].tobytes(), "ranks differ"

    @pytest.mark.parametrize("size", SIZES)
    def test_allreduce_of_nothing(self, size: int) -> None:
        def body(transport: Transport) -> None:
            empty = np.zeros(0, np.float32)
            transport.allreduce([in_place(empty, DType.FLOAT32)] * 3, ReduceOp.MAX, 0.5)
            transport.barrier()

        self.run(size, body)

    @pytest.mark.parametrize("size", SIZES)
    def test_not_a_number_and_infinity_travel(self, size: int) -> None:
        def body(transport: Transport) -> Any:
            array = np.ones(3, np.float32)
            if transport.rank == size - 1:
                array[:2] = np.nan, np.inf
            transport.allreduce([in_place(array, DType.FLOAT32)], ReduceOp.SUM)
            return array

        for array in self.run(size, body):
            np.testing.assert_array_equal(array, np.array([np.nan, np.inf, size], np.float32))

    @pytest.mark.parametrize("size", SIZES)
    def test_allocated_memory_reduced_in_place(self, size: int) -> None:
        length = 300_001

        def body(transport: Transport) -> tuple[Any, Any, Any, Any]:
            memory = transport.allocate(length * 4)
            other = transport.allocate(4096)
            assert memory.dtype == np.uint8
            assert len(memory) == length * 4
            array, small = memory.view(np.float32), other.view(np.float32)
            array[:] = values(DType.FLOAT32, length, transport.rank)
            transport.allreduce([in_place(array, DType.FLOAT32)], ReduceOp.SUM)
            whole = array.copy()
            array[:] = values(DType.FLOAT32, length, transport.rank)
            cut = slice(1001, 250_004)
            transport.allreduce([in_place(array[cut], DType.FLOAT32)], ReduceOp.SUM)
            slices = array.copy()
            pieces = [
                in_place(array[10:13], DType.FLOAT32),
                in_place(array[200_000:], DType.FLOAT32),
            ]
            small[:] = transport.rank
            array[:] = values(DType.FLOAT32, length, transport.rank)
            transport.allreduce([*pieces, in_place(small, DType.FLOAT32)], ReduceOp.SUM)
            return whole, slices, array.copy(), small.copy()

        results = self.run(size, body)
        parts = [values(DType.FLOAT32, length, rank) for rank in range(size)]
        for rank, (whole, slices, pieces, small) in enumerate(results):
            cut = [part[1001:250_004] for part in parts]
            assert_reduced(whole, parts, DType.FLOAT32, ReduceOp.SUM)
            assert_reduced(slices[1001:250_004], cut, DType.FLOAT32, ReduceOp.SUM)
            assert np.array_equal(slices[:1001], parts[rank][:1001])
            assert np.array_equal(slices[250_004:], parts[rank][250_004:])
            assert_reduced(
                pieces[10:13], [part[10:13] for part in parts], DType.FLOAT32, ReduceOp.SUM
            )
            assert_reduced(
                pieces[200_000:], [part[200_000:] for part in parts], DType.FLOAT32, ReduceOp.SUM
            )
            assert np.array_equal(pieces[13:200_000], parts[rank][13:200_000])
            assert (small == sum(range(size))).all()
            assert whole.tobytes() == results[0][0].tobytes()

    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16, DType.INT32])
    def test_reducescatter(self, size: int, dtype: DType) -> None:
        deals = [
            kernels.shares(size * 3 + 1, size),
            kernels.shares(700_001, size),
            [0] * (size - 1) + [9],
            [0] * (size - 1) + [90_001],
            [(rank % 3) * 60_000 for rank in range(size)],
            [0] * size,
        ]
        scale = 1 / 3 if dtype is DType.INT32 else 0.5

        def body(transport: Transport) -> list[Any]:
            outs = []
            for counts, in_its_place in itertools.product(deals, (False, True)):
                data = values(dtype, sum(counts), transport.rank)
                mine = data[sum(counts[: transport.rank]) :][: counts[transport.rank]]
                out = mine if in_its_place else np.zeros_like(mine)
                transport.reducescatter(Buffer(data, out, dtype), counts, ReduceOp.SUM, scale)
                if not in_its_place:
                    assert data.tobytes() == values(dtype, len(data), transport.rank).tobytes(), (
                        "the input changed"
                    )
                outs.append(out)
            return outs

        results = self.run(size, body)
        for index, (counts, in_its_place) in enumerate(itertools.product(deals, (False, True))):
            parts = [values(dtype, sum(counts), rank) for rank in range(size)]
            for rank in range(size):
                want = [part[sum(counts[:rank]) :][: counts[rank]] for part in parts]
                assert_reduced(
                    results[rank][index],
                    want,
                    dtype,
                    ReduceOp.SUM,
                    scale,
                    f"in its place: {in_its_place}",
                )


class MoveKit(Worlds):
    """allgather, broadcast, alltoall, barrier."""

    has_parts = False  # of an allreduce among four ranks

    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize("unit", [1, 1000, 500_000])
    def test_allgather_ragged(self, size: int, unit: int) -> None:
        deals = [
            [unit] * size,
            [rank * unit + rank % 2 for rank in range(size)],
            [0] * size,
            [0] * (size - 1) + [unit],
        ]

        def body(transport: Transport) -> list[Any]:
            received = []
            for counts in deals:
                receive = np.zeros(sum(counts), np.uint8)
                transport.allgather(
                    values(DType.UINT8, counts[transport.rank], transport.rank), receive, counts
                )
                received.append(receive)
            return received

        results = self.run(size, body)
        for index, counts in enumerate(deals):
            want = np.concatenate(
                [values(DType.UINT8, count, rank) for rank, count in enumerate(counts)]
            )
            assert all(np.array_equal(result[index], want) for result in results), counts

    @pytest.mark.parametrize("size", SIZES)
    def test_allgather_from_allocated_memory(self, size: int) -> None:
        """Parts begin at one offset of the allocated memory, the last at a different one, or are in
        plain memory; some are empty.
        """
        length = 300_000
        deals = [
            [length] * size,
            [rank * 100_003 for rank in range(size)],
            [*range(size)],
            [0] * size,
        ]

        def body(transport: Transport) -> list[Any]:
            last, received = transport.rank == size - 1, []
            memory = transport.allocate(4 * length + 64)
            for counts, turn in itertools.product(deals, range(4)):
                send = memory[turn : turn + counts[transport.rank]]
                if last and turn == 1:
                    send = memory[9 : 9 + counts[transport.rank]]
                elif last and turn == 2:
                    send = np.empty(counts[transport.rank], np.uint8)
                send[:] = values(DType.UINT8, len(send), transport.rank + turn)
                receive = np.zeros(sum(counts), np.uint8)
                if turn == 3:  # it is there already
                    mine = receive[sum(counts[: transport.rank]) :][: len(send)]
                    mine[:] = send
                    send = mine
                transport.allgather(send, receive, counts)
                memory[:] = 255  # all have read it
                received.append(receive)
            return received

        results = self.run(size, body)
        for index, (counts, turn) in enumerate(itertools.product(deals, range(4))):
            want = np.concatenate(
                [values(DType.UINT8, count, rank + turn) for rank, count in enumerate(counts)]
            )
            assert all(np.array_equal(result[index], want) for result in results), (counts, turn)

    @pytest.mark.parametrize("size", SIZES)
    def test_broadcast_from_every_root(self, size: int) -> None:
        lengths = [0, 1, 999, 40_000, 1_500_003]

        def body(transport: Transport) -> None:
            for root, length in itertools.product(range(size), lengths):
                data = values(DType.UINT8, length, transport.rank)
                transport.broadcast(data, root)
                assert np.array_equal(data, values(DType.UINT8, length, root)), (
                    f"root {root} length {length}"
                )

        self.run(size, body)

    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize("unit", [0, 1, 777, 300_000])
    def test_alltoall_ragged(self, size: int, unit: int) -> None:
        def count(src: int, dst: int) -> int:
            return ((src + 2 * dst) % 3) * unit + (src * dst) % 2

        def body(transport: Transport) -> Any:
            rank = transport.rank
            out = [count(rank, dst) for dst in range(size)]
            back = [count(src, rank) for src in range(size)]
            send = np.concatenate(
                [values(DType.UINT8, out[dst], 10 * rank + dst) for dst in range(size)]
            )
            receive = np.zeros(sum(back), np.uint8)
            transport.alltoall(send, out, receive, back)
            return receive

        for rank, receive in enumerate(self.run(size, body)):
            want = np.concatenate(
                [values(DType.UINT8, count(src, rank), 10 * src + rank) for src in range(size)]
            )
            assert np.array_equal(receive, want)

    @pytest.mark.parametrize("size", SIZES)
    def test_no_rank_leaves_a_barrier_before_the_last_arrives(self, size: int) -> None:
        arrived: list[list[int]] = [[] for _ in range(4)]

        def body(transport: Transport) -> None:
            for turn, seen in enumerate(arrived):
                if transport.rank == turn % size:
                    time.sleep(0.03)  # the late one
                seen.append(transport.rank)
                transport.barrier()
                assert len(seen) == size, f"rank {transport.rank} left when only {seen} had come"

        self.run(size, body)

    def test_parts_of_a_collective_are_reported_while_wanted(self) -> None:
        def body(transport: Transport) -> tuple[list[str], int]:
            reported: list[tuple[str, float, float]] = []
            began = time.monotonic()
            transport.report_parts(lambda *part: reported.append(part))
            check_sum(transport, 300_000)
            assert all(began <= begin <= end <= time.monotonic() for _, begin, end in reported)
            transport.report_parts(None)
            count = len(reported)
            check_sum(transport, 300_000)
            return [name for name, *_ in reported], len(reported) - count

        for names, later in self.run(4, body):
            assert (bool(names), later) == (self.has_parts, 0)

    @pytest.mark.parametrize("size", [2, 3, 4])
    @pytest.mark.parametrize("seed", range(4))
    def test_random_sequences(self, size: int, seed: int) -> None:
        def body(transport: Transport) -> None:
            _random_sequence(transport, np.random.default_rng(seed))

        self.run(size, body)


def _random_sequence(transport: Transport, rng: np.random.Generator) -> None:
    """Run 25 random collectives, the same on all ranks, and check each result immediately."""
    rank, size = transport.rank, transport.size
    for turn in range(25):
        kind, length = rng.integers(6), int(rng.choice([0, 1, 17, 4096, 70_001, 600_001]))
        root = int(rng.integers(size))
        counts = [int(count) for count in rng.integers(0, length + 1, size)]
        dtype = list(DType)[rng.integers(len(DType))]
        if kind == 0:
            array = values(dtype, length, rank)
            transport.allreduce([in_place(array, dtype)], ReduceOp.SUM)
            assert_reduced(
                array, [values(dtype, length, each) for each in range(size)], dtype, ReduceOp.SUM
            )
        elif kind == 1:
            receive = np.zeros(sum(counts), np.uint8)
            transport.allgather(values(DType.UINT8, counts[rank], rank), receive, counts)
            parts = [values(DType.UINT8, count, each) for each, count in enumerate(counts)]
            assert np.array_equal(receive, np.concatenate(parts)), turn
        elif kind == 2:
            data = values(DType.UINT8, length, rank)
            transport.broadcast(data, root)
            assert np.array_equal(data, values(DType.UINT8, length, root)), turn
        elif kind == 3:
            table = rng.integers(0, length + 1, (size, size))
            send = np.full(int(table[rank].sum()), rank, np.uint8)
            receive = np.zeros(int(table[:, rank].sum()), np.uint8)
            transport.alltoall(send, table[rank].tolist(), receive, table[:, rank].tolist())
            assert np.array_equal(receive, np.repeat(np.arange(size), table[:, rank])), turn
        elif kind == 4:
            data = values(dtype, sum(counts), rank)
            out = np.zeros(counts[rank], data.dtype)
            transport.reducescatter(Buffer(data, out, dtype), counts, ReduceOp.MAX)
            mine = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
            parts = [values(dtype, sum(counts), each)[mine] for each in range(size)]
            assert_reduced(out, parts, dtype, ReduceOp.MAX)
        else:
            transport.barrier()


class SplitKit(Worlds):
    def test_disjoint_subsets_and_the_parent(self) -> None:
        def body(transport: Transport) -> None:
            low, high = transport.split([0, 1]), transport.split([2, 3, 4])
            mine, none = (low, high) if transport.rank < 2 else (high, low)
            assert none is None
            assert mine is not None
            assert (mine.rank, mine.size) == (
                (transport.rank, 2) if transport.rank < 2 else (transport.rank - 2, 3)
            )
            for length in (1, 100_000):
                check_sum(mine, length)
                check_sum(transport, length)
                mine.barrier()
            rounds(mine, [b"sub"] * 3)
            rounds(transport, [b"all"] * 3)
            memory = mine.allocate(4000).view(np.float32)
            memory[:] = 1
            mine.allreduce([in_place(memory, DType.FLOAT32)], ReduceOp.SUM)
            assert (memory == mine.size).all()
            mine.close()
            check_sum(transport)

        self.run(5, body)

    def test_nested_and_overlapping(self) -> None:
        def body(transport: Transport) -> None:
            evens, all_again = transport.split([0, 2, 3]), transport.split([0, 1, 2, 3])
            assert all_again is not None
            inner = evens.split([1, 2]) if evens else None
            assert (inner is None) == (transport.rank in (0, 1))
            for _ in range(3):
                for each in (inner, evens, all_again, transport):
                    if each is not None:
                        check_sum(each, 5000)

        self.run(4, body)

    def test_alone(self) -> None:
        def body(transport: Transport) -> None:
            only = transport.split([1])
            assert (only is None) == (transport.rank != 1)
            if only is not None:
                check_sum(only)
                only.barrier()
                rounds(only, [b"me"])

        self.run(3, body)


class TransportKit(ReduceKit, MoveKit, SplitKit, BoardKit, FailureKit):
    """All requirements of a wire."""
