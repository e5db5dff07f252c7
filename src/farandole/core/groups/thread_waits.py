"""Detection of waiting threads, so that another thread can run the calls left to them.

Threads inside waits and calls of this package are marked (``waiting_for``, ``in_calls``). A thread
may also wait for a lock, a future or C++ code of the program, which is not marked. Only
``_foreign_signs`` guesses such waits: the kernel reports whether a thread sleeps, and the names in
its innermost function suggest whether it waits. A wrong guess costs time or changes the order of
callbacks, but never a result.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable

LONG = 1.0  # seconds without other evidence of a wait: threads running a kernel sleep, too
_WAITS = frozenset({"wait", "acquire"})  # names used in waiting functions
_ASKS = "done"  # the name used in functions that poll a future

in_calls: set[int] = set()  # idents of threads that run calls of a queue, or wait for their turn
# maps the ident of a waiting thread to the object that it waits for
waiting_for: dict[int, object] = {}


def signs(thread: int, behind: float, runs_call: Callable[[int], bool]) -> dict[Hashable, float]:
    """Return signs that a thread (by its native id) is waiting, each with its minimum duration in
    seconds.

    ``behind``: seconds that the thread may sleep inside a call; ``runs_call``: whether a thread (by
    its ident) runs a call.
    """
    own = next((each.ident for each in threading.enumerate() if each.native_id == thread), None)
    if own is not None:
        if own in in_calls or runs_call(own):
            sleep = current_sleep(thread)
            return {} if sleep is None else {sleep: behind}
        awaited = waiting_for.get(own)
        if awaited is not None:
            return {(own, id(awaited)): 0.0}
    return _foreign_signs(thread, own)


def _foreign_signs(thread: int, own: int | None) -> dict[Hashable, float]:
    """Return the signs of a thread outside of this package's calls and waits."""
    frame = sys._current_frames().get(own) if own is not None else None
    sleep = current_sleep(thread)
    found: dict[Hashable, float] = {}
    if sleep is not None:
        waits = frame is None or not _WAITS.isdisjoint(frame.f_code.co_names)
        found[sleep] = 0.0 if waits else LONG
    if frame is not None and _ASKS in frame.f_code.co_names:  # it may sleep between two polls
        found[id(frame)] = LONG
    return found


def current_sleep(thread: int) -> tuple[int, str] | None:
    """Return an id of the current sleep of a thread of this process; None if it runs or waits for a
    core.
    """
    try:
        with open(f"/proc/self/task/{thread}/status") as file:
            status = dict(line.split(":", 1) for line in file)
    except OSError:  # the thread has ended
        return thread, ""
    if "(sleeping)" not in status["State"]:
        return None
    return thread, status.get("voluntary_ctxt_switches", "")
