"""The lock of the thread that runs the rounds. It is never lost.

A signal's handler may raise in the main thread behind each call, and at the beginning of each
function of Python. So one call both takes the lock and notes it, and the thread that took it calls
``release`` itself, first thing.
"""

from __future__ import annotations

import threading

from farandole.errors import WAITS_FOR_ITSELF, RequestError

_AT_ONCE = (False,)  # how a lock is acquired without waiting


class DriverLock:
    """``lock`` waits in a ``with`` statement, which loses nothing either. ``owner``: the thread
    that has taken it, which resets it before the release.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.owner = 0
        self.release = self.lock.release
        self._acquire = self.lock.acquire

    def take(self, held: list[bool]) -> bool:
        """Take the lock if it is free. ``held``, an empty list, has True in it then, also if this
        raises.
        """
        held += map(self._acquire, _AT_ONCE)
        if held[0]:
            self.owner = threading.get_ident()
        return held[0]

    def check(self) -> None:
        """Raise RequestError if this thread has it already, and would wait for itself."""
        if self.owner == threading.get_ident():
            raise RequestError(WAITS_FOR_ITSELF)
