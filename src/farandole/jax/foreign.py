"""Host functions as XLA foreign functions, bound by ctypes.

JAX's own callbacks copy results twice. Here, a function reads XLA's buffers in place, and its
results go directly to the program's buffers. The structures are those in XLA's typed FFI, versions
0.1 to 0.3, with the names of the header in jaxlib (``jax.ffi.include_dir()``, then
``xla/ffi/api/c_api.h``). XLA accepts handlers of older versions for at least a year. ``usable`` is
False if XLA refuses ours, on platforms other than the CPU, and before JAX 0.6.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import secrets
import weakref
from collections.abc import Callable, Sequence
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax._src.core import abstract_token

if TYPE_CHECKING:
    from farandole.base.types import Array

_TARGET = "farandole_host_call"
_OLDEST, _NEWEST = (0, 1), (0, 3)  # versions that agree in everything used here
_INVALID_ARGUMENT, _INTERNAL = 3, 13


class XLA_FFI_Api_Version(ctypes.Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("extension_start", c_void_p),
        ("major_version", c_int),
        ("minor_version", c_int),
    )


class XLA_FFI_Metadata(ctypes.Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("api_version", XLA_FFI_Api_Version),
        ("traits", c_uint32),
    )


class XLA_FFI_Extension_Base(ctypes.Structure):
    _fields_ = (("struct_size", c_size_t), ("type", c_int), ("next", c_void_p))


class XLA_FFI_Metadata_Extension(ctypes.Structure):
    """The extension of a metadata query, with which XLA asks for a handler's version instead of
    calling it.
    """

    _fields_ = (("extension_base", XLA_FFI_Extension_Base), ("metadata", POINTER(XLA_FFI_Metadata)))


class XLA_FFI_Buffer(ctypes.Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("extension_start", c_void_p),
        ("dtype", c_int),
        ("data", c_void_p),
    )


class XLA_FFI_Scalar(ctypes.Structure):
    _fields_ = (("dtype", c_int), ("value", POINTER(c_int64)))


_SEVERAL = (
    ("struct_size", c_size_t),
    ("extension_start", c_void_p),
    ("size", c_int64),
    ("types", c_void_p),
)


class XLA_FFI_Args(ctypes.Structure):
    _fields_ = (*_SEVERAL, ("args", POINTER(POINTER(XLA_FFI_Buffer))))


class XLA_FFI_Rets(ctypes.Structure):
    _fields_ = (*_SEVERAL, ("rets", POINTER(POINTER(XLA_FFI_Buffer))))


class XLA_FFI_Attrs(ctypes.Structure):
    _fields_ = (*_SEVERAL, ("names", c_void_p), ("attrs", POINTER(POINTER(XLA_FFI_Scalar))))


class XLA_FFI_Error_Create_Args(ctypes.Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("extension_start", c_void_p),
        ("message", c_char_p),
        ("errc", c_int),
    )


class XLA_FFI_Api(ctypes.Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("extension_start", c_void_p),
        ("api_version", XLA_FFI_Api_Version),
        ("internal_api", c_void_p),
        ("XLA_FFI_Error_Create", ctypes.CFUNCTYPE(c_void_p, POINTER(XLA_FFI_Error_Create_Args))),
    )


class XLA_FFI_CallFrame(ctypes.Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("extension_start", POINTER(XLA_FFI_Metadata_Extension)),
        ("api", POINTER(XLA_FFI_Api)),
        ("ctx", c_void_p),
        ("stage", c_int),
        ("args", XLA_FFI_Args),
        ("rets", XLA_FFI_Rets),
        ("attrs", XLA_FFI_Attrs),
    )


class _Call:
    """One call in a program: a token and arrays in, a token and arrays out. The program keeps its
    calls alive.
    """

    def __init__(
        self,
        function: Callable[..., Sequence[Array]],
        in_place: bool,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
    ) -> None:
        self._function, self._in_place = function, in_place
        self._inputs = [(aval.shape, np.dtype(aval.dtype)) for aval in inputs]
        self._outputs = [(aval.shape, np.dtype(aval.dtype)) for aval in outputs]

    def __call__(self, args: Any, rets: Any) -> None:
        """Run the function. ``args`` and ``rets``: pointers to buffers, in this order."""
        targets = len(self._outputs) if self._in_place else 0
        given = [
            self._given(args[place], rets[place] if place <= targets else None, *described)
            for place, described in enumerate(self._inputs, 1)
        ]
        found = self._function(*given)
        if not self._in_place:
            for place, (array, described) in enumerate(zip(found, self._outputs, strict=True), 1):
                _copy(array, rets[place], *described)

    def _given(self, source: Any, target: Any, shape: tuple[int, ...], dtype: Any) -> Array:
        nbytes = math.prod(shape) * dtype.itemsize
        memory = _bytes_at(target or source, nbytes)
        # Usually the same memory, because XLA was asked to alias the buffers.
        if target and nbytes and target.contents.data != source.contents.data:
            memory[:] = _bytes_at(source, nbytes)
        memory.flags.writeable = target is not None
        array: Array = memory.view(dtype).reshape(shape)
        return array


def _copy(array: Array, target: Any, shape: tuple[int, ...], dtype: Any) -> None:
    if array.shape != shape or array.dtype != dtype:
        raise RuntimeError(
            f"a result is {array.dtype}{list(array.shape)}, but the program expects"
            f" {dtype}{list(shape)}"
        )
    _bytes_at(target, array.nbytes)[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _bytes_at(buffer: Any, nbytes: int) -> Array:
    if not nbytes:
        return np.empty(0, np.uint8)
    memory: Any = (ctypes.c_char * nbytes).from_address(buffer.contents.data)
    array: Array = np.ndarray(nbytes, np.uint8, memory)
    return array


# Numbers are unique to this process: they match no call of a program stored by another process.
_numbers = itertools.count(secrets.randbits(62))
_calls: weakref.WeakValueDictionary[int, _Call] = weakref.WeakValueDictionary()


def _handle(pointer: Any) -> int | None:
    """Handle a call from XLA. Return an XLA error, or None."""
    frame = pointer.contents
    try:
        if frame.extension_start:
            _describe(frame)
        else:
            _find(frame.attrs.attrs[0].contents.value[0])(frame.args.args, frame.rets.rets)
    except BaseException as error:  # exceptions must not reach XLA
        return _failed(frame.api.contents, error)
    return None


def _find(number: int) -> _Call:
    call = _calls.get(number)
    if call is None:
        raise RuntimeError(
            "this program and its collectives were compiled by another process. Compile it in"
            " this process"
        )
    return call


def _describe(frame: XLA_FFI_CallFrame) -> None:
    """Report to XLA its own version, or the newest known one; the oldest if XLA reports none
    (before 0.2).
    """
    spoken = frame.api.contents.api_version if frame.api else None
    mine = frame.extension_start.contents.metadata.contents.api_version
    newest = (
        _OLDEST if spoken is None else min((spoken.major_version, spoken.minor_version), _NEWEST)
    )
    mine.major_version, mine.minor_version = newest


def _failed(api: XLA_FFI_Api, error: BaseException) -> int | None:
    text = (
        str(error)
        if type(error) in (ValueError, RuntimeError)
        else f"{type(error).__name__}: {error}"
    )
    code = _INVALID_ARGUMENT if isinstance(error, ValueError) else _INTERNAL
    size = ctypes.sizeof(XLA_FFI_Error_Create_Args)
    details = XLA_FFI_Error_Create_Args(size, None, text.encode(errors="replace"), code)
    made: int | None = api.XLA_FFI_Error_Create(details)
    return made


_handler = ctypes.CFUNCTYPE(c_void_p, POINTER(XLA_FFI_CallFrame))(_handle)


@functools.cache
def _registered() -> bool:
    """Return whether XLA accepts the handler. Call it after the backend exists, because an earlier
    call would not detect a refusal.
    """
    handler = jax.ffi.pycapsule(ctypes.cast(_handler, c_void_p).value)
    try:
        jax.ffi.register_ffi_target(_TARGET, {"execute": handler}, platform="cpu", api_version=1)
    except Exception as error:  # its type depends on the version
        if "API version" not in str(error):
            raise
        return False
    return True


def usable(ctx: Any) -> bool:
    """Return whether ``emit`` can be used in the program that ``ctx`` belongs to."""
    if jax.__version_info__ < (0, 6) or tuple(ctx.module_context.platforms) != ("cpu",):
        return False
    ctx.module_context.get_backend()
    return _registered()


def emit(
    ctx: Any,
    function: Callable[..., Sequence[Array]],
    in_place: bool,
    token: Any,
    operands: Sequence[Any],
) -> tuple[list[Any], Any]:
    """Emit a call of ``function`` into a program, and return its results and the next token.

    ``function`` gets arrays that are valid until it returns, and may only read them. With
    ``in_place``, it leaves its results in the first of them; XLA first copies buffers that the
    program still needs. An exception fails the program, with type and text: as INVALID_ARGUMENT for
    a ValueError, as INTERNAL for others.
    """
    call = _Call(function, in_place, ctx.avals_in, ctx.avals_out)
    number = next(_numbers)
    _calls[number] = call
    # ties the call's lifetime to the program's, and keeps the program out of the disk cache
    ctx.module_context.add_host_callback(call)
    ctx = replace(
        ctx, avals_in=[abstract_token, *ctx.avals_in], avals_out=[abstract_token, *ctx.avals_out]
    )
    aliases = {place: place for place in range(1, len(ctx.avals_out))} if in_place else None
    lowered = jax.ffi.ffi_lowering(_TARGET, has_side_effect=True, operand_output_aliases=aliases)
    token, *results = lowered(ctx, token, *operands, call=np.int64(number))
    return results, token
