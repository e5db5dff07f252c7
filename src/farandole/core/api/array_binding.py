"""A binding to numpy arrays, for frameworks whose tensors are exchanged as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from farandole.base.types import Buffer, DType

if TYPE_CHECKING:
    from farandole.base.types import Array

_DTYPES = {dtype.value: dtype for dtype in DType}
# Types without arithmetic here, moved as a different type of the same size.
_CARRIERS = {"uint16": np.int16, "uint32": np.int32, "uint64": np.int64, "complex64": np.int64}


class ArrayBinding:
    """See ``contracts.Binding``. bfloat16 arrays have a dtype of that name, as in ml_dtypes."""

    def buffer(self, tensor: Array) -> Buffer:
        dtype = _DTYPES.get(tensor.dtype.name)
        if dtype is None:
            known = (
                f"Tensor type {tensor.dtype.name} is not supported. Use one of"
                f" {', '.join(_DTYPES)}."
            )
            others = " Text and objects travel by allgather_object and broadcast_object."
            raise ValueError(known + (others if tensor.dtype.kind in "OSUT" else ""))
        flat = np.ascontiguousarray(tensor).reshape(-1)
        if dtype is DType.BFLOAT16:
            flat = flat.view(np.uint16)
        return Buffer(flat, flat, dtype)

    def write_back(self, tensor: Array, buffer: Buffer) -> None:
        place = buffer.out.view(tensor.dtype)
        if not np.shares_memory(place, tensor):
            tensor[...] = place.reshape(tensor.shape)

    def tensor(self, array: Array, shape: Sequence[int], like: Any = None) -> Array:
        typed: Array = array if like is None else array.view(like.dtype)
        return typed.reshape(tuple(shape))

    def cast(self, tensor: Array, dtype: Any) -> Array:
        is_float = tensor.dtype.kind == "f" or tensor.dtype.name == DType.BFLOAT16.value
        return (
            tensor.astype(dtype.value if isinstance(dtype, DType) else dtype)
            if is_float
            else tensor
        )


def carried(array: Array) -> Array:
    """Return a view of ``array`` with a dtype of the same size that can be moved, for the types
    that cannot be reduced (uint16, uint32, uint64, complex64).

    For collectives without arithmetic. ``.view(dtype)`` converts the result back.
    """
    carrier = _CARRIERS.get(array.dtype.name)
    return array if carrier is None else array.view(carrier)
