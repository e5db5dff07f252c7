"""Conformance kit of codecs. A new codec runs it in three lines:

    class TestMine(CodecKit):
        def codec(self):
            return Mine()

Ranks are threads. A codec keeps its residuals under ``residual/`` and ``owed/`` in its state.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

import numpy as np
import pytest

from farandole.base.contracts import Codec, Part, Retractable, Transport
from farandole.base.types import Buffer, DType
from farandole.core.kernels import narrow_into, widen
from tests.pool import ranks

SHAPES = ((0,), (1,), (7,), (64, 96), (130, 3, 5), (20_001,), (3,))
FLOATS = [dtype for dtype in DType if dtype.is_float]

Arrays = list[np.ndarray[Any, Any]]


def gradients(rank: int, step: int, shapes: Sequence[tuple[int, ...]] = SHAPES) -> Arrays:
    """Return the flat gradients of one step: float64 with the precision of float32. Some elements
    are zero, some much larger than others.
    """
    rng = np.random.default_rng([rank, step])
    found = []
    for shape in shapes:
        values = rng.standard_normal(int(np.prod(shape))) * rng.choice(
            [0.0, 0.01, 1.0], int(np.prod(shape))
        )
        found.append(values.astype(np.float32).astype(np.float64))
    return found


def stored(values: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    if not dtype.is_half:
        return values.astype(dtype.storage)
    narrow = np.empty(len(values), dtype.storage)
    narrow_into(narrow, values.astype(np.float32), dtype)
    return narrow


def exact(values: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    return (widen(values, dtype) if dtype.is_half else values).astype(np.float64)


def step(
    codec: Codec,
    arrays: Arrays,
    transport: Transport,
    dtype: DType = DType.FLOAT32,
    *,
    shapes: Sequence[tuple[int, ...]] = SHAPES,
    scale: float = 1.0,
    joined: bool = False,
    in_place: bool = False,
    absent: Container[int] = (),
    names: Sequence[int] | None = None,
) -> Arrays:
    """Return the results of one allreduce of ``arrays``, and check that inputs are not written.

    ``names``: the numbers of the arrays (default: their positions); ``absent``: the numbers of
    missing gradients.
    """
    datas = [stored(array, dtype) for array in arrays]
    outs = datas if in_place else [np.empty_like(data) for data in datas]
    copies = [data.copy() for data in datas]
    parts = [
        Part("" if joined else f"t{number}", shape, Buffer(data, out, dtype), number not in absent)
        for number, shape, data, out in zip(
            names or range(len(datas)), shapes, datas, outs, strict=True
        )
    ]
    codec.allreduce(parts, scale, transport)
    assert in_place or all(
        data.tobytes() == copy.tobytes() for data, copy in zip(datas, copies, strict=True)
    )
    return outs


def alike(results: Sequence[Any]) -> None:
    """Assert that all ranks have the same bits in every step."""
    contents = [[array.tobytes() for arrays in steps for array in arrays] for steps in results]
    assert all(other == contents[0] for other in contents), "ranks differ"


def unsent(codec: Codec) -> float:
    """Return the sum of this rank's residuals."""
    return float(
        sum(
            array.astype(np.float64).sum()
            for name, array in codec.state_dict().items()
            if name[:4] in ("resi", "owed")
        )
    )


