"""MXNet's arrays as flat numpy arrays, and back: zero-copy for dense ones on the host.

``asnumpy()`` would copy. Instead, the address of an array is read from MXNet, after waiting for the
engine's pending operations on it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, check_call

from farandole.base.types import Buffer, DType

if TYPE_CHECKING:
    from farandole.base.types import Array

NDArray = mx.nd.NDArray
_BF16 = np.dtype([("bfloat16", np.uint16)])  # MXNet's representation of this type
_HOST = ("cpu", "cpu_pinned", "cpu_shared")
_DTYPES: dict[Any, DType] = {
    np.uint8: DType.UINT8,
    np.int8: DType.INT8,
    np.int32: DType.INT32,
    np.int64: DType.INT64,
    np.float16: DType.FLOAT16,
    np.float32: DType.FLOAT32,
    np.float64: DType.FLOAT64,
    np.bool_: DType.BOOL,
    _BF16: DType.BFLOAT16,
}
_REORDERED = (DType.FLOAT32, DType.BFLOAT16, DType.INT8, DType.UINT8)  # types with oneDNN kernels
_ONEDNN = bool(mx.runtime.Features().is_enabled("MKLDNN"))
_MXNET = {ours: theirs for theirs, ours in _DTYPES.items()}


class Pair(NamedTuple):
    """The array that a collective reads and the array that it writes, of the same shape and type.
    In place, they are the same.
    """

    source: Any
    target: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.source.shape)

    @property
    def dtype(self) -> Any:
        return self.source.dtype


class MXNetBinding:
    """A ``contracts.Binding`` for MXNet. Its tensors are NDArrays and ``Pair``s of them."""

    def buffer(self, tensor: Any) -> Buffer:
        if not isinstance(tensor, Pair):
            data, dtype = readable(tensor)
            return Buffer(data, data, dtype)
        if tensor.target is tensor.source:
            data, dtype = writable(tensor.source)
            return Buffer(data, data, dtype)
        data, dtype = readable(tensor.source)
        out = memory(tensor.target) if on_host(tensor.target) else np.empty_like(data)
        return Buffer(data, out, dtype)

    def write_back(self, tensor: Any, buffer: Buffer) -> None:
        if isinstance(tensor, Pair) and not on_host(tensor.target):
            overwrite(tensor.target, buffer.out)

    def tensor(self, array: Array, shape: Sequence[int], like: Any = None) -> Any:
        made = empty(shape, array.dtype, mx.cpu()) if like is None else empty_like(like, shape)
        overwrite(made, array)
        return made

    def cast(self, tensor: Any, dtype: Any) -> Any:
        return tensor.astype(_MXNET.get(dtype, dtype)) if _kind(tensor).is_float else tensor


def dtype_of(tensor: Any) -> DType:
    """Return the array's type. Raises TypeError for anything but an NDArray, and ValueError for a
    sparse one.
    """
    if not isinstance(tensor, NDArray):
        raise TypeError(
            f"an mxnet NDArray is needed, not {type(tensor).__name__}. Use mx.nd.array(value)"
        )
    if tensor.stype != "default":
        raise ValueError(
            f"NDArray of storage type {tensor.stype!r} is not supported. Densify it first:"
            " tensor.tostype('default')"
        )
    return _kind(tensor)


def _kind(tensor: Any) -> DType:
    dtype = tensor.dtype  # mx.nd gives np.float32, mx.np gives np.dtype("float32")
    return _DTYPES[dtype.type if isinstance(dtype, np.dtype) and dtype != _BF16 else dtype]


def on_host(tensor: Any) -> bool:
    return tensor.context.device_type in _HOST


def readable(tensor: Any) -> tuple[Array, DType]:
    """Return the flat values once they are computed: the array's own memory on the host, or a copy.

    The memory of an array whose readers reorder it is copied, too.
    """
    dtype = dtype_of(tensor)
    if not on_host(tensor):
        return tensor.asnumpy().reshape(-1).view(dtype.storage), dtype
    steady = copied(tensor) if reordered_by_readers(tensor) else tensor
    steady.wait_to_read()
    return memory(steady), dtype


def writable(tensor: Any) -> tuple[Array, DType]:
    """Return the flat values as ``readable`` does, once no operation reads the array: on the host
    always its own memory.
    """
    dtype = dtype_of(tensor)
    if not on_host(tensor):
        return readable(tensor)
    tensor.wait_to_read()
    wait_to_write(tensor)
    return memory(tensor), dtype


def wait_to_write(tensor: Any) -> None:
    """Wait until no pending MXNet operation reads or writes the array."""
    check_call(_LIB.MXNDArrayWaitToWrite(tensor.handle))
    # Readers request the write while they run, so it is queued behind the operations awaited above.
    if reordered_by_readers(tensor):
        check_call(_LIB.MXNDArrayWaitToWrite(tensor.handle))


def reordered_by_readers(tensor: Any) -> bool:
    """Return whether an operation that only reads the array may change the order of its elements.

    oneDNN's convolutions do so with their weights, outside of autograd.record(). MXNet's own
    operations handle this; direct memory access does not. Any shape may be affected, because the
    array may be a view of weights.
    """
    return _ONEDNN and tensor.size > 1 and _kind(tensor) in _REORDERED


def copied(tensor: Any) -> Any:
    """Return a private copy, made after all pending operations on the array. At least one
    dimension.
    """
    made = empty_like(tensor)
    source, target = (each.as_nd_ndarray() for each in (tensor, made))
    with mx.autograd.pause():  # copyto fails for a view of weights in oneDNN's order
        mx.nd.slice_axis(source, axis=0, begin=0, end=None, out=target)
    return made


def overwrite(tensor: Any, values: Array) -> None:
    """Set all elements. ``values`` is flat, of the type's storage type, and may be changed after
    this.
    """
    if on_host(tensor):
        wait_to_write(tensor)
        memory(tensor)[:] = values
    else:
        host = empty(
            tensor.shape, tensor.dtype, mx.cpu(), numpy_like=isinstance(tensor, mx.np.ndarray)
        )
        overwrite(host, values)
        host.copyto(tensor)


def empty_like(tensor: Any, shape: Sequence[int] | None = None) -> Any:
    """Return an empty array of the same type, device and kind (mx.nd or mx.np)."""
    size = tensor.shape if shape is None else shape
    return empty(size, tensor.dtype, tensor.context, numpy_like=isinstance(tensor, mx.np.ndarray))


def empty(shape: Sequence[int], dtype: Any, context: Any, *, numpy_like: bool = False) -> Any:
    if not numpy_like:
        return mx.nd.empty(tuple(shape), ctx=context, dtype=dtype)
    with mx.util.np_shape(True):
        return mx.np.empty(tuple(shape), dtype=dtype, ctx=context)


class _Memory:
    """An object with numpy's array interface that keeps the NDArray alive while an array uses its
    memory.
    """

    def __init__(self, tensor: Any, address: int, count: int, storage: str) -> None:
        self._tensor = tensor
        self.__array_interface__ = {
            "version": 3,
            "data": (address, False),
            "shape": (count,),
            "typestr": np.dtype(storage).str,
        }


def memory(tensor: Any) -> Array:
    """Return the flat memory of an NDArray on the host. MXNet must not use the array at the same
    time.
    """
    storage = _kind(tensor).storage
    count = 1
    for length in tensor.shape:
        count *= length
    if not count:
        return np.empty(0, dtype=storage)
    address = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(tensor.handle, ctypes.byref(address)))
    return np.asarray(_Memory(tensor, address.value or 0, count, storage))
