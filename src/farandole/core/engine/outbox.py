"""This rank's requests without agreement so far."""

from __future__ import annotations

from collections import deque

from farandole.core.engine.handle import Item


class Outbox:
    """Requests that wait for agreement.

    - ``queue``: Submitted, unposted requests.
    - ``batch``: Requests posted in the current round, if ``posted``.
    - ``names``: Names in use, including collectives waiting from earlier rounds.
    - ``objection``: The message to post if there is no request.

    The engine's mutex guards the queue and the names; the driving thread owns the rest.
    """

    def __init__(self) -> None:
        self.queue: deque[Item] = deque()
        self.names: set[str] = set()
        self.batch: list[Item] = []
        self.posted = False
        self.objection = b""

    def clear(self) -> None:
        """Remove all requests after a failure."""
        self.batch.clear()
        self.queue.clear()
        self.names.clear()
        self.posted = False
