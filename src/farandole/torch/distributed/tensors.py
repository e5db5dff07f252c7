"""Tensors as flat arrays of their memory, and torch.distributed's reductions as the engine's."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.distributed import ReduceOp as TorchOp

from farandole.base.types import DType, ReduceOp
from farandole.torch.binding import DTYPES

if TYPE_CHECKING:
    from farandole.base.types import Array

_KINDS = {dtype: np.dtype(dtype.storage).str for dtype in DTYPES.values()}
_OPS = {
    TorchOp.SUM: ReduceOp.SUM,
    TorchOp.AVG: ReduceOp.SUM,
    TorchOp.PREMUL_SUM: ReduceOp.SUM,
    TorchOp.MIN: ReduceOp.MIN,
    TorchOp.MAX: ReduceOp.MAX,
    TorchOp.PRODUCT: ReduceOp.PRODUCT,
    TorchOp.BAND: ReduceOp.BAND,
    TorchOp.BOR: ReduceOp.BOR,
    TorchOp.BXOR: ReduceOp.BXOR,
}
_BITWISE = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)
_CODES: dict[Any, int] = {}


class Memory(NamedTuple):
    """The memory of a tensor for a collective.

    ``array``: flat. ``home``: the tensor and its contiguous copy; None if ``array`` is the tensor's
    own memory. ``factor``: multiplies the copy's elements.
    """

    array: Array
    home: tuple[Any, Any] | None = None
    factor: Any = None

    def refresh(self) -> None:
        """Copy the tensor's current values: a call reads the tensor when its turn comes."""
        if self.home is not None:
            tensor, copy = self.home
            with no_autograd(copy):
                copy.copy_(tensor if self.factor is None else tensor * self.factor)

    def write_back(self) -> None:
        """Copy the result to the tensor. Raises ValueError for a tensor from ``expand()`` if the
        result has several values for one element in memory.
        """
        if self.home is not None:
            tensor, copy = self.home
            with no_autograd(tensor):
                places, values = _once(tensor, copy)
                places.copy_(values)


