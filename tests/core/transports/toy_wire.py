"""A wire in one file, as another distribution may bring it: queues between threads. It meets the
contracts in ``farandole.base.contracts`` and nothing else.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from farandole.base.contracts import End, Report
from farandole.errors import PeerLostError

_LOOK = 0.05  # seconds between two looks whether the wire was aborted


class _Shared:
    """The common state of all ends of a wire."""

    def __init__(self, size: int) -> None:
        self.changed = threading.Condition()
        self.queues: dict[tuple[int, int], queue.Queue[Any]] = {
            pair: queue.Queue() for pair in itertools.product(range(size), repeat=2)
        }
        self.posts: dict[int, dict[int, bytes]] = defaultdict(dict)  # by round, by rank
        self.why = ""

    def check(self) -> None:
        if self.why:
            raise PeerLostError(self.why, -1)


_wires: dict[str, _Shared] = {}  # by scope


def wire(end: End) -> ToyLink:
    """See ``contracts.Wire``."""
    return ToyLink(_wires.setdefault(end.scope, _Shared(end.size)), end)


class ToyBoard:
    """See ``contracts.Board``."""

    def __init__(self, shared: _Shared, end: End) -> None:
        self._shared = shared
        self._end = end
        self._round = 0
        self._woken = False

    def post(self, message: bytes) -> None:
        with self._shared.changed:
            self._shared.posts[self._round][self._end.rank] = message
            self._shared.changed.notify_all()

    def started(self) -> bool:
        return bool(self._shared.posts[self._round].keys() - {self._end.rank})

    def missing(self) -> list[int]:
        return [
            each for each in range(self._end.size) if each not in self._shared.posts[self._round]
        ]

    def collect(self) -> list[bytes] | None:
        if self.missing():
            return None
        messages = self._shared.posts[self._round]
        self._round += 1
        return [messages[rank] for rank in range(self._end.size)]

    def wait(self, seconds: float, *, spin: bool) -> None:
        posted = self._end.rank in self._shared.posts[self._round]

        def is_news() -> bool:
            news = not self.missing() if posted else self.started()
            return news or self._woken or bool(self._shared.why)

        with self._shared.changed:
            self._shared.changed.wait_for(is_news, seconds)
            self._woken = False
        self._shared.check()

    def wake(self) -> None:
        with self._shared.changed:
            self._woken = True
            self._shared.changed.notify_all()

    def verify(self) -> None:
        self._shared.check()


class ToyLink:
    """See ``contracts.Link``. Sends never wait, because data is copied."""

    ahead = 1 << 20

    def __init__(self, shared: _Shared, end: End) -> None:
        self.rank = end.rank
        self.size = end.size
        self.board = ToyBoard(shared, end)
        self._shared = shared
        self._end = end
        self._splits = 0

    def sendrecv(self, send: Any, dst: int, recv: Any, src: int) -> None:
        if send is not None and len(send):
            self._shared.queues[self.rank, dst].put(send.copy())
        if recv is not None and len(recv):
            recv[:] = self._receive(self._shared.queues[src, self.rank])

    def _receive(self, inbox: queue.Queue[Any]) -> Any:
        while True:
            try:
                return inbox.get(timeout=_LOOK)
            except queue.Empty:
                self._shared.check()

    def split(self, ranks: Sequence[int]) -> ToyLink | None:
        self._splits += 1
        if self.rank not in ranks:
            return None
        scope = f"{self._end.scope}/{self._splits}:{list(ranks)}"
        return wire(self._end._replace(rank=ranks.index(self.rank), size=len(ranks), scope=scope))

    def report_waits(self, report: Report) -> None: ...

    def abort(self, why: str) -> None:
        with self._shared.changed:
            self._shared.why = self._shared.why or why
            self._shared.changed.notify_all()

    def close(self) -> None: ...
