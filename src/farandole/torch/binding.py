"""Conversion of torch tensors to flat arrays and back: zero-copy for contiguous tensors on the CPU
and on the process's GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.autograd.graph import increment_version

from farandole.base.types import Buffer, DeviceBuffer, DType

if TYPE_CHECKING:
    from farandole.base.types import Array
    from farandole.torch.device.accelerator import Accelerator

DTYPES = {
    torch.uint8: DType.UINT8,
    torch.int8: DType.INT8,
    torch.int16: DType.INT16,
    torch.int32: DType.INT32,
    torch.int64: DType.INT64,
    torch.float16: DType.FLOAT16,
    torch.bfloat16: DType.BFLOAT16,
    torch.float32: DType.FLOAT32,
    torch.float64: DType.FLOAT64,
    torch.bool: DType.BOOL,
}
_TORCH = {ours: theirs for theirs, ours in DTYPES.items()}
_BF16 = torch.bfloat16
NO_ELEMENTS = (
    "A tensor on the meta device has no elements to send. Allocate a module with"
    " module.to_empty(device='cpu') and set its values with load_state_dict() or its"
    " initialisation, or create the tensor on the CPU"
)


class TorchBinding:
    """A binding that yields numpy arrays; see ``contracts.Binding``. Tensors on devices are copied
    to the host.
    """

    def buffer(self, tensor: Any) -> Buffer:
        try:
            dtype = DTYPES[tensor.dtype]
        except (KeyError, AttributeError, TypeError):
            raise _unsupported(tensor) from None
        if tensor.is_cpu and tensor.layout is torch.strided and tensor.is_contiguous():
            try:
                if tensor.requires_grad:
                    array = _flat(tensor.detach(), dtype)
                    return TrackedBuffer(array, array, dtype)
                array = _flat(tensor, dtype)
                return Buffer(array, array, dtype)
            # Handled here instead of calling is_neg() first, which would let other threads in and
            # cost more than the rest.
            except RuntimeError as error:
                if not tensor.is_neg():
                    raise _unreadable(tensor, error) from error
        there = self.elsewhere(tensor, dtype)
        if there is not None:
            return there
        array = _flat(_staged(tensor), dtype)
        return StagedBuffer(array, array, dtype)

    def elsewhere(self, tensor: Any, dtype: DType) -> Buffer | None:
        """Return the tensor's memory if it is on a device and can stay there, else None."""
        return None

    def write_back(self, tensor: Any, buffer: Buffer) -> None:
        if type(buffer) is Buffer:
            return
        if isinstance(buffer, StagedBuffer):
            with torch.no_grad():
                tensor.copy_(self.tensor(buffer.out, tensor.shape, _HOST.get(tensor.dtype)))
        # Backward may have saved the overwritten values: this makes torch report it.
        elif tensor.grad_fn is not None:
            increment_version(tensor)

    def tensor(self, array: Array, shape: Sequence[int], like: Any = None) -> Any:
        if like is None:
            return torch.from_numpy(array).reshape(shape)
        if like.dtype is _BF16:
            tensor = torch.from_numpy(array.view(np.int16)).view(_BF16)
        else:
            tensor = torch.from_numpy(array)
        if len(shape) != 1:
            tensor = tensor.reshape(shape)
        return tensor if like.is_cpu else tensor.to(like.device)

    def cast(self, tensor: Any, dtype: Any) -> Any:
        return tensor.to(_TORCH.get(dtype, dtype)) if tensor.is_floating_point() else tensor


class StagedBuffer(Buffer):
    """A copy on the host of a tensor that numpy cannot view."""

    __slots__ = ()


class TrackedBuffer(Buffer):
    """The memory of a tensor that autograd tracks."""

    __slots__ = ()


class TorchBuffer(DeviceBuffer):
    __slots__ = ()

    def with_new_out(self) -> TorchBuffer:
        return self._replace(out=torch.empty_like(self.data))


