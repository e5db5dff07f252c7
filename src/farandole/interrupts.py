"""Is an exception the fault of what was called, or has a signal brought it, which came meanwhile?"""

from __future__ import annotations

import inspect
import signal
import threading
from types import CodeType, FrameType
from typing import Any


def interrupts(error: BaseException) -> bool:
    """Is ``error``, which this thread has caught, KeyboardInterrupt, SystemExit, or anything else that the program's
    handler of a signal has raised?"""
    if not isinstance(error, Exception):
        return True
    if threading.current_thread() is not threading.main_thread():  # handlers run there
        return False
    handlers = {_code(signal.getsignal(each)) for each in signal.valid_signals()} - {None}
    trace = error.__traceback__
    caller: FrameType | None = None
    while trace is not None:
        if trace.tb_frame.f_code in handlers or _was_given(trace.tb_frame, caller):
            return True
        caller, trace = trace.tb_frame, trace.tb_next
    return False


def _was_given(frame: FrameType, caller: FrameType | None) -> bool:
    """Was it called with its caller's frame? A handler is, also one that has set another in its place meanwhile."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)]
    given = [frame.f_locals.get(name) for name in names]
    given += [each for more in given if type(more) is tuple for each in more]
    return caller is not None and any(each is caller for each in given)


def _code(handler: Any) -> CodeType | None:
    """Of a function, a method, a partial function, or an object that can be called."""
    for each in (handler, getattr(handler, "func", None), type(handler).__dict__.get("__call__")):
        code = getattr(each, "__code__", None)
        if isinstance(code, CodeType):
            return code
    return None
