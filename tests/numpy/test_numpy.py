"""The collectives on plain arrays: every operation, type and layout against numpy; invalid
arguments.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import farandole.numpy as hvd
from tests.kits.messages import mentioning
from tests.run_job import job

REDUCED = ["uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "bool"]
MOVED = [*REDUCED, "uint16", "uint32", "uint64", "complex64"]
LAYOUTS = [
    "scalar",
    "empty",
    "one",
    "odd",
    "large",
    "transposed",
    "strided",
    "backwards",
    "fortran",
    "expanded",
]
UFUNCS: dict[str, Any] = {
    "Sum": np.add,
    "Min": np.minimum,
    "Max": np.maximum,
    "Product": np.multiply,
}
TOLERANCE = {"float16": 1e-3, "float32": 1e-6, "float64": 1e-12}


def array(layout: str, dtype: str, rank: int) -> Any:
    """Return an array of a layout with small integers, whose sums and products are exact in every
    type.
    """
    generator = np.random.default_rng([LAYOUTS.index(layout), rank])
    shape = {"scalar": (), "empty": (0, 3), "one": (1,), "odd": (7, 3), "large": (60, 701)}.get(
        layout, (8, 6)
    )
    made = np.asarray(generator.integers(0, 2 if dtype == "bool" else 3, shape)).astype(dtype)
    views = (
        {
            "transposed": made.T,
            "strided": made[::2, 1::2] if made.ndim == 2 else made,
            "backwards": made[::-1],
            "expanded": np.broadcast_to(made[..., :1], (8, 4)) if layout == "expanded" else made,
        }
        if made.ndim
        else {}
    )
    return np.asfortranarray(made) if layout == "fortran" else views.get(layout, made)


def reduced(op: str, dtype: str, values: list[Any]) -> Any:
    wide = [value.astype(float if "float" in dtype else np.int64) for value in values]
    if op == "Average":
        total = sum(wide) / len(wide)
        return total if "float" in dtype else np.trunc(total)
    total = wide[0]
    for value in wide[1:]:
        total = UFUNCS[op](total, value)
    return (total != 0).astype(np.int64) if dtype == "bool" else total


def assert_same(found: Any, wanted: Any, dtype: str) -> None:
    assert isinstance(found, np.ndarray)
    assert (found.dtype, found.shape) == (np.dtype(dtype), np.shape(wanted))
    tolerance = TOLERANCE.get(dtype, 0)
    np.testing.assert_allclose(
        found.astype(complex), np.asarray(wanted).astype(complex), rtol=tolerance, atol=0
    )


@pytest.mark.parametrize(("n", "wire"), [(1, "shm"), (2, "shm"), (3, "tcp")])
def test_reductions(n: int, wire: str) -> None:
    def check(rank: int) -> None:
        for dtype in REDUCED:
            for layout in LAYOUTS:
                every = [array(layout, dtype, each) for each in range(n)]
                mine = every[rank]
                for op in ["Average", *UFUNCS]:
                    if dtype == "bool" and op == "Average":
                        continue
                    code, wanted = getattr(hvd, op), reduced(op, dtype, every)
                    assert_same(hvd.allreduce(mine, op=code), wanted, dtype)
                    kept = mine.copy(order="K")
                    assert hvd.allreduce_(kept, op=code) is kept
                    assert_same(kept, wanted, dtype)
                    first, second = hvd.grouped_allreduce([mine, mine], op=code)
                    assert np.array_equal(first, kept)
                    assert np.array_equal(second, kept)
                    if op in ("Average", "Sum") and mine.ndim:
                        assert_same(
                            hvd.reducescatter(mine, op=code), np.array_split(wanted, n)[rank], dtype
                        )

    job(n, check, wire=wire)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_moves(n: int) -> None:
    def check(rank: int) -> None:
        for dtype in MOVED:
            for layout in LAYOUTS:
                every = [array(layout, dtype, each) for each in range(n)]
                mine = every[rank]
                assert_same(hvd.broadcast(mine, n - 1), every[-1], dtype)
                if not mine.ndim:
                    continue
                ragged = [value[: len(value) * each // n] for each, value in enumerate(every)]
                assert_same(hvd.allgather(mine), np.concatenate(every), dtype)
                assert_same(hvd.allgather(ragged[rank]), np.concatenate(ragged), dtype)
                rows = np.concatenate(ragged)[: None if rank == n - 1 else 0]
                assert_same(hvd.gather(ragged[rank], n - 1), rows, dtype)
                counts = [len(part) for part in np.array_split(mine, n)]
                out, received = hvd.alltoall(mine, counts)
                assert received.tolist() == [counts[rank]] * n
                assert_same(
                    out, np.concatenate([np.array_split(value, n)[rank] for value in every]), dtype
                )
                if len(mine) % n == 0:
                    assert np.array_equal(hvd.alltoall(mine), out)

    job(n, check)


def test_forms_that_do_not_wait_and_objects_and_sets() -> None:
    def check(rank: int) -> None:
        value = np.arange(4.0) + rank
        handle = hvd.allreduce_async(value, name="a", op=hvd.Sum)
        groups = hvd.grouped_allreduce_async_([value.copy(), value[::2].copy()], name="g")
        assert hvd.synchronize(handle).tolist() == [1, 3, 5, 7]
        assert [each.tolist() for each in hvd.synchronize(groups)] == [
            [0.5, 1.5, 2.5, 3.5],
            [0.5, 2.5],
        ]
        assert hvd.poll(handle) is None
        for name in ("m", None):
            with pytest.raises(RuntimeError, match=mentioning("2", "rank 0", "3", "rank 1")):
                hvd.grouped_allreduce([value] * (2 + rank), name=name)
        roots = ("GATHER", "rank 0", "rank 1")
        for name in ("m", None):
            with pytest.raises(RuntimeError, match=mentioning(roots)):
                hvd.gather(value[:rank], rank, name)
        for call in (
            (lambda: hvd.gather(value, 0, "r")),
            (lambda: hvd.alltoall(value, [1, 3], "gather.r")),
        )[rank:][:1]:
            with pytest.raises(RuntimeError, match=mentioning("GATHER", "ALLTOALL")):
                call()
        large = np.array([2**62 + rank, -(2**63) + rank, 2**63 - 1, 7 * rank], np.int64)
        groups = hvd.grouped_allreduce([large, large[:1]])
        assert groups[0].tolist() == [
            2**62,
            -(2**63) + 1,
            2**63 - 1,
            3,
        ], "the sum alone does not fit"
        assert groups[1].tolist() == [2**62]
        parts = [[2**62, -(2**63) + 1], [2**63 - 1, 3]]
        assert hvd.reducescatter(large).tolist() == parts[rank]
        scattered = hvd.grouped_reducescatter([large[:3], large[:1]], postscale_factor=1.0)
        assert [found.tolist() for found in scattered] == [
            [parts[0], [2**63 - 1]][rank],
            [[2**62], []][rank],
        ]
        # one factor for both, as in Horovod: the sum 7 is not divided first
        for kind in (np.int32, np.int64):
            for factor, wanted in ((2.0, 7), (3.0, 10), (1 / 3, 1), (-1.0, -3)):
                seven = np.full((2, 1), 3 + rank, kind)
                assert hvd.allreduce(seven, postscale_factor=factor).tolist() == [[wanted]] * 2, (
                    kind,
                    factor,
                )
                assert hvd.reducescatter(seven, postscale_factor=factor).tolist() == [[wanted]], (
                    kind,
                    factor,
                )
        kept = np.asfortranarray(np.full((2, 3), float(rank)))
        hvd.synchronize(hvd.broadcast_async_(kept, 1))
        assert kept.tolist() == [[1.0] * 3] * 2
        assert hvd.broadcast_object({"rank": rank}, 1) == {"rank": 1}
        assert hvd.allgather_object(rank) == [0, 1]
        assert hvd.allreduce(value, compression=hvd.Compression.fp16).tolist() == [
            0.5,
            1.5,
            2.5,
            3.5,
        ]
        assert hvd.allreduce(np.float32(rank)).item() == 0.5
        alone = hvd.add_process_set([1])
        if rank == 1:
            assert hvd.allreduce(value, op=hvd.Sum, process_set=alone).tolist() == value.tolist()
        hvd.barrier()
        for _ in range(rank):
            hvd.allreduce(np.ones(2))
        assert hvd.join() == 1

    job(2, check, dynamic_process_sets=True)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: hvd.allreduce(np.ones(2, dtype=">f4")),
            ValueError,
            "array.astype(array.dtype.newbyteorder('='))",
        ),
        (
            lambda: hvd.allgather(np.ones(2, dtype=">u2")),
            ValueError,
            ("order", "newbyteorder"),
        ),
        (
            lambda: hvd.allreduce(np.ones(2, dtype=complex)),
            ValueError,
            "complex128",
        ),
        (
            lambda: hvd.allreduce(np.array(["a"], dtype=object)),
            ValueError,
            "type object",
        ),
        (lambda: hvd.allreduce(np.ma.ones(2)), TypeError, ("MaskedArray", "np.asarray(value)")),
        (lambda: hvd.allreduce([1.0]), TypeError, ("numpy", "list")),
        (
            lambda: hvd.allreduce_(np.broadcast_to(1.0, (3,))),
            ValueError,
            "read-only",
        ),
        (
            lambda: hvd.grouped_allreduce_([np.broadcast_to(1.0, 3)]),
            ValueError,
            "read-only",
        ),
        (
            lambda: hvd.broadcast_(np.float64(1), 0),
            ValueError,
            ("array", "float64"),
        ),
        (
            lambda: hvd.allgather(np.float64(1)),
            hvd.HorovodInternalError,
            ("ALLGATHER", "rank-zero"),
        ),
        (lambda: hvd.allreduce(np.ones(2), op=9), ValueError, ("op=9", "reduction")),
        (
            lambda: hvd.allreduce(np.ones(2), prescale_factor="2"),
            TypeError,
            "prescale_factor='2'",
        ),  # type: ignore[arg-type]
        (
            lambda: hvd.reducescatter(np.ones(2), postscale_factor=2j),
            TypeError,
            "postscale_factor=2j",
        ),  # type: ignore[arg-type]
    ],
)
def test_invalid_arguments_raise_and_the_job_continues(
    call: Any, error: type[Exception], text: str | tuple[str, ...]
) -> None:
    hvd.init()
    try:
        with pytest.raises(error, match=mentioning(text)):
            call()
        assert hvd.allreduce(np.ones(1)).tolist() == [1.0]
    finally:
        hvd.shutdown()


def test_factors_may_be_numbers_of_numpy() -> None:
    def check(rank: int) -> None:
        for two in (np.float32(2), np.int64(2), np.array(2.0), Fraction(2)):
            factors: Any = {"op": hvd.Sum, "prescale_factor": two, "postscale_factor": two}
            assert hvd.allreduce(np.ones(2), **factors).tolist() == [8.0, 8.0]
            assert hvd.grouped_allreduce([np.ones(1, int)], **factors)[0].tolist() == [8]
            assert hvd.reducescatter(np.ones(2), **factors).tolist() == [8.0]

    job(2, check)


def test_public_names() -> None:
    assert len(set(hvd.__all__)) == len(hvd.__all__)
    assert all(hasattr(hvd, name) for name in hvd.__all__)
