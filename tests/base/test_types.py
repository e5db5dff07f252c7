"""The nouns: element types, operations, requests."""

from __future__ import annotations

import numpy as np
import pytest

from farandole.base.types import DType, Kind, ReduceOp, Request, Slot


@pytest.mark.parametrize("dtype", DType)
def test_storage_has_the_size_of_the_type(dtype: DType) -> None:
    assert np.dtype(dtype.storage).itemsize == dtype.itemsize


@pytest.mark.parametrize("dtype", [each for each in DType if each is not DType.BFLOAT16])
def test_storage_is_the_type_where_numpy_has_it(dtype: DType) -> None:
    assert np.dtype(dtype.storage) == np.dtype(dtype.value)
    assert dtype.is_float == (np.dtype(dtype.value).kind == "f")


def test_bfloat16_travels_as_its_bits() -> None:
    assert DType.BFLOAT16.storage == "uint16"
    assert DType.BFLOAT16.is_float


def test_the_half_types() -> None:
    assert {each for each in DType if each.is_half} == {DType.FLOAT16, DType.BFLOAT16}


def test_operations_have_horovods_numbers() -> None:
    assert {each.name: each.value for each in ReduceOp} == {
        "AVERAGE": 0,
        "SUM": 1,
        "ADASUM": 2,
        "MIN": 3,
        "MAX": 4,
        "PRODUCT": 5,
        "BAND": 6,
        "BOR": 7,
        "BXOR": 8,  # torch.distributed's, which Horovod does not have
    }


def test_collectives_have_the_names_of_horovods_messages() -> None:
    assert [each.name for each in Kind] == [
        "ALLREDUCE",
        "ALLGATHER",
        "BROADCAST",
        "ALLTOALL",
        "REDUCESCATTER",
        "BARRIER",
        "JOIN",
        "ALLOCATE",
    ]


def test_equal_requests_are_one_key() -> None:
    first = Request("a", Kind.ALLREDUCE, shape=(2, 3))
    assert {first, Request("a", Kind.ALLREDUCE, shape=(2, 3))} == {first}
    assert first != first._replace(shape=(3, 2))


def test_a_slot_is_frozen() -> None:
    slot = Slot(rank=0, host="a", local_rank=0, local_size=1, cross_rank=0, cross_size=1, size=1)
    with pytest.raises(AttributeError):
        slot.rank = 1
