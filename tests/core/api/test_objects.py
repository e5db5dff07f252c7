"""Objects and compression without a framework."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from farandole.base.types import DType
from farandole.core.api.compression import CastCompressor, Compressor, NoneCompressor
from tests.kits.messages import mentioning
from tests.run_job import job


def test_a_compressor_must_say_how() -> None:
    with pytest.raises(NotImplementedError, match=r"compress\(tensor\)"):
        Compressor.compress(1)
    with pytest.raises(NotImplementedError, match="decompress"):
        Compressor.decompress(1, None)
    assert NoneCompressor.decompress(*NoneCompressor.compress("t")) == "t"


def test_casting_goes_through_the_binding() -> None:
    class Numpy:
        def cast(self, tensor: Any, dtype: Any) -> Any:
            return (
                tensor.astype(getattr(dtype, "value", dtype))
                if tensor.dtype.kind == "f"
                else tensor
            )

    class Half(CastCompressor):
        binding = Numpy()  # type: ignore[assignment]
        dtype = DType.FLOAT16

    small, token = Half.compress(np.ones(2))
    assert small.dtype == np.float16
    assert Half.decompress(small, token).dtype == np.float64
    assert Half.compress(np.ones(2, dtype=np.int32))[0].dtype == np.int32


@pytest.mark.parametrize("n", [1, 3])
def test_objects_need_no_framework(n: int) -> None:
    def check(rank: int) -> Any:
        from farandole.core.api.objects import allgather_object, broadcast_object

        everybody = allgather_object({"rank": rank, "text": "x" * rank})
        last = broadcast_object([rank], root_rank=n - 1)
        return [each["rank"] for each in everybody], [len(each["text"]) for each in everybody], last

    assert job(n, check) == [(list(range(n)), list(range(n)), [n - 1])] * n


class Unreadable:
    def __reduce__(self) -> Any:
        return int, ("no",)


def test_pickling_failures_reach_all_ranks_and_the_job_continues() -> None:
    def fn(rank: int) -> None:
        from farandole.core.api.objects import allgather_object, broadcast_object

        given = (number for number in range(3)) if rank == 1 else rank
        error, text = (
            (TypeError, "generator")
            if rank == 1
            else (ValueError, ("rank 1", "generator", "TypeError"))
        )
        with pytest.raises(error, match=mentioning(text)):
            broadcast_object(given, root_rank=1)
        with pytest.raises(error, match=mentioning(text)):
            allgather_object(given)
        given = Unreadable() if rank == 1 else None
        text = ("broadcast_object", "rank 1", "rank 0", "ValueError")
        with pytest.raises(ValueError, match=mentioning(text)):
            broadcast_object(given, root_rank=1)
        with pytest.raises(
            ValueError,
            match=mentioning("rank 1", "ValueError", "'no'"),
        ):
            allgather_object(given)
        assert allgather_object(rank) == [0, 1, 2]

    job(3, fn)
