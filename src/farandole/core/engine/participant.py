"""Objects that take part in a step's synchronization on an engine: distributed optimizers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol


class Participant(Protocol):
    """``ballot``: the name of the collective by which the ranks announce what they have. ``lock``:
    held from the announcement until it is settled. ``due``: gradients wait for that; ``backward``:
    the number of the backward pass that computed them. ``process_set_id``: all ranks settle
    process sets in this order. ``engine``: the present one of the process set.
    """

    backward: int

    @property
    def lock(self) -> threading.RLock: ...
    @property
    def ballot(self) -> str: ...
    @property
    def due(self) -> bool: ...
    @property
    def process_set_id(self) -> int: ...
    @property
    def engine(self) -> Any: ...

    def can_announce_none(self) -> bool:
        """Get ready to announce that there is nothing here. False if that would be wrong, or if
        another thread is busy with this participant.
        """

    def announce(
        self, on_done: Callable[[], None] | None = None, *, none_here: bool = False
    ) -> None:
        """Announce what this rank has, and return at once; ``on_done`` is called, by any thread,
        when all ranks have. ``none_here``: nothing was computed, and more may come.
        """

    def settle(self) -> None:
        """Wait for all announcements, and bring in what any rank has. Collective."""
