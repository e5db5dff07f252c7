"""The lock of the thread that runs the rounds, safe against exceptions from signal handlers.

A signal handler may raise in the main thread after each call, and at the start of each Python
function. Therefore one call both takes the lock and records it, and the owner calls ``release``
directly, before any other cleanup.
"""

from __future__ import annotations

import threading

from farandole.errors import WAITS_FOR_ITSELF, RequestError

_AT_ONCE = (False,)  # arguments of a non-blocking acquire


class DriverLock:
    """The driver's lock. ``lock`` may be used in a ``with`` statement, which is equally safe.
    ``owner``: the ident of the thread that called ``take``, which resets it before the release.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.owner = 0
        self.release = self.lock.release
        self._acquire = self.lock.acquire

    def take(self, held: list[bool]) -> bool:
        """Take the lock if it is free, and return whether it was.

        ``held``: an empty list, to which the result is appended even if a signal handler raises.
        """
        held += map(self._acquire, _AT_ONCE)
        if held[0]:
            self.owner = threading.get_ident()
        return held[0]

    def check(self) -> None:
        """Raise RequestError if this thread holds the lock and would wait for itself."""
        if self.owner == threading.get_ident():
            raise RequestError(WAITS_FOR_ITSELF)
