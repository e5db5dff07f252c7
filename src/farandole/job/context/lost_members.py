"""Ends waits for members of an elastic job whose loss only the driver has detected.

A suspended host, or a host whose agent was lost, keeps its connections to the other hosts open, so
the transports do not report the loss of its ranks.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from farandole.base.contracts import Observer, Waiting
from farandole.errors import HorovodInternalError
from farandole.job.config import Placement
from farandole.job.context.wiring import lost_text
from farandole.job.report import keys
from farandole.net.store.protocol import KeyValueStore

# Seconds for which a collective waits before the store is queried, and between two queries.
PATIENCE = 2.0


class LostMemberCheck(Observer):
    """Fails the collectives that wait in a membership that has lost a member."""

    def __init__(self, client: KeyValueStore, placement: Placement) -> None:
        self._client, self._placement = client, placement
        self._asked = 0.0

    def waiting(self, collectives: Sequence[Waiting]) -> str:
        now = time.monotonic()
        is_long = any(wait.seconds >= PATIENCE for wait in collectives)
        if not is_long or now < self._asked + PATIENCE:
            return ""
        self._asked = now
        number = self._placement.generation
        with contextlib.suppress(HorovodInternalError):  # without the store, the transport decides
            if self._client.try_get(keys.broken(number)) is not None:
                return lost_text(number)
        return ""
