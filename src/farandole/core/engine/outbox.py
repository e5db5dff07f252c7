"""The requests of this rank that the ranks have not agreed on yet."""

from __future__ import annotations

from collections import deque

from farandole.core.engine.handle import Item


class Outbox:
    """``queue``: submitted, and not posted. ``batch``: posted in the open round, if ``posted``.
    ``names``: in use, also by collectives that wait from earlier rounds. ``objection``: the message
    to post when there is no request.

    The engine's mutex guards the queue and the names. The thread that drives has the rest.
    """

    def __init__(self) -> None:
        self.queue: deque[Item] = deque()
        self.names: set[str] = set()
        self.batch: list[Item] = []
        self.posted = False
        self.objection = b""

    def clear(self) -> None:
        """Forget all requests: they have failed."""
        self.batch.clear()
        self.queue.clear()
        self.names.clear()
        self.posted = False
