"""Is an exception the fault of what was called, or has a signal brought it, which came meanwhile?"""

from __future__ import annotations

import signal
import threading
from types import CodeType
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
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def _code(handler: Any) -> CodeType | None:
    """Of a function, a method, a partial function, or an object that can be called."""
    for each in (handler, getattr(handler, "func", None), type(handler).__dict__.get("__call__")):
        code = getattr(each, "__code__", None)
        if isinstance(code, CodeType):
            return code
    return None
