"""Tells whether a thread waits: then somebody else has to run the calls that are left to it.

Threads in waits and calls of this package mark themselves (``waiting_for``, ``in_calls``). A thread
may also wait in a lock, a future or C++ of the program. Nothing can be declared there: PyTorch and
the program do not know these calls. The rest is a guess, made in ``_foreign_signs`` alone: the
kernel shows that a thread sleeps, and the names in its innermost function show whether it waits. A
wrong guess costs time or the order of callbacks, never a result.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable

LONG = 1.0  # seconds, if nothing says that it waits: threads of a kernel sleep, too
_WAITS = frozenset({"wait", "acquire"})  # names that a waiting function uses
_ASKS = "done"  # the name that a poll of a future uses

in_calls: set[int] = set()  # threads, by their idents, that run calls of a queue, or await a turn
waiting_for: dict[int, object] = {}  # by the ident of a thread that waits here: for what


def signs(thread: int, behind: float, runs_call: Callable[[int], bool]) -> dict[Hashable, float]:
    """The signs that a thread (by its native id) waits, and for how many seconds each has to last.
    ``behind``: for how many it may sleep in a call; ``runs_call``: whether a thread (by its ident)
    runs one.
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
    """See above: ``signs`` of a thread that is in no call and no wait of this package."""
    frame = sys._current_frames().get(own) if own is not None else None
    sleep = current_sleep(thread)
    found: dict[Hashable, float] = {}
    if sleep is not None:
        waits = frame is None or not _WAITS.isdisjoint(frame.f_code.co_names)
        found[sleep] = 0.0 if waits else LONG
    if frame is not None and _ASKS in frame.f_code.co_names:  # it may sleep between two looks
        found[id(frame)] = LONG
    return found


def current_sleep(thread: int) -> tuple[int, str] | None:
    """Which of its sleeps a thread of this process is in; None if it is awake, or waits for a
    core.
    """
    try:
        with open(f"/proc/self/task/{thread}/status") as file:
            status = dict(line.split(":", 1) for line in file)
    except OSError:  # it has ended
        return thread, ""
    if "(sleeping)" not in status["State"]:
        return None
    return thread, status.get("voluntary_ctxt_switches", "")
