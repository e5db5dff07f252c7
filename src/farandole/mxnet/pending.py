"""Arrays whose values are still being computed.

MXNet computes in the background: an operation returns arrays immediately, and reading one waits. A
collective does the same: it registers its outputs with MXNet's engine as being written, and fulfils
this promise when all ranks have taken part. Small tensors of one step are therefore exchanged
together. Ranks may call in different orders if they compute with results only after the last call,
because waiting MXNet operations hold temporary memory that others need.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import threading
from collections.abc import Callable
from typing import Any

import mxnet as mx
from mxnet.base import _LIB, MXNetError, check_call, register_error

from farandole.errors import HorovodInternalError

_KEPT = 100  # errors that have not been raised yet
_ASYNC = ctypes.c_int(4)  # FnProperty::kAsync
_NORMAL = ctypes.c_int(0)  # FnProperty::kNormal
_CPU = (ctypes.c_int * 2)(1, 0)  # Context: device type, device id
_Start = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_Done = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class _OnComplete(ctypes.Structure):
    """mxnet::engine::CallbackOnComplete of MXNet 1.x, which is no longer developed."""

    _fields_ = (
        ("done", ctypes.c_void_p),
        ("engine", ctypes.c_void_p),
        ("parameter", ctypes.c_void_p),
    )


Keep = Callable[[Exception | None], None]
_numbers = itertools.count(1)
_to_start: dict[int, Callable[[Keep], None]] = {}
_to_fail: dict[int, tuple[_OnComplete, Exception]] = {}  # errors on their way to MXNet
_open = 0  # unfulfilled promises
_change = threading.Condition()  # guards their number, which is constant while the process forks
_errors: dict[str, HorovodInternalError] = {}


def _exceptions() -> Any:
    """Return functions that make and destroy a C++ exception, (construct, destroy); None if the
    symbols have other names.
    """
    try:
        library = ctypes.CDLL("libstdc++.so.6")
        construct, destroy = library._ZNSt13runtime_errorC1EPKc, library._ZNSt13runtime_errorD1Ev
    except (OSError, AttributeError):
        return None
    construct.argtypes, construct.restype = [ctypes.c_void_p, ctypes.c_char_p], None
    destroy.argtypes, destroy.restype = [ctypes.c_void_p], None
    return construct, destroy


_cxx = _exceptions()


def possible() -> bool:
    """Return whether arrays can be promised: not with NaiveEngine, which runs all operations
    synchronously, for debugging.
    """
    return (
        _cxx is not None
        and mx.__version__.startswith("1.")
        and os.environ.get("MXNET_ENGINE_TYPE") != "NaiveEngine"
    )


def promise(source: Any, target: Any, priority: int, when_done: Callable[[Keep], None]) -> None:
    """Register with MXNet that ``target`` is being written from ``source`` (the same array: in
    place).

    ``when_done(keep)`` is called soon, on any thread. It must arrange a call of ``keep(None)``, on
    any thread, once the values are available, or of ``keep(error)``, which is raised to readers of
    ``target``.
    """
    global _open
    number = next(_numbers)
    _to_start[number] = when_done
    with _change:
        _open += 1
    reads = [] if source is target else [source.handle]
    _push(_started, number, reads, [target.handle], _ASYNC, priority)


def _push(
    run: Any, number: int, reads: list[Any], writes: list[Any], kind: Any, priority: int
) -> None:
    """Give MXNet's engine an operation that calls ``run`` with ``number``."""
    check_call(
        _LIB.MXEnginePushAsyncND(
            run,
            ctypes.c_void_p(number),
            None,
            ctypes.byref(_CPU),
            (ctypes.c_void_p * len(reads))(*reads),
            ctypes.c_int(len(reads)),
            (ctypes.c_void_p * len(writes))(*writes),
            ctypes.c_int(len(writes)),
            ctypes.byref(kind),
            ctypes.c_int(priority),
            b"farandole",
            ctypes.c_bool(False),
        )
    )


@_Start  # type: ignore[untyped-decorator]
def _started(context: int, on_complete: int, number: int) -> None:
    keeper = _keeper(on_complete)

    def keep(error: Exception | None) -> None:
        if error is None:
            _kept(keeper, None)
            return
        # MXNet records errors without a lock, so its own worker records this one: from another
        # thread, about one of a hundred failed reads freed the text twice.
        failing = next(_numbers)
        _to_fail[failing] = (keeper, error)
        _push(_failed, failing, [], [], _NORMAL, 0)

    _to_start.pop(number)(keep)


@_Start  # type: ignore[untyped-decorator]
def _failed(context: int, on_complete: int, number: int) -> None:
    keeper, error = _to_fail.pop(number)
    _kept(keeper, error, _keeper(on_complete))


def _keeper(on_complete: int) -> _OnComplete:
    return _OnComplete.from_buffer_copy(ctypes.string_at(on_complete, ctypes.sizeof(_OnComplete)))


def _kept(
    keeper: _OnComplete, error: Exception | None, recorder: _OnComplete | None = None
) -> None:
    """Fulfil a promise, or report its error to readers.

    ``recorder``: the operation that reports the error. It ends before the promise counts as kept,
    because MXNet waits for it when the process forks.
    """
    global _open
    with _change:
        _complete(keeper, error)
        if recorder is not None:
            _complete(recorder, None)
        _open -= 1
        _change.notify_all()


def _complete(keeper: _OnComplete, error: Exception | None) -> None:
    done = _Done(keeper.done)
    if error is None:
        done(keeper.engine, keeper.parameter, None)
        return
    construct, destroy = _cxx
    exception = ctypes.create_string_buffer(64)  # a std::runtime_error: vtable and text
    construct(exception, _noted(error).encode())
    try:
        done(keeper.engine, keeper.parameter, exception)
    finally:
        destroy(exception)


# Errors. MXNet passes a string from thread to thread, and its first word selects the exception.


def _noted(error: Exception) -> str:
    text = f"{error}".replace("\0", " ")
    if isinstance(error, HorovodInternalError):
        _errors[text] = error
        while len(_errors) > _KEPT:
            with contextlib.suppress(KeyError):
                del _errors[next(iter(_errors))]
    return f"{HorovodInternalError.__name__}: {text}"


def _raised(text: str) -> HorovodInternalError:
    """Return the error of a collective, which is also MXNet's: programs catch either one."""
    text = text.partition(": ")[2]
    original = _errors.pop(text, None)
    kind = type(original) if original is not None else HorovodInternalError
    error: HorovodInternalError = _both(kind).__new__(_both(kind), text)
    if original is not None:
        error.__dict__.update(original.__dict__)
    return error


_kinds: dict[type, type] = {}


def _both(kind: type) -> Any:
    if kind not in _kinds:
        _kinds[kind] = type(kind.__name__, (kind, MXNetError), {"__module__": kind.__module__})
    return _kinds[kind]


register_error(HorovodInternalError.__name__, _raised)


# Forks (workers of a DataLoader). Before a fork MXNet waits for all its operations, with the
# interpreter's lock held; keeping promises needs this lock, so wait for them first.


def _before_fork() -> None:
    _change.acquire()
    while _open:
        _change.wait()


os.register_at_fork(
    before=_before_fork, after_in_parent=_change.release, after_in_child=_change.release
)
