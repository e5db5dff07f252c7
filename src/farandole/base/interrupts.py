"""Is an exception the fault of what was called, or has a signal brought it, which came
meanwhile?
"""

from __future__ import annotations

import inspect
import threading
from types import FrameType


def interrupts(error: BaseException) -> bool:
    """Is ``error``, which this thread has caught, KeyboardInterrupt, SystemExit, or anything else
    that the program's handler of a signal has raised? Python gives a handler the frame that it
    interrupts, which is its caller's.
    """
    if not isinstance(error, Exception):
        return True
    if threading.current_thread() is not threading.main_thread():  # handlers run there
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        if _was_given(trace.tb_next.tb_frame, trace.tb_frame):
            return True
        trace = trace.tb_next
    return False


def _was_given(frame: FrameType, caller: FrameType) -> bool:
    """Is ``caller`` among the arguments of the function that runs in ``frame``?"""
    code = frame.f_code
    names = code.co_varnames[
        : code.co_argcount
        + code.co_kwonlyargcount
        + (1 if code.co_flags & inspect.CO_VARARGS else 0)
    ]
    given = [frame.f_locals.get(name) for name in names]
    given += [each for more in given if type(more) is tuple for each in more]
    return any(each is caller for each in given)
