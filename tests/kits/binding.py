"""Conformance kit of the collectives of a framework.

A framework's test is ``class TestBinding(BindingKit)`` with a ``Binding``, which converts numpy
arrays to its tensors and back. Cases that need a function missing from the framework's ``__all__``
are skipped.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest

from tests.kits.messages import mentioning
from tests.run_job import job

SHAPES: dict[str, tuple[int, ...]] = {
    "scalar": (),
    "empty": (0, 3),
    "one": (1,),
    "odd": (7, 3),
    "large": (60, 701),
}
DTYPES = ("uint8", "int8", "int32", "int64", "float16", "float32", "float64", "bool")
UFUNCS: dict[str, Any] = {
    "Sum": np.add,
    "Min": np.minimum,
    "Max": np.maximum,
    "Product": np.multiply,
}
TOLERANCE = {"float16": 1e-3, "float32": 1e-6, "float64": 1e-12}


class Binding(NamedTuple):
    """A framework's module, with the conversion of numpy arrays to its tensors and back."""

    module: str
    make: Callable[[Any], Any]
    read: Callable[[Any], Any]
    dtypes: tuple[str, ...] = DTYPES
    # whether there are tensors of 2^31 rows, and int64 for their number
    many_rows: bool = True

    @property
    def hvd(self) -> Any:
        return importlib.import_module(self.module)

    def same(self, found: Any, wanted: Any, dtype: str) -> None:
        """Assert the type, shape and values of a tensor."""
        array = np.asarray(self.read(found))
        assert (array.dtype, array.shape) == (np.dtype(dtype), np.shape(wanted))
        np.testing.assert_allclose(
            array.astype(float), np.asarray(wanted).astype(float), rtol=TOLERANCE.get(dtype, 0)
        )


def values(dtype: str, shape: str, n: int) -> list[Any]:
    """Return every rank's values: small integers, whose sums and products are exact in every dtype."""
    seed = [*SHAPES].index(shape)
    return [
        np.random.default_rng([seed, rank])
        .integers(0, 2 if dtype == "bool" else 3, SHAPES[shape])
        .astype(dtype)
        if SHAPES[shape]
        else np.array((rank + 1) % (2 if dtype == "bool" else 3)).astype(dtype)
        for rank in range(n)
    ]


def reduced(op: str, dtype: str, every: list[Any]) -> Any:
    """Return the reduction of all ranks' values, computed by numpy."""
    wide = [value.astype(float if "float" in dtype else np.int64) for value in every]
    if op == "Average":
        mean = sum(wide) / len(wide)
        return mean if "float" in dtype else np.trunc(mean)
    total = wide[0]
    for value in wide[1:]:
        total = UFUNCS[op](total, value)
    return (total != 0).astype(np.int64) if dtype == "bool" else total