def _once(tensor: Any, result: Any) -> tuple[Any, Any]:
    """Return both tensors with one element for each address in the memory of ``tensor``. Gloo, too,
    accepts tensors from ``expand()``.
    """
    places, values = tensor, result
    for axis, (length, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if length > 1 and not stride:
            places, values = places.narrow(axis, 0, 1), values.narrow(axis, 0, 1)
    if places is not tensor and not _same_bits(values.expand_as(result), result):
        raise ValueError(
            f"an expanded tensor of shape {list(tensor.shape)} stores several elements in one"
            " place, and their values in the result differ. Pass tensor.clone()"
        )
    return places, values


def _same_bits(one: Any, other: Any) -> bool:
    """Return whether the tensors are equal, with NaN equal to itself."""
    one, other = (each.contiguous().reshape(-1).view(torch.uint8) for each in (one, other))
    return bool(torch.equal(one, other))


def no_autograd(tensor: Any) -> Any:
    """Return a context in which ``tensor`` may be written without autograd, on any thread: the
    program's ``inference_mode()`` covers its own thread only.
    """
    return torch.inference_mode() if tensor.is_inference() else torch.no_grad()


class RankReduction(NamedTuple):
    """``factor``: for each rank's own elements. ``scale``: for the result."""

    op: ReduceOp
    scale: float
    factor: Any  # None, a number or a tensor
    name: str


def dtype_code(dtype: Any) -> int:
    """Return a number for a torch dtype, equal in all processes."""
    found = _CODES.get(dtype)
    if found is None:
        found = _CODES[dtype] = zlib.crc32(str(dtype).encode())
    return found


def byte_memory(tensor: Any) -> Memory:
    """Return a tensor's bytes. A tensor with gaps is copied at ``refresh`` and ``write_back``.
    Raises ValueError for a sparse tensor, or one without memory.
    """
    tensor = _detached(tensor)
    _check_dense(tensor)
    if _is_plain(tensor):
        return Memory(_bytes(tensor))
    copy = _room_for(tensor)
    return Memory(_bytes(copy), (tensor, copy))


def _detached(tensor: Any) -> Any:
    """Return the tensor without autograd. The wrapped result of a functional collective is awaited
    first.
    """
    if type(tensor) is not torch.Tensor and hasattr(tensor, "trigger_wait"):
        tensor = tensor.wait()
    return tensor.detach()


def _check_dense(tensor: Any) -> None:
    if tensor.layout is not torch.strided:
        raise ValueError(
            f"a tensor of layout {str(tensor.layout).removeprefix('torch.')} is not supported:"
            " only all_reduce accepts sparse tensors, in COO layout. Pass tensor.to_dense()"
        )


def _is_plain(tensor: Any) -> bool:
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _room_for(tensor: Any) -> Any:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def _bytes(tensor: Any) -> Array:
    return _flat(tensor, "|u1", tensor.nbytes)


def _has_memory(tensor: Any) -> bool:
    """Return whether the tensor has memory. ``tensor.data_ptr()`` is not reliable: for an empty
    storage, a view's address is its offset.
    """
    try:
        return bool(tensor.untyped_storage().data_ptr())
    except RuntimeError:  # a subclass that wraps other tensors
        return False


class _TensorMemory:
    """Memory in numpy's array interface, and the tensor that keeps it alive."""

    __slots__ = ("__array_interface__", "tensor")

    def __init__(self, tensor: Any, kind: str, count: int) -> None:
        self.tensor = tensor
        place = tensor.data_ptr() if _has_memory(tensor) else 0
        if not place:
            raise ValueError(
                f"a {type(tensor).__name__} of shape {list(tensor.shape)} has no memory: its"
                " storage was freed or is fake, or it wraps other tensors. If it wraps tensors,"
                " pass those"
            )
        self.__array_interface__ = {
            "version": 3,
            "data": (place, False),
            "shape": (count,),
            "typestr": kind,
        }


def _flat(tensor: Any, kind: str, count: int) -> Array:
    """Return ``count`` elements as an array. ``kind``: numpy's type string.

    After ``tensor.numpy()``, programs such as FSDP could not resize the storage. The result is a
    view, like its parts: collectives find neighbours by their base.
    """
    return np.asarray(_TensorMemory(tensor, kind, count))[:] if count else np.empty(0, kind)


def elements(tensor: Any, factor: Any = None) -> tuple[Memory, DType]:
    """Return a tensor's elements as transports reduce them; a complex number is two elements. A
    tensor with gaps or a ``factor`` is copied at ``refresh`` and ``write_back``.

    Raises ValueError for unsupported dtypes, sparse tensors, and tensors without memory.
    """
    tensor = _detached(tensor)
    _check_dense(tensor)
    dtype = DTYPES.get(tensor.dtype)
    home: Any = None
    if factor is not None or not _is_plain(tensor):
        copy = _room_for(tensor)
        home, tensor = (tensor, copy), copy
    if dtype is None:
        if not tensor.is_complex():
            known = ", ".join(dtype.value for dtype in DTYPES.values())
            raise ValueError(
                f"{tensor.dtype} cannot be reduced. Convert it to one of {known}, or to a complex"
                " type"
            )
        tensor = torch.view_as_real(tensor)
        dtype = DTYPES[tensor.dtype]
    return Memory(_flat(tensor, _KINDS[dtype], tensor.numel()), home, factor), dtype


def reduction(op: Any, size: int, dtype: Any) -> RankReduction:
    """Return the reduction for ``op`` on tensors of ``dtype`` over ``size`` ranks. Raises
    ValueError for invalid combinations.
    """
    kind = op.op
    found, name = _OPS[kind], kind.name
    if found in _BITWISE and (dtype.is_floating_point or dtype.is_complex):
        raise ValueError(f"ReduceOp.{name} applies to integers, not to {dtype}")
    if dtype.is_complex and found is not ReduceOp.SUM:
        raise ValueError(
            f"ReduceOp.{name} is not defined for {dtype}. Sum or average complex numbers"
        )
    if dtype is torch.bool and kind == TorchOp.AVG:
        raise ValueError(
            "Cannot use ReduceOp.AVG with boolean inputs, because a mean is not a bool. Pass"
            " tensor.float(), or use MIN (True if all are) or MAX (True if any is)"
        )
    factor = op.__getstate__()[1] if kind == TorchOp.PREMUL_SUM else None
    return RankReduction(found, 1.0 / size if kind == TorchOp.AVG else 1.0, factor, name)


def tensors_text(tensors: Sequence[Any]) -> str:
    """Return dtype and shapes, for messages."""
    first = ", ".join(str(list(tensor.shape)) for tensor in tensors[:4])
    more = f" and {len(tensors) - 4} more" if len(tensors) > 4 else ""
    return f"{str(tensors[0].dtype).removeprefix('torch.')} {first}{more}" if tensors else "nothing"
