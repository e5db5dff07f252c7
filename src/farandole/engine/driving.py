"""Which thread runs the rounds: it holds a lock, which nobody loses.

A signal's handler may raise in the main thread behind each call, and at the beginning of each function of Python. So
one call both takes the lock and notes it, and who took it calls ``release`` itself, first thing.
"""

from __future__ import annotations

import threading

_AT_ONCE = (False,)  # how a lock is acquired without waiting


class Driving:
    """``lock`` waits in a ``with`` statement, which loses nothing either."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.release = self.lock.release

    def take(self, held: list[bool]) -> bool:
        """Take the lock if it is free. ``held``, an empty list, has True in it then, also if this raises."""
        held.extend(map(self.lock.acquire, _AT_ONCE))
        return held[0]