class DeviceBinding(TorchBinding):
    """A binding that leaves tensors on the process's own device."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator

    def device(self, tensor: Any) -> str:
        """Return the device whose transport takes the tensor, as in a Request: ``"CPU"`` or
        ``"GPU"``.
        """
        return "GPU" if self._accelerator.owns(tensor) else "CPU"

    def elsewhere(self, tensor: Any, dtype: DType) -> Buffer | None:
        if tensor.layout is not torch.strided or not self._accelerator.owns(tensor):
            return None
        flat = tensor.detach().resolve_neg().contiguous().view(-1)
        if flat.stride(0) != 1:  # with at most one element
            flat = flat.as_strided(flat.shape, (1,))
        self._accelerator.touch()
        return TorchBuffer(flat, flat, dtype)

    def write_back(self, tensor: Any, buffer: Buffer) -> None:
        if not isinstance(buffer, TorchBuffer):
            super().write_back(tensor, buffer)
            return
        out: Any = buffer.out
        if out.data_ptr() != tensor.data_ptr() or tensor.is_neg():
            with torch.no_grad():
                tensor.copy_(out.view(tensor.shape))
        elif tensor.grad_fn is not None:
            increment_version(tensor)

    def tensor(self, array: Array, shape: Sequence[int], like: Any = None) -> Any:
        if type(array) is np.ndarray:
            return super().tensor(array, shape, like)
        there: Any = array
        self._accelerator.record_stream(there)
        return there.view(tuple(shape))


# Templates for tensors of each dtype on the host.
_HOST = {dtype: torch.empty(0, dtype=dtype, device="cpu") for dtype in DTYPES}


def as_real(tensor: Any) -> Any:
    """Return a view of a complex tensor as real and imaginary parts; other tensors unchanged."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def is_dense(tensor: Any) -> bool:
    """Return whether the elements fill their memory without gaps or overlaps, in any order of
    dimensions.
    """
    expected = 1
    for stride, length in sorted(
        (stride, length)
        for stride, length in zip(tensor.stride(), tensor.shape, strict=True)
        if length != 1
    ):
        if stride != expected:
            return False
        expected *= length
    return True


def _flat(tensor: Any, dtype: DType) -> Array:
    """Return the memory of a contiguous tensor on the host. Raises RuntimeError for a tensor whose
    negative bit is set.
    """
    if dtype is DType.BFLOAT16:  # numpy lacks this dtype, so view its bits
        words: Array = tensor.view(torch.int16).numpy().view(np.uint16).reshape(-1)
        return words
    return tensor.numpy().reshape(-1)  # type: ignore[no-any-return]


def _staged(tensor: Any) -> Any:
    """Return a contiguous copy on the host; pinned if the tensor is on a GPU. Raises ValueError for
    tensors that have no elements or are not strided.
    """
    if tensor.is_meta:
        raise ValueError(NO_ELEMENTS)
    if tensor.layout is not torch.strided:
        raise ValueError(
            f"Tensor of layout {tensor.layout} is not supported. Densify it first:"
            " tensor.to_dense()."
        )
    tensor = tensor.detach()
    if tensor.is_cuda:
        # In torch 2.11, a copy to the host dropped the sign of a negative view with gaps.
        plain = tensor.resolve_neg()
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True, device="cpu").copy_(
            plain
        )
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu").copy_(tensor)


def supported() -> str:
    """Return the advice for an unsupported dtype."""
    known = ", ".join(dtype.value for dtype in DTYPES.values())
    return (
        f"Convert it with tensor.to(dtype) to one of {known}, or view complex numbers with"
        " torch.view_as_real(tensor)."
    )


def _unreadable(tensor: Any, error: RuntimeError) -> Exception:
    """Return the error for a tensor without memory, such as a wrapped tensor of ``torch.func``."""
    if not torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return error
    return TypeError(
        "a tensor inside a transform of torch.func (vmap, jvp, ...) has no elements to send. Call"
        " the collective outside the transformed function; loss.backward() and"
        " torch.autograd.grad differentiate collectives"
    )


def _unsupported(value: Any) -> Exception:
    if isinstance(value, torch.Tensor):
        return ValueError(f"Tensor type {value.type()} is not supported. {supported()}")
    return TypeError(
        f"a torch.Tensor is needed, not {type(value).__name__}. Use torch.as_tensor(value)"
    )
