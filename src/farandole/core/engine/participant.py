"""Participants in an engine's synchronization at the end of a step: distributed optimizers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol


class Participant(Protocol):
    """A participant in the synchronization.

    - ``ballot_name``: The name of the collective in which ranks announce their gradients.
    - ``lock``: Held from the announcement until it is settled.
    - ``due``: Whether gradients wait for synchronization.
    - ``backward``: The number of the backward pass that computed them.
    - ``process_set_id``: All ranks settle process sets in this order.
    - ``engine``: The current engine of the process set.
    """

    backward: int

    @property
    def lock(self) -> threading.RLock: ...
    @property
    def ballot_name(self) -> str: ...
    @property
    def due(self) -> bool: ...
    @property
    def process_set_id(self) -> int: ...
    @property
    def engine(self) -> Any: ...

    def can_announce_none(self) -> bool:
        """Prepare to announce that this rank has no gradients. Return False if it has some, or if
        another thread is using this participant.
        """

    def announce(
        self, on_done: Callable[[], None] | None = None, *, none_here: bool = False
    ) -> None:
        """Announce this rank's gradients and return immediately.

        ``on_done`` is called, on any thread, when all ranks have announced. ``none_here``: this
        rank has computed none, but may still do so.
        """

    def settle(self) -> None:
        """Wait for all announcements and reduce the gradients of all ranks. Collective."""