class BindingKit:
    """The cases; a subclass sets the binding."""

    binding: ClassVar[Binding]

    def _run(
        self,
        check: Callable[[Binding, Any, int], None],
        *,
        n: int = 2,
        needs: tuple[str, ...] = (),
        **settings: Any,
    ) -> None:
        """Run ``check(binding, hvd, rank)`` on ``n`` ranks, if the module offers what it needs."""
        binding = self.binding
        missing = sorted({*needs} - {*binding.hvd.__all__})
        if missing:
            pytest.skip(f"does not apply: {binding.module} has no {', '.join(missing)}")
        job(n, lambda rank: check(binding, binding.hvd, rank), **settings)

    @pytest.mark.parametrize(("n", "wire"), [(1, "shm"), (2, "shm"), (3, "tcp")])
    def test_reductions(self, n: int, wire: str) -> None:
        def check(binding: Binding, hvd: Any, rank: int) -> None:
            for dtype in binding.dtypes:
                for shape in SHAPES:
                    every = values(dtype, shape, n)
                    for op in UFUNCS if dtype == "bool" else ("Average", *UFUNCS):
                        code, wanted = getattr(hvd, op), reduced(op, dtype, every)
                        given = binding.make(every[rank])
                        binding.same(hvd.allreduce(given, op=code), wanted, dtype)
                        binding.same(given, every[rank], dtype)
                        if op in ("Average", "Sum") and shape != "scalar":
                            rows = np.array_split(wanted, n)[rank]
                            binding.same(hvd.reducescatter(given, op=code), rows, dtype)

        self._run(check, n=n, wire=wire)

    @pytest.mark.parametrize("n", [1, 2, 3])
    def test_moves(self, n: int) -> None:
        def check(binding: Binding, hvd: Any, rank: int) -> None:
            for dtype in binding.dtypes:
                for shape in SHAPES:
                    every = values(dtype, shape, n)
                    root = n - 1
                    binding.same(hvd.broadcast(binding.make(every[rank]), root), every[root], dtype)
                    if shape != "scalar":
                        ragged = [
                            value[: len(value) * each // n] for each, value in enumerate(every)
                        ]
                        found = hvd.allgather(binding.make(ragged[rank]))
                        binding.same(found, np.concatenate(ragged), dtype)

        self._run(check, n=n)

    @pytest.mark.parametrize("n", [1, 2, 3])
    def test_alltoall_and_gather(self, n: int) -> None:
        def check(binding: Binding, hvd: Any, rank: int) -> None:
            for dtype in binding.dtypes:
                every = values(dtype, "odd", n)
                counts = [len(part) for part in np.array_split(every[rank], n)]
                found, received = hvd.alltoall(binding.make(every[rank]), counts)
                parts = [np.array_split(value, n)[rank] for value in every]
                binding.same(found, np.concatenate(parts), dtype)
                assert np.asarray(binding.read(received)).tolist() == [counts[rank]] * n
                even = [value[: 6 // n * n] for value in every]
                parts = [np.split(value, n)[rank] for value in even]
                binding.same(hvd.alltoall(binding.make(even[rank])), np.concatenate(parts), dtype)
                root = n - 1
                rows = np.concatenate(every)[: None if rank == root else 0]
                binding.same(hvd.gather(binding.make(every[rank]), root), rows, dtype)
            if binding.many_rows:  # without columns, they take no memory
                count = 2**31 + 8
                given = binding.make(np.empty((count if rank == 0 else 1, 0), np.float32))
                counts = [0] * (n - 1) + [len(given)]
                found, received = hvd.alltoall(given, counts)
                wanted = [0] * n if rank < n - 1 else [count] + [1] * (n - 1)
                assert np.asarray(binding.read(received)).tolist() == wanted
                assert tuple(found.shape) == (sum(wanted), 0)
                assert tuple(hvd.gather(given, n - 1).shape) == (sum(wanted), 0)

        self._run(check, n=n, needs=("alltoall", "gather"))

    def test_groups(self) -> None:
        def check(binding: Binding, hvd: Any, rank: int) -> None:
            every = [values("float32", shape, 2) for shape in ("one", "odd")]

            def given() -> Any:
                return (binding.make(each[rank]) for each in every)  # any iterable

            sums = [reduced("Sum", "float32", each) for each in every]
            for found, total in zip(hvd.grouped_allreduce(given(), op=hvd.Sum), sums, strict=True):
                binding.same(found, total, "float32")
            parts = hvd.grouped_reducescatter(given(), op=hvd.Sum)
            for found, total in zip(parts, sums, strict=True):
                binding.same(found, np.array_split(total, 2)[rank], "float32")
            for found, each in zip(hvd.grouped_allgather(given()), every, strict=True):
                binding.same(found, np.concatenate(each), "float32")

        needs = ("grouped_allreduce", "grouped_reducescatter", "grouped_allgather")
        self._run(check, needs=needs)

    def test_in_place(self) -> None:
        def check(binding: Binding, hvd: Any, rank: int) -> None:
            mine = binding.make(np.full((2, 3), rank + 1.0, np.float32))
            assert hvd.allreduce_(mine, op=hvd.Sum) is mine
            binding.same(mine, np.full((2, 3), 3.0), "float32")
            mine = binding.make(np.full(3, rank, np.int32))
            assert hvd.broadcast_(mine, 1) is mine
            binding.same(mine, [1, 1, 1], "int32")
            group = [binding.make(np.full(2, rank, np.float32)) for _ in range(2)]
            found = hvd.grouped_allreduce_(group, op=hvd.Sum)
            for tensor, result in zip(group, found, strict=True):
                assert tensor is result
                binding.same(tensor, [1, 1], "float32")

        self._run(check, needs=("allreduce_", "broadcast_", "grouped_allreduce_"))

    def test_handles(self) -> None:
        def check(binding: Binding, hvd: Any, rank: int) -> None:
            mine = {name: np.full(3, number, np.float32) for number, name in enumerate("abcdefgh")}
            handles = {
                name: hvd.allreduce_async(binding.make(mine[name]), name=name, op=hvd.Sum)
                for name in (mine if rank == 0 else reversed(mine))
            }
            for name, handle in handles.items():
                assert type(handle) is int
                binding.same(hvd.synchronize(handle), 2 * mine[name], "float32")
            assert hvd.synchronize(handles["a"]) is None
            assert hvd.poll(handles["a"]) is None
            handle = hvd.allreduce_async(binding.make(np.ones(2, np.float32)))
            while not hvd.poll(handle):
                pass
            binding.same(hvd.synchronize(handle), [1, 1], "float32")
            row = binding.make(np.full((2, 1), rank, np.float32))
            for handle, wanted in (
                (hvd.allgather_async(row), [[0], [0], [1], [1]]),
                (hvd.broadcast_async(row, 1), [[1], [1]]),
                (hvd.reducescatter_async(row, op=hvd.Sum), [[1]]),
                (hvd.alltoall_async(row), [[0], [1]]),
            ):
                binding.same(hvd.synchronize(handle), wanted, "float32")
            (found,) = hvd.synchronize(hvd.grouped_allreduce_async([row], op=hvd.Sum))
            binding.same(found, [[1], [1]], "float32")
            assert hvd.synchronize(hvd.grouped_allreduce_async([])) == []

        self._run(check, needs=("allreduce_async", "poll", "synchronize"))

    def test_factors_and_the_old_average(self) -> None:
        def check(binding: Binding, hvd: Any, rank: int) -> None:
            mine = binding.make(np.full(2, rank + 1, np.float32))
            found = hvd.allreduce(mine, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5)
            binding.same(found, [3, 3], "float32")
            with pytest.warns(DeprecationWarning, match="average"):
                binding.same(hvd.allreduce(mine, average=False), [3, 3], "float32")
            with pytest.raises(ValueError, match="average"):
                hvd.allreduce(mine, average=True, op=hvd.Sum)

        self._run(check)

    def test_compression(self) -> None:
        def check(binding: Binding, hvd: Any, rank: int) -> None:
            fine = binding.make(np.full(1, 1 + 2**-15, np.float32))
            found = hvd.allreduce(fine, op=hvd.Max, compression=hvd.Compression.fp16)
            binding.same(found, [1], "float32")

        if "compression" not in inspect.signature(self.binding.hvd.allreduce).parameters:
            pytest.skip(f"does not apply: {self.binding.module} compresses gradients alone")
        self._run(check)

    def test_process_sets(self) -> None:
        def check(binding: Binding, hvd: Any, rank: int) -> None:
            middle, ends = hvd.add_process_set([1]), hvd.add_process_set([0, 2])
            own = middle if rank == 1 else ends
            mine = binding.make(np.full(2, rank, np.float32))
            found = hvd.allreduce(mine, op=hvd.Sum, process_set=own)
            binding.same(found, [[2, 2], [1, 1], [2, 2]][rank], "float32")
            rows = [1, 1] if rank == 1 else [0, 0, 2, 2]
            binding.same(hvd.allgather(mine, process_set=own), rows, "float32")
            if rank != 1:
                binding.same(hvd.broadcast(mine, 2, process_set=ends), [2, 2], "float32")
            with pytest.raises(hvd.HorovodInternalError, match=mentioning("member", "process set")):
                hvd.allreduce(mine, process_set=ends if rank == 1 else middle)
            binding.same(hvd.allreduce(mine, op=hvd.Max), [2, 2], "float32")
            assert hvd.remove_process_set(middle)

        self._run(check, n=3, dynamic_process_sets=True)

    def test_objects(self) -> None:
        def check(binding: Binding, hvd: Any, rank: int) -> None:
            assert hvd.broadcast_object({"rank": rank}, 1) == {"rank": 1}
            assert hvd.allgather_object([rank] * rank) == [[], [1]]

        self._run(check)

    def test_barrier_and_join(self) -> None:
        def check(binding: Binding, hvd: Any, rank: int) -> None:
            hvd.barrier()
            ones = binding.make(np.ones(2, np.float32))
            for wanted in [2.0, 1.0, 1.0][: 1 + 2 * rank]:
                binding.same(hvd.allreduce(ones, op=hvd.Sum), [wanted] * 2, "float32")
            assert int(hvd.join()) == 1

        self._run(check, needs=("join",))

    def test_ranks_that_disagree_fail_and_continue(self) -> None:
        def check(binding: Binding, hvd: Any, rank: int) -> None:
            ones = binding.make(np.ones(2, np.float32))
            text = mentioning("Mismatched ALLREDUCE", "shapes")
            with pytest.raises(hvd.HorovodInternalError, match=text):
                binding.read(
                    hvd.allreduce(binding.make(np.ones(2 + rank, np.float32)), name="other shape")
                )
            binding.same(hvd.allreduce(ones, op=hvd.Sum), [2, 2], "float32")
            with pytest.raises(ValueError, match=mentioning("op=9")):
                hvd.allreduce(ones, op=9)
            with pytest.raises(TypeError, match=mentioning("prescale_factor='2'")):
                hvd.allreduce(ones, prescale_factor="2")
            with pytest.raises(TypeError, match=mentioning("root_rank=0.5")):
                hvd.broadcast(ones, 0.5)
            binding.same(hvd.allreduce(ones, op=hvd.Sum), [2, 2], "float32")

        self._run(check)
