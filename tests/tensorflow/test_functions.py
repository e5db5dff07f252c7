"""Every collective in eager mode, in tf.functions and in sessions, against numpy."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import farandole.tensorflow as hvd
from tests.kits.messages import mentioning
from tests.run_job import job

MODES = ["eager", "function", "unknown shapes", "session"]
DTYPES = ["uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]


def run(mode: str, build: Any, *inputs: Any) -> Any:
    """Return the result of ``build(*inputs)`` as numpy arrays, in its structure."""
    tensors = [tf.convert_to_tensor(each) for each in inputs]
    if mode == "eager":
        return tf.nest.map_structure(np.asarray, build(*tensors))
    if mode == "session":
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            places = [tf.compat.v1.placeholder(each.dtype) for each in tensors]
            feed = {place: np.asarray(each) for place, each in zip(places, tensors, strict=True)}
            return session.run(build(*places), feed)
    signature = [
        tf.TensorSpec(None if mode == "unknown shapes" else each.shape, each.dtype)
        for each in tensors
    ]
    function = tf.function(build, input_signature=signature)
    first = tf.nest.map_structure(np.asarray, function(*tensors))
    second = tf.nest.map_structure(np.asarray, function(*tensors))
    tf.nest.map_structure(np.testing.assert_array_equal, first, second)
    return second


def mine(rank: int, shape: tuple[int, ...], dtype: str) -> Any:
    numbers = np.arange(int(np.prod(shape))).reshape(shape) + rank + 1
    return tf.cast(numbers % 7 + 1, dtype)


@pytest.mark.parametrize("mode", MODES)
def test_reductions_of_every_type(mode: str) -> None:
    def body(rank: int) -> None:
        for dtype, (op, reduce) in itertools.product(
            DTYPES,
            [
                (hvd.Sum, sum),
                (hvd.Min, min),
                (hvd.Max, max),
                (hvd.Product, np.prod),
                (hvd.Average, np.mean),
            ],
        ):
            if op == hvd.Average and not tf.as_dtype(dtype).is_floating:
                continue
            every = [np.asarray(tf.cast(mine(each, (2, 3), dtype), "float64")) for each in range(2)]
            expected = (
                reduce(every)
                if op in (hvd.Sum,)
                else {
                    hvd.Min: np.minimum,
                    hvd.Max: np.maximum,
                    hvd.Product: np.multiply,
                    hvd.Average: lambda one, other: (one + other) / 2,
                }[op](*every)
            )
            got = run(mode, lambda x, op=op: hvd.allreduce(x, op=op), mine(rank, (2, 3), dtype))
            assert got.dtype == tf.as_dtype(dtype).as_numpy_dtype
            np.testing.assert_array_equal(
                got.astype(np.float64), expected, err_msg=f"{dtype} {op!r}"
            )
        got = run(mode, lambda x: hvd.allreduce(x, op=hvd.Max), tf.constant([rank == 0, False]))
        assert got.tolist() == [True, False]

    job(2, body)


@pytest.mark.parametrize("mode", MODES)
def test_collectives_without_arithmetic_take_any_dtype(mode: str) -> None:
    def body(rank: int) -> None:
        for dtype in [*DTYPES, "bool", "uint16", "uint32", "uint64", "complex64"]:
            x = tf.cast(mine(rank, (rank + 1, 2), "int32"), dtype)
            every = [
                np.asarray(tf.cast(mine(each, (each + 1, 2), "int32"), dtype)) for each in range(2)
            ]
            np.testing.assert_array_equal(run(mode, hvd.allgather, x), np.concatenate(every))
            same = tf.cast(mine(rank, (2, 2), "int32"), dtype)
            root = np.asarray(tf.cast(mine(1, (2, 2), "int32"), dtype))
            np.testing.assert_array_equal(run(mode, lambda x: hvd.broadcast(x, 1), same), root)
            rows, splits = run(mode, lambda x: hvd.alltoall(x, [1, 1]), same)
            other = [
                np.asarray(tf.cast(mine(each, (2, 2), "int32"), dtype))[rank] for each in range(2)
            ]
            np.testing.assert_array_equal(rows, np.stack(other))
            assert splits.tolist() == [1, 1]
            assert splits.dtype == np.int32

    job(2, body)


@pytest.mark.parametrize("mode", MODES)
def test_shapes(mode: str) -> None:
    def body(rank: int) -> None:
        for shape in [(), (0,), (1,), (3, 0, 2), (17, 5)]:
            x = tf.ones(shape) * (rank + 1)
            np.testing.assert_array_equal(
                run(mode, hvd.allreduce, x), np.full(shape, 1.5, np.float32)
            )
            np.testing.assert_array_equal(
                run(mode, lambda x: hvd.broadcast(x, 0), x), np.ones(shape, np.float32)
            )
        if mode == "eager":  # of a single number of this type TensorFlow makes no array
            assert tf.cast(hvd.broadcast(tf.constant(rank + 1.0, tf.bfloat16), 1), "float32") == 2.0
        part = run(
            mode, lambda x: hvd.reducescatter(x, op=hvd.Sum), tf.reshape(tf.range(6.0), (3, 2))
        )
        whole = np.arange(6.0).reshape(3, 2) * 2
        np.testing.assert_array_equal(part, whole[:2] if rank == 0 else whole[2:])
        rows = run(mode, lambda x: hvd.alltoall(x), tf.range(4) + 10 * rank)
        assert rows.tolist() == ([0, 1, 10, 11] if rank == 0 else [2, 3, 12, 13])
        rows, splits = run(
            mode,
            lambda x, s: hvd.alltoall(x, s),
            tf.range(3),
            tf.constant([3 * rank, 3 - 3 * rank]),
        )
        assert (rows.tolist(), splits.tolist()) == (
            ([0, 1, 2], [0, 3]) if rank == 0 else ([0, 1, 2], [3, 0])
        )
        rows = run(mode, lambda x: hvd.gather(x, 1), tf.range(2 + rank))
        assert rows.tolist() == ([0, 1, 0, 1, 2] if rank else [])

    job(2, body)


@pytest.mark.parametrize("mode", MODES)
def test_factors_of_float64_are_float64(mode: str) -> None:
    """TensorFlow casts a Python float to float32 first: 0.1 would be 0.10000000149."""

    def body(rank: int) -> None:
        def several(x: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                largest = hvd.allreduce(x, op=hvd.Max, prescale_factor=0.1)
                part = hvd.reducescatter(x, op=hvd.Average, postscale_factor=0.1)
            return largest, *tape.gradient((largest, part), (x,))

        largest, gradient = run(mode, several, tf.ones(3, tf.float64))
        np.testing.assert_allclose(largest, [0.1] * 3, rtol=1e-15)
        np.testing.assert_allclose(gradient, [0.2] * 3, rtol=1e-15)

        def tied(x: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                largest = hvd.allreduce(x, op=hvd.Max)
            return tape.gradient(largest, x, tf.fill([3], tf.constant(rank + 1.0, tf.float64)))

        np.testing.assert_allclose(run(mode, tied, tf.ones(3, tf.float64)), [2.0] * 3, rtol=1e-15)

    job(3, body)


@pytest.mark.parametrize("mode", MODES)
def test_groups_factors_compression_and_sets(mode: str) -> None:
    def body(rank: int) -> None:
        x = tf.constant([1.0, 2.0]) * (rank + 1)
        whole, factors = (
            tf.constant([4, 9 - rank]),
            {"prescale_factor": 0.5, "postscale_factor": 1.5},
        )
        for op, expected in ((hvd.Max, [3, 6]), (hvd.Min, [3, 6])):
            got = run(mode, lambda x, op=op: hvd.allreduce(x, op=op, **factors), whole)
            assert got.tolist() == expected
            pair = run(
                mode, lambda x, y, op=op: hvd.grouped_allreduce([x, y], op=op, **factors), whole, x
            )
            assert pair[0].tolist() == expected
            assert pair[1].tolist() == [[1.5, 3.0], [0.75, 1.5]][op == hvd.Min]
        slices = [tf.constant([[1.0 + rank]]), tf.constant([2 * rank], tf.int64)]

        def several(x: Any, values: Any, indices: Any) -> Any:
            rows = tf.IndexedSlices(values, indices, tf.constant([4, 1]))
            one, none, sparse, other = hvd.grouped_allreduce([x, None, rows, x + 1.0], op=hvd.Sum)
            assert none is None
            return one, other, sparse.values, sparse.indices

        one, other, values, indices = run(mode, several, x, *slices)
        assert (one.tolist(), other.tolist()) == ([3.0, 6.0], [5.0, 8.0])
        assert (values.tolist(), indices.tolist()) == ([[1.0], [2.0]], [0, 2])
        gathered = run(mode, lambda x: hvd.grouped_allgather([x, x[:1]]), x)
        assert [each.tolist() for each in gathered] == [[1.0, 2.0, 2.0, 4.0], [1.0, 2.0]]
        parts = run(mode, lambda x: hvd.grouped_reducescatter([x, x * 2.0], op=hvd.Sum), x)
        assert [each.tolist() for each in parts] == [[3.0 * (rank + 1)], [6.0 * (rank + 1)]]
        assert run(
            mode,
            lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0, postscale_factor=3.0),
            x,
        ).tolist() == [18.0, 36.0]

        def averaged(values: Any, indices: Any) -> Any:
            mean = hvd.allreduce(
                tf.IndexedSlices(values, indices, tf.constant([9, 1])), op=hvd.Average
            )
            return tf.scatter_nd(mean.indices[:, None], mean.values, [9, 1])

        ones = tf.constant([[3], [-3], [100], [1 + rank]], tf.int8)
        mean = run(mode, averaged, ones, tf.constant([5, 2, 8, 2 * rank], tf.int64))
        assert mean.dtype == np.int8
        assert mean[:, 0].tolist() == [0, 0, -2, 0, 0, 3, 0, 0, 100], (
            "added up before it is divided and truncated"
        )
        large = tf.constant([[2**62 + rank], [-(2**63) + rank], [-3 + rank]], tf.int64)
        mean = run(mode, averaged, large, tf.constant([5, 2, 8], tf.int64))
        assert mean[[5, 2, 8], 0].tolist() == [2**62, -(2**63) + 1, -2], (
            "the sum alone does not fit"
        )
        with pytest.raises(Exception, match=mentioning("[3, 1]", "[4, 1]")):
            run(
                mode,
                lambda x, i: (
                    hvd.allreduce(tf.IndexedSlices(x, i, tf.constant([3 + rank, 1]))).values
                ),
                large,
                tf.constant([0, 1, 2]),
            )
        for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
            got = run(mode, lambda x, c=compression: hvd.allreduce(x, compression=c), x)
            assert (got.dtype, got.tolist()) == (np.float32, [1.5, 3.0])
        for number in (None, 10):
            unknown = hvd.ProcessSet([0, 1])
            unknown.process_set_id = number
            with pytest.raises(ValueError, match=mentioning("registered")):
                run(mode, lambda x, of=unknown: hvd.allreduce(x, process_set=of), x)
        alone = hvd.add_process_set([0])
        if rank == 0:
            assert run(
                mode, lambda x: hvd.allreduce(x, op=hvd.Sum, process_set=alone), x
            ).tolist() == [1.0, 2.0]
        numbers = run(
            mode,
            lambda: [
                hvd.rank_op(),
                hvd.size_op(),
                hvd.size_op(1),
                hvd.local_rank_op(),
                hvd.local_size_op(),
                hvd.process_set_included_op(1),
            ],
        )
        assert [int(each) for each in numbers] == [rank, 2, 1, rank, 2, int(rank == 0)]

    job(2, body, dynamic_process_sets=True)


def test_static_shapes_are_those_that_are_known() -> None:
    def body(rank: int) -> None:
        @tf.function(input_signature=[tf.TensorSpec([None, 3])])
        def function(x: Any) -> Any:
            assert hvd.allreduce(x).shape.as_list() == [None, 3]
            assert hvd.broadcast(x, 0).shape.as_list() == [None, 3]
            assert hvd.allgather(x).shape.as_list() == [None, 3]
            assert hvd.alltoall(x, [1, 1])[0].shape.as_list() == [None, 3]
            assert hvd.alltoall(x, [1, 1])[1].shape.as_list() == [None]
            assert hvd.reducescatter(x).shape.as_list() == [None, 3]
            assert hvd.rank_op().shape.as_list() == []
            assert hvd.allreduce(x[0]).shape.as_list() == [3]
            return hvd.allgather(x)

        assert function(tf.ones([2, 3])).shape == (4, 3)
        ragged, sparse = tf.ragged.constant([[1.0], [2.0, 3.0]]), tf.sparse.from_dense([1.0, 0.0])
        for call in (
            hvd.allreduce,
            hvd.allgather,
            hvd.alltoall,
            lambda one: hvd.grouped_allreduce([one]),
        ):
            with pytest.raises(TypeError, match=mentioning("RaggedTensor")):
                call(ragged)
            with pytest.raises(TypeError, match=mentioning("SparseTensor", "tf.sparse.to_dense")):
                call(sparse)

    job(2, body)


def test_join_and_barrier() -> None:
    def body(rank: int) -> Any:
        step = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum, name="step"))
        if rank == 0:
            assert step(tf.constant(1.0)).numpy() == 1.0
        last = [int(hvd.join())]
        hvd.barrier()

        @tf.function
        def function() -> Any:
            hvd.barrier()
            return hvd.join()

        last.append(int(function()))
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            meet = hvd.barrier()
            assert isinstance(meet, tf.Operation)
            session.run(meet)
            last.append(int(session.run(hvd.join())))
        return last

    first, second = job(2, body)
    assert first == second
    assert set(first) <= {0, 1}
