"""Every function, form, type and shape on two ranks, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kits.messages import mentioning
from tests.run_job import job

torch = pytest.importorskip("torch", reason="torch is not installed")

DTYPES = [
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "bool",
]
SHAPES = [(), (0,), (1,), (7,), (3, 0, 2), (5, 3), (2, 3, 4), (70001,)]


def sample(rank: int, dtype: str, shape: tuple[int, ...]) -> Any:
    """Return small integers, which are exact in every type."""
    generator = np.random.default_rng([rank, len(shape), *shape])
    numbers = generator.integers(0, 2 if dtype == "bool" else 6, shape)
    return torch.from_numpy(np.asarray(numbers)).to(getattr(torch, dtype))


def wide(tensor: Any) -> Any:
    """Return the values as a numpy array."""
    return tensor.double().numpy() if tensor.is_floating_point() else tensor.long().numpy()


def same(tensor: Any, wanted: Any, dtype: str) -> None:
    assert tensor.dtype == getattr(torch, dtype)
    assert tuple(tensor.shape) == np.shape(wanted)
    np.testing.assert_array_equal(wide(tensor), wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_allreduce(dtype: str) -> None:
    def check(rank: int) -> None:
        import farandole.torch as hvd

        ops = {"Sum": np.add, "Min": np.minimum, "Max": np.maximum, "Product": np.multiply}
        for shape in SHAPES:
            mine = sample(rank, dtype, shape)
            one, two = (wide(sample(each, dtype, shape)) for each in range(2))
            for name, ufunc in ops.items():
                wanted = ufunc(one, two)
                wanted = (wanted != 0).astype(np.int64) if dtype == "bool" else wanted
                op = getattr(hvd, name)
                kept = mine.clone()
                same(hvd.allreduce(mine, op=op), wanted, dtype)
                assert torch.equal(mine, kept)
                same(
                    hvd.synchronize(hvd.allreduce_async(mine, name=f"a{shape}{name}", op=op)),
                    wanted,
                    dtype,
                )
                assert hvd.allreduce_(kept, op=op) is kept
                same(kept, wanted, dtype)
                kept = mine.clone()
                assert hvd.synchronize(hvd.allreduce_async_(kept, op=op)) is kept
                same(kept, wanted, dtype)
                same(hvd.grouped_allreduce([mine, mine], op=op)[1], wanted, dtype)
                kept = [mine.clone(), mine.clone()]
                assert hvd.grouped_allreduce_(kept, op=op)[0] is kept[0]
                same(kept[1], wanted, dtype)
            if dtype != "bool":
                total = one + two
                mean = total / 2 if mine.is_floating_point() else np.trunc(total / 2)
                same(hvd.allreduce(mine), mean, dtype)
                same(
                    hvd.allreduce(mine, prescale_factor=2, postscale_factor=1, op=hvd.Average),
                    total,
                    dtype,
                )
                same(
                    hvd.synchronize(hvd.grouped_allreduce_async([mine], op=hvd.Average))[0],
                    mean,
                    dtype,
                )

    job(2, check)


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if "int" in dtype])
def test_integers_are_truncated_before_and_after_the_reduction(dtype: str) -> None:
    def check(rank: int) -> None:
        import farandole.torch as hvd

        mine = torch.tensor([3, 5, 9 + 2 * rank], dtype=getattr(torch, dtype))
        halves = {
            "Sum": [2, 4, 9],
            "Average": [1, 2, 4],
            "Min": [1, 2, 4],
            "Max": [1, 2, 5],
            "Product": [1, 4, 20],
        }
        for op, wanted in halves.items():
            assert (
                hvd.allreduce(mine, op=getattr(hvd, op), prescale_factor=0.5).tolist() == wanted
            ), op
        assert hvd.allreduce(
            mine, op=hvd.Sum, prescale_factor=0.5, postscale_factor=1.5
        ).tolist() == [3, 6, 13]
        assert hvd.grouped_allreduce([mine], op=hvd.Sum, prescale_factor=0.5)[0].tolist() == [
            2,
            4,
            9,
        ]
        assert (
            hvd.reducescatter(mine, op=hvd.Sum, prescale_factor=0.5).tolist() == [[2, 4], [9]][rank]
        )
        assert mine.tolist() == [3, 5, 9 + 2 * rank]
        assert (
            hvd.allreduce_(mine, op=hvd.Sum, prescale_factor=0.5).tolist()
            == [2, 4, 9]
            == mine.tolist()
        )
        if rank == 0:  # who has joined changes nothing
            assert hvd.allreduce(mine, op=hvd.Min, prescale_factor=0.5).tolist() == [1, 2, 4]
        hvd.join()

    job(2, check)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gathering_dealing_and_scattering(dtype: str) -> None:
    def check(rank: int) -> None:
        import farandole.torch as hvd

        for tail in [(), (3,), (2, 0), (1, 2)]:
            parts = [sample(each, dtype, (each * 2, *tail)) for each in range(2)]
            wanted = np.concatenate([wide(each) for each in parts])
            same(hvd.allgather(parts[rank]), wanted, dtype)
            same(hvd.synchronize(hvd.allgather_async(parts[rank], name="g")), wanted, dtype)
            same(hvd.grouped_allgather([parts[rank], parts[rank]])[1], wanted, dtype)

            rows = [sample(each, dtype, (6, *tail)) for each in range(2)]
            wanted = np.concatenate([wide(each)[rank * 3 : rank * 3 + 3] for each in rows])
            same(hvd.alltoall(rows[rank]), wanted, dtype)
            splits = [[1, 5], [4, 2]]
            starts = [0, splits[0][0]], [0, splits[1][0]]
            wanted = np.concatenate(
                [wide(rows[each])[starts[each][rank] :][: splits[each][rank]] for each in range(2)]
            )
            for given in (
                splits[rank],
                torch.tensor(splits[rank], dtype=torch.int32),
                np.array(splits[rank]),
            ):
                received, counts = hvd.alltoall(rows[rank], splits=given)
                same(received, wanted, dtype)
                same(counts, [splits[0][rank], splits[1][rank]], "int32")
            received, counts = hvd.synchronize(
                hvd.alltoall_async(rows[rank], splits[rank], name="d")
            )
            same(received, wanted, dtype)

            for count in (0, 1, 5, 6):
                pair = [sample(each, dtype, (count, *tail)) for each in range(2)]
                total = wide(pair[0]) + wide(pair[1])
                total = (total != 0).astype(np.int64) if dtype == "bool" else total
                half = (count + 1) // 2
                wanted = total[:half] if rank == 0 else total[half:]
                same(hvd.reducescatter(pair[rank], op=hvd.Sum), wanted, dtype)
                same(
                    hvd.synchronize(hvd.reducescatter_async(pair[rank], "r", hvd.Sum)),
                    wanted,
                    dtype,
                )
                same(hvd.grouped_reducescatter([pair[rank]] * 2, op=hvd.Sum)[1], wanted, dtype)
                if pair[rank].is_floating_point():
                    same(hvd.reducescatter(pair[rank]), wanted / 2, dtype)
                    same(
                        hvd.reducescatter(pair[rank], op=hvd.Sum, postscale_factor=0.5),
                        wanted / 2,
                        dtype,
                    )

    job(2, check)


@pytest.mark.parametrize("dtype", DTYPES)
def test_broadcast(dtype: str) -> None:
    def check(rank: int) -> None:
        import farandole.torch as hvd

        for root in range(2):
            for shape in SHAPES:
                mine, wanted = sample(rank, dtype, shape), wide(sample(root, dtype, shape))
                kept = mine.clone()
                same(hvd.broadcast(mine, root), wanted, dtype)
                same(
                    hvd.synchronize(hvd.broadcast_async(mine, root_rank=root, name="b")),
                    wanted,
                    dtype,
                )
                assert torch.equal(mine, kept)
                assert hvd.broadcast_(mine, root) is mine
                same(mine, wanted, dtype)
                assert hvd.synchronize(hvd.broadcast_async_(kept, root)) is kept
                same(kept, wanted, dtype)

    job(2, check)


def test_layouts() -> None:
    """Strided, transposed, channels_last, negated, requires_grad: all may be reduced in place."""

    def check(rank: int) -> None:
        import farandole.torch as hvd

        base = torch.arange(24.0) + rank
        wanted = (torch.arange(24.0) * 2 + 1).reshape(4, 6)
        grid = base.clone().reshape(4, 6)
        assert torch.equal(hvd.allreduce(grid.t(), op=hvd.Sum), wanted.t())
        hvd.allreduce_(grid.t(), op=hvd.Sum)
        assert torch.equal(grid, wanted)
        grid = base.clone().reshape(4, 6)
        hvd.grouped_allreduce_([grid[:, ::2], grid[:, 1::2]], op=hvd.Sum)
        assert torch.equal(grid, wanted)
        grid = base.clone().reshape(4, 6).bfloat16()
        hvd.broadcast_(grid[1:3, 1:3], 1)
        assert torch.equal(grid[1:3, 1:3].float(), (torch.arange(24.0) + 1).reshape(4, 6)[1:3, 1:3])
        assert torch.equal(
            hvd.allgather(grid[:, 2]), torch.cat(hvd.allgather(grid[:, 2].contiguous()).chunk(2))
        )
        last = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(rank))
        last = last.to(memory_format=torch.channels_last)
        mean = hvd.allreduce(last.contiguous())
        assert torch.equal(hvd.allreduce_(last), mean)
        assert last.is_contiguous(memory_format=torch.channels_last)
        negated = torch.tensor([1 + 2j]).conj().imag
        assert negated.is_neg()
        assert hvd.allreduce_(negated, op=hvd.Sum).tolist() == [-4.0]
        leaf = torch.nn.Parameter(torch.ones(3) * rank)
        hvd.allreduce_(leaf)
        assert leaf.requires_grad
        assert leaf.tolist() == [0.5] * 3
        leaf.square().sum().backward()
        assert hvd.allreduce(leaf * 2).tolist() == [1.0] * 3
        expanded = torch.tensor([float(rank)]).expand(3)
        assert hvd.allreduce(expanded).tolist() == [0.5] * 3
        with pytest.raises(
            TypeError,
            match=mentioning("torch.func", "function"),
        ):
            torch.func.vmap(hvd.allreduce)(torch.ones(3, 2))
        with pytest.raises(ValueError, match=mentioning("tensor", "meta device")):
            hvd.allreduce(torch.ones(3, device="meta"))

    job(2, check)


def test_compression_of_single_tensors() -> None:
    def check(rank: int) -> None:
        import farandole.torch as hvd

        exact = torch.tensor([1.0, 2.0]) * (rank + 1)
        whole = torch.tensor([1, 2])
        fine = torch.tensor([1.0 + 2**-20])
        for compression in (hvd.Compression.none, hvd.Compression.fp16, hvd.Compression.bf16):
            found = hvd.allreduce(exact, compression=compression, op=hvd.Sum)
            assert (found.dtype, found.tolist()) == (torch.float32, [3.0, 6.0])
            found = hvd.allreduce(exact.double(), compression=compression)
            assert (found.dtype, found.tolist()) == (torch.float64, [1.5, 3.0])
            assert hvd.allreduce(whole, compression=compression, op=hvd.Sum).dtype == torch.int64
            first, second = hvd.grouped_allreduce(
                [exact, whole], compression=compression, op=hvd.Sum
            )
            assert (first.tolist(), second.tolist()) == ([3.0, 6.0], [2, 4])
            assert (
                hvd.reducescatter(exact, compression=compression, op=hvd.Sum).tolist()
                == [[3.0], [6.0]][rank]
            )
            assert (
                hvd.grouped_reducescatter([exact], compression=compression)[0].tolist()
                == [[1.5], [3.0]][rank]
            )
            rounded = compression is not hvd.Compression.none
            assert (hvd.allreduce(fine, compression=compression) == 1.0).item() is rounded

    job(2, check)


def test_groups_are_any_iterable() -> None:
    """Programs write ``grouped_allreduce_(p.grad for p in model.parameters())``."""

    def check(rank: int) -> None:
        import farandole.torch as hvd

        def group(**options: Any) -> Any:
            return (torch.full((2, 1), rank + number, **options) for number in (1.0, 2.0))

        whole, parts = [[[3.0], [3.0]], [[5.0], [5.0]]], [[[3.0]], [[5.0]]]
        for options in ({}, {"requires_grad": True}):
            assert [
                each.tolist() for each in hvd.grouped_allreduce(group(**options), op=hvd.Sum)
            ] == whole
            assert [
                each.tolist() for each in hvd.grouped_reducescatter(group(**options), op=hvd.Sum)
            ] == parts
            rows = [[[1.0], [1.0], [2.0], [2.0]], [[2.0], [2.0], [3.0], [3.0]]]
            assert [each.tolist() for each in hvd.grouped_allgather(group(**options))] == rows
        assert [each.tolist() for each in hvd.grouped_allreduce_(group(), op=hvd.Sum)] == whole
        handle = hvd.grouped_allreduce_async(group(), op=hvd.Sum)
        assert [each.tolist() for each in hvd.synchronize(handle)] == whole
        given = list(group())
        handle = hvd.grouped_allreduce_async_(given, op=hvd.Sum)
        given.clear()  # the caller's list is the caller's
        assert [each.tolist() for each in hvd.synchronize(handle)] == whole

    job(2, check)


def test_average_the_old_way() -> None:
    def check(rank: int) -> None:
        import farandole.torch as hvd

        with pytest.warns(DeprecationWarning, match="average"):
            assert hvd.allreduce(torch.ones(1), average=False).item() == 2.0
        with pytest.warns(DeprecationWarning, match="average"):
            assert hvd.allreduce(torch.ones(1), average=True).item() == 1.0

    job(2, check)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda hvd: hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum),
            ValueError,
            ("op", "average"),
        ),
        (lambda hvd: hvd.allreduce(torch.ones(1), op=17), ValueError, ("op=17", "reduction")),
        (
            lambda hvd: hvd.allreduce(torch.ones(1, dtype=torch.int64), op=hvd.Adasum),
            ValueError,
            ("Adasum", "int64", "Sum", "Average"),
        ),
        (
            lambda hvd: hvd.allreduce(torch.ones(1, dtype=torch.complex64)),
            ValueError,
            ("torch.ComplexFloatTensor", "type"),
        ),
        (
            lambda hvd: hvd.allreduce(torch.eye(2).to_sparse()),
            ValueError,
            "torch.sparse_coo",
        ),
        (lambda hvd: hvd.allreduce_([1.0]), TypeError, ("torch.Tensor", "list")),
        (lambda hvd: hvd.allreduce(np.ones(1)), TypeError, ("torch.Tensor", "ndarray")),
        (
            lambda hvd: hvd.broadcast(torch.ones(1), 2),
            ValueError,
            ("rank 2", "broadcast"),
        ),
        (
            lambda hvd: hvd.broadcast(torch.ones(1), hvd.size() / 2),
            TypeError,
            "root_rank=1.0",
        ),
        (lambda hvd: hvd.broadcast_object(1, None), TypeError, "root_rank=None"),
        (
            lambda hvd: hvd.alltoall(torch.ones(4), torch.ones(2, 2, dtype=torch.int32)),
            ValueError,
            ("alltoall", "1D"),
        ),
        (
            lambda hvd: hvd.alltoall(torch.ones(4), torch.ones(2)),
            ValueError,
            ("alltoall", "32-bit"),
        ),
        (
            lambda hvd: hvd.alltoall(torch.ones(4), [3, 3]),
            ValueError,
            ("Sum", "splits"),
        ),
        (
            lambda hvd: hvd.alltoall(torch.ones(4), [4]),
            ValueError,
            ("splits", "number"),
        ),
        (
            lambda hvd: hvd.alltoall(torch.ones(3)),
            ValueError,
            (("splits", "tensor")),
        ),
        (
            lambda hvd: hvd.reducescatter(torch.ones(4), op=hvd.Min),
            ValueError,
            ("AVERAGE", "SUM"),
        ),
        (
            lambda hvd: hvd.allgather(torch.tensor(1.0)),
            ValueError,
            ("ALLGATHER", "rank-zero"),
        ),
        (
            lambda hvd: hvd.allreduce(torch.ones(2 + hvd.rank()), name="s"),
            RuntimeError,
            ("Mismatched ALLREDUCE", "shapes"),
        ),
        (
            lambda hvd: hvd.grouped_allreduce([torch.ones(1), torch.ones(2 + hvd.rank())]),
            RuntimeError,
            ("Mismatched ALLREDUCE", "shapes"),
        ),
    ],
)
def test_errors_leave_the_job_usable(
    call: Any, error: type[Exception], text: str | tuple[str, ...]
) -> None:
    def check(rank: int) -> None:
        import farandole.torch as hvd

        with pytest.raises(error, match=mentioning(text)):
            call(hvd)
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 2.0

    job(2, check)


def test_a_name_in_use() -> None:
    def check(rank: int) -> None:
        import farandole.torch as hvd

        tensor = torch.ones(4)
        if rank == 0:
            handle = hvd.allreduce_async(tensor, name="twice", op=hvd.Sum)
            with pytest.raises(
                hvd.HorovodInternalError,
                match=mentioning("allreduce", "allgather", "broadcast"),
            ):
                hvd.allreduce(tensor, name="twice")
            hvd.barrier()
        else:
            hvd.barrier()
            handle = hvd.allreduce_async(tensor, name="twice", op=hvd.Sum)
        assert hvd.synchronize(handle).tolist() == [2.0] * 4

    job(2, check)


def test_before_init_and_after_shutdown() -> None:
    import farandole.torch as hvd

    for call in (
        hvd.size,
        hvd.barrier,
        lambda: hvd.allreduce(torch.ones(1)),
        lambda: hvd.broadcast_object(1),
    ):
        with pytest.raises(ValueError, match=mentioning("Farandole", "hvd.init()")):
            call()
    for _ in range(2):
        hvd.init()
        assert (hvd.rank(), hvd.size(), hvd.is_homogeneous()) == (0, 1, True)
        assert hvd.allreduce(torch.tensor([3, 4])).tolist() == [3, 4]
        assert hvd.allgather(torch.ones(2, 2)).shape == (2, 2)
        assert hvd.alltoall(torch.arange(3), [3])[1].tolist() == [3]
        assert hvd.allgather_object("x") == ["x"]
        hvd.shutdown()
        assert not hvd.is_initialized()
