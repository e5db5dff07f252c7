"""Assignment of gradients to buckets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.base.types import DType
from farandole.strategies.buckets import ContiguousBucket, partition
from farandole.strategies.buffer_pool import ALIGNMENT
from farandole.strategies.options import GradientOptions


class Fake:
    def __init__(self, count: int, dtype: DType = DType.FLOAT32, device: str = "CPU") -> None:
        self.count, self.dtype, self.device = count, dtype, device

    def place(self, array: np.ndarray) -> None:
        self.array = array


def deal(counts: list[int], limit: int, order: Any = None, groups: Any = ()) -> list[list[int]]:
    return partition(order or range(len(counts)), [Fake(count) for count in counts], limit, groups)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("counts", "limit", "wanted"),
    [
        ([], 8, []),
        ([1], 8, [[0]]),
        ([1, 1, 1], 8, [[0, 1], [2]]),
        ([1, 5, 1], 8, [[0, 1], [2]]),
        ([1, 1, 1], 0, [[0], [1], [2]]),
        ([1, 1, 1], 1 << 30, [[0, 1, 2]]),
    ],
)
def test_a_bucket_is_closed_when_it_is_full(
    counts: list[int], limit: int, wanted: list[list[int]]
) -> None:
    assert deal(counts, limit) == wanted


def test_the_order_of_arrival_counts() -> None:
    assert deal([1, 1, 1, 1], 8, [3, 1, 2, 0]) == [[3, 1], [2, 0]]


def test_groups_stay_together_and_wait_for_their_last_member() -> None:
    assert deal([1] * 5, 4, groups=[[0, 3]]) == [[1], [2], [0, 3], [4]]
    assert deal([9] * 3, 4, groups=[[0, 1, 2]]) == [[0, 1, 2]]


def test_one_type_each() -> None:
    gradients = [Fake(1, DType.FLOAT32), Fake(1, DType.FLOAT64), Fake(1, DType.FLOAT32)]
    assert partition([0, 1, 2], gradients, 1 << 20, ()) == [[1], [0, 2]]  # type: ignore[arg-type]
    assert partition([0, 1, 2], gradients, 1 << 20, [[0, 1]]) == [[0], [1], [2]]  # type: ignore[arg-type]


def test_one_device_each() -> None:
    gradients: list[Any] = [Fake(1), Fake(1, device="GPU"), Fake(1)]
    assert partition([0, 1, 2], gradients, 1 << 20, ()) == [[1], [0, 2]]
    assert partition([0, 1, 2], gradients, 1 << 20, [[0, 1]]) == [[0], [1], [2]]


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from([DType.FLOAT32, DType.FLOAT16, DType.FLOAT64]))
    ),
    st.integers(0, 64),
    st.randoms(use_true_random=False),
)
def test_every_gradient_is_in_one_bucket_of_its_type(
    kinds: list[Any], limit: int, random: Any
) -> None:
    gradients: list[Any] = [Fake(*kind) for kind in kinds]
    order = list(range(len(kinds)))
    random.shuffle(order)
    groups = [order[:3]] if random.random() < 0.5 else []
    buckets = partition(order, gradients, limit, groups)
    assert sorted(index for bucket in buckets for index in bucket) == sorted(order)
    assert all(len({gradients[index].dtype for index in bucket}) == 1 for bucket in buckets)
    ends = [order.index(bucket[-1]) for bucket in buckets]
    assert ends == sorted(ends)
    for bucket in buckets:
        if not set(bucket) & {index for group in groups for index in group}:
            nbytes = (
                sum(gradients[index].count for index in bucket[:-1])
                * gradients[bucket[0]].dtype.itemsize
            )
            assert nbytes < limit or len(bucket) == 1


@given(counts=st.lists(st.integers(0, 100), min_size=1), dtype=st.sampled_from(list(DType)))
def test_gradients_of_a_bucket_stand_apart_and_aligned(counts: list[int], dtype: DType) -> None:
    """As in separate memory: unaligned copies are slower."""
    gradients: Any = [Fake(count, dtype) for count in counts]
    nbytes = ContiguousBucket.nbytes(gradients)
    memory = np.ones(nbytes + ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    bucket = ContiguousBucket("grads", gradients, GradientOptions(), memory[first : first + nbytes])
    for gradient in gradients:
        assert len(gradient.array) == gradient.count
        assert gradient.array.ctypes.data % ALIGNMENT == 0
        gradient.array += np.ones(1, gradient.array.dtype)
    bucket.open()  # every gradient is there: flags of 1
    assert (np.concatenate([gradient.array for gradient in gradients]) == 1).all()
