"""The requests of this rank that the ranks have not agreed on yet."""

from __future__ import annotations

from collections import deque

from farandole.core.engine.handle import Item


class Outbox:
    """Requests on their way into a round.

    ``queue``: submitted, but not posted. ``batch``: posted in the current round, if ``posted``.
    ``names``: names in use, including collectives waiting from earlier rounds. ``objection``: the
    message to post if there is no request.

    The engine's mutex guards the queue and the names; the driving thread owns the rest.
    """

    def __init__(self) -> None:
        self.queue: deque[Item] = deque()
        self.names: set[str] = set()
        self.batch: list[Item] = []
        self.posted = False
        self.objection = b""

    def clear(self) -> None:
        """Remove all requests, which have failed."""
        self.batch.clear()
        self.queue.clear()
        self.names.clear()
        self.posted = False
