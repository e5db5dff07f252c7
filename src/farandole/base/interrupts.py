"""Detection of exceptions raised by signal handlers rather than by the interrupted call."""

from __future__ import annotations

import inspect
import threading
from types import FrameType


def interrupts(error: BaseException) -> bool:
    """Return whether ``error``, caught by this thread, came from an interrupt: KeyboardInterrupt,
    SystemExit, or an exception from a signal handler of the program.

    Python passes the interrupted frame to a signal handler; that frame is also the handler's
    caller.
    """
    if not isinstance(error, Exception):
        return True
    if threading.current_thread() is not threading.main_thread():  # handlers run there
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        if _is_argument(trace.tb_next.tb_frame, trace.tb_frame):
            return True
        trace = trace.tb_next
    return False


def _is_argument(frame: FrameType, caller: FrameType) -> bool:
    """Return whether ``caller`` is among the arguments of the function in ``frame``."""
    code = frame.f_code
    names = code.co_varnames[
        : code.co_argcount
        + code.co_kwonlyargcount
        + (1 if code.co_flags & inspect.CO_VARARGS else 0)
    ]
    given = [frame.f_locals.get(name) for name in names]
    given += [each for more in given if type(more) is tuple for each in more]
    return any(each is caller for each in given)
