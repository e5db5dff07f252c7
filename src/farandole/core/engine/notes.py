"""Notes attached to this rank's messages: information that needs no agreement."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from farandole.base.types import Sizes
from farandole.core.engine import wire
from farandole.core.engine.handle import Item
from farandole.core.engine.subscribers import Subscribers


class Notes:
    """The notes of one engine. ``attached``: the next message has a note. ``mutex``: the
    engine's.
    """

    def __init__(self, observers: Subscribers, mutex: threading.Lock) -> None:
        self.attached = bool(observers.settled)
        self._observers = observers
        self._mutex = mutex
        self._proposed: Sizes | None = None  # not sent yet

    def propose(self, sizes: Sizes) -> None:
        """Send ``sizes`` with the next message."""
        with self._mutex:
            self._proposed = sizes
            self.attached = True

    def next(self, batch: Sequence[Item]) -> wire.Note:
        """Return the note for a message that requests ``batch``."""
        with self._mutex:
            sizes = self._proposed
            self._proposed = None
            self.attached = bool(self._observers.settled)
        tracers = self._observers.settled
        return wire.Note(
            sizes, [item.since + tracers[0].clock for item in batch] if tracers else []
        )