class CodecKit:
    shapes: Sequence[tuple[int, ...]] = SHAPES

    def codec(self) -> Codec:
        raise NotImplementedError

    def steps(
        self, count: int, transport: Transport, codec: Codec, begin: int = 0, **options: Any
    ) -> list[Arrays]:
        return [
            step(
                codec,
                gradients(transport.rank, number, self.shapes),
                transport,
                shapes=self.shapes,
                **options,
            )
            for number in range(begin, begin + count)
        ]

    def run(self, size: int, body: Callable[[Transport, Codec], Any]) -> list[Any]:
        return ranks(size, lambda transport: body(transport, self.codec()))

    @pytest.mark.parametrize("dtype", FLOATS)
    def test_all_ranks_get_the_same_bits(self, dtype: DType) -> None:
        def body(transport: Transport, codec: Codec) -> list[Arrays]:
            options: dict[str, Any] = {"scale": 1 / transport.size, "dtype": dtype}
            steps = self.steps(2, transport, codec, **options)
            steps += self.steps(1, transport, codec, 2, in_place=True, **options)
            for shape in self.shapes:  # each for itself
                alone = gradients(transport.rank, 9, [shape])
                steps.append(step(codec, alone, transport, shapes=[shape], **options))
            return steps

        for size in (1, 2, 3, 4):
            results = self.run(size, body)
            alike(results)
            for number, (got, arrays) in enumerate(
                zip(results[0], [gradients(0, n) for n in range(3)], strict=False)
            ):
                assert [len(array) for array in got] == [len(array) for array in arrays], number
                assert all(np.isfinite(exact(array, dtype)).all() for array in got)

    @pytest.mark.parametrize("dtype", FLOATS)
    def test_sent_plus_residual_equals_the_input(self, dtype: DType) -> None:
        """For codecs with residuals; other codecs keep nothing."""

        def body(transport: Transport, codec: Codec) -> tuple[float, float]:
            given = kept = 0.0
            for number in range(4):
                arrays = [
                    stored(array, dtype) for array in gradients(transport.rank, number, self.shapes)
                ]
                given += sum(exact(array, dtype).sum() for array in arrays)
                (results,) = self.steps(1, transport, codec, number, dtype=dtype)
                kept += (
                    sum(exact(array, dtype).sum() for array in results)
                    if transport.rank == 0
                    else 0.0
                )
            return given, kept + unsent(codec)

        def state(transport: Transport, codec: Codec) -> list[str]:
            self.steps(1, transport, codec, dtype=dtype)
            return [name for name in codec.state_dict() if name.startswith(("residual/", "owed/"))]

        assert bool(self.run(1, state)[0]) == getattr(self.codec(), "feedback", False)
        for size in (1, 3) if getattr(self.codec(), "feedback", False) else ():
            given, found = np.sum(self.run(size, body), axis=0)
            total = sum(
                np.abs(array).sum()
                for n in range(4)
                for r in range(size)
                for array in gradients(r, n)
            )
            # half types: the sum is rounded once more, when it is written
            eps = {DType.FLOAT16: 2.0**-11, DType.BFLOAT16: 2.0**-8}.get(dtype, 2.0**-20)
            assert abs(found - given) <= eps * total / 8

    def test_nothing_is_lost_where_groups_of_tensors_change(self) -> None:
        """Buckets change when parameters are added or frozen, and during autotune."""
        if not getattr(self.codec(), "feedback", False):
            return
        units = (
            [0, 1, 2, 3, 4, 5, 6],
            [5, 3],
            [0, 1, 2],
            [4],
            [6],
            [3, 4, 5, 6],
            [2, 1, 0],
            [6, 5, 4, 3, 2, 1, 0],
        )

        def body(transport: Transport, codec: Codec) -> tuple[float, int]:
            found = 0.0
            for number, members in enumerate(units):
                arrays = [
                    gradients(transport.rank, number, self.shapes)[place] for place in members
                ]
                absent = members[:2] if number == 1 else ()
                for place in absent:
                    arrays[members.index(place)][:] = 0
                shapes = [self.shapes[place] for place in members]
                results = step(
                    codec, arrays, transport, shapes=shapes, names=members, absent=absent
                )
                if isinstance(codec, Retractable):
                    codec.retract([f"t{place}" for place in absent])
                found -= sum(array.sum() for array in arrays)
                for place, array in zip(
                    members, results if transport.rank == 0 else (), strict=False
                ):
                    found += 0.0 if place in absent else exact(array, DType.FLOAT32).sum()
            owed = sum(
                array.size for name, array in codec.state_dict().items() if name.startswith("owed/")
            )
            return found + unsent(codec), owed

        for size in (1, 3):
            total = sum(
                np.abs(array).sum()
                for n in range(len(units))
                for r in range(size)
                for array in gradients(r, n)
            )
            found, owed = np.sum(self.run(size, body), axis=0)
            assert abs(found) <= 2.0**-23 * total
            assert owed <= sum(int(np.prod(shape)) for shape in self.shapes), (
                "what is of units that are no more waits"
            )

    def test_sums_of_tensors_without_gradients_are_retracted(self) -> None:
        """Their results are dropped: steps with such a tensor must not lose its residuals."""
        if not getattr(self.codec(), "feedback", False):
            return

        def body(transport: Transport, codec: Codec) -> float:
            assert isinstance(codec, Retractable)
            found = 0.0
            for number in range(6):
                arrays = gradients(transport.rank, number, self.shapes)
                absent = range(number % 2, len(arrays), 3) if number else ()
                for place in absent:
                    arrays[place][:] = 0
                results = step(codec, arrays, transport, shapes=self.shapes, absent=absent)
                codec.retract([f"t{place}" for place in absent])
                found -= sum(array.sum() for array in arrays)
                for place, array in enumerate(results if transport.rank == 0 else ()):
                    found += 0.0 if place in absent else exact(array, DType.FLOAT32).sum()
            return found + unsent(codec)

        for size in (1, 3):
            total = sum(
                np.abs(array).sum()
                for n in range(6)
                for r in range(size)
                for array in gradients(r, n)
            )
            assert abs(sum(self.run(size, body))) <= 2.0**-23 * total

    def test_nonfinite_numbers_reach_all_ranks_once(self) -> None:
        def body(transport: Transport, codec: Codec) -> list[Arrays]:
            steps = []
            for bad in (np.nan, np.inf, -np.inf):
                arrays = gradients(transport.rank, 0, self.shapes)
                if transport.rank == transport.size - 1:
                    arrays[3][17] = bad
                steps.append(step(codec, arrays, transport, shapes=self.shapes))
                steps += self.steps(2, transport, codec, 1)
            return steps

        for size in (2, 3):
            results = self.run(size, body)
            alike(results)
            for number, arrays in enumerate(results[0]):
                finite = all(np.isfinite(array).all() for array in arrays)
                assert finite == (number % 3 != 0), f"step {number}"

    def test_a_resumed_run_continues_bit_for_bit(self) -> None:
        def body(transport: Transport, codec: Codec) -> list[list[Arrays]]:
            self.steps(3, transport, codec)
            state = codec.state_dict()
            assert all(isinstance(array, np.ndarray) for array in state.values())
            on = self.steps(2, transport, codec, 3)
            resumed = self.codec()
            resumed.load_state_dict(state)
            return [on, self.steps(2, transport, resumed, 3)]

        results = self.run(3, body)
        alike([both[0] for both in results] + [both[1] for both in results])

    def test_a_joined_rank_sends_zeros_and_keeps_its_state(self) -> None:
        def body(transport: Transport, codec: Codec) -> list[Arrays]:
            steps = self.steps(1, transport, codec)
            if transport.rank == 1:
                before = codec.state_dict()
                zeros = [np.zeros_like(array) for array in gradients(0, 0, self.shapes)]
                steps += [
                    step(codec, zeros, transport, shapes=self.shapes, joined=True) for _ in range(2)
                ]
                after = codec.state_dict()
                assert before.keys() == after.keys()
                assert all(
                    array.tobytes() == after[name].tobytes() for name, array in before.items()
                )
            else:
                steps += self.steps(2, transport, codec, 1)
            return steps + self.steps(2, transport, codec, 3)

        for size in (2, 3):
            alike(self.run(size, body))

    def test_sent_and_saved_bytes_add_up(self) -> None:
        def body(transport: Transport, codec: Codec) -> tuple[int, int]:
            size = transport.size
            self.steps(2, transport, codec)
            plain = 2 * sum(
                2 * 4 * len(array) * (size - 1) // size for array in gradients(0, 0, self.shapes)
            )
            assert codec.sent > 0
            assert abs(codec.sent + codec.saved - plain) <= 2 * len(self.shapes)
            return codec.sent, codec.saved

        assert all(saved > 0 for _, saved in self.run(2, body))
