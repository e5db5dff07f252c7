"""Queries for the activity of all ranks, through the job's store.

A thread of every rank waits for the question, and answers even while the main thread is busy. A
rank that does not answer is stopped, or holds Python's lock. If it is on this host, the kernel
provides its state.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Protocol

from farandole.base import threads
from farandole.base.contracts import Waiting
from farandole.core.observe.stall import process
from farandole.core.observe.stall.stack_query import Answer, decode_answer, encode_own_answer
from farandole.errors import HorovodInternalError, PeerLostError, RendezvousError

_PATIENCE = 30.0  # seconds for which one request to the store waits for a question
_PAUSE = 1.0


class QueryStore(Protocol):
    """The methods of ``farandole.net.store.StoreClient`` that queries use."""

    def set(self, key: str, value: bytes) -> None: ...
    def get(self, key: str, timeout: float) -> bytes: ...
    def try_get(self, key: str) -> bytes | None: ...
    def close(self) -> None: ...


class StoreQuery:
    """One rank's side of the queries, from ``init`` to ``shutdown``.

    ``waiting`` returns the collectives that wait on this rank, on any thread. ``client`` is used
    immediately, to publish this process. ``connect`` opens a dedicated connection ``delay`` seconds
    later, so that short jobs do not need it.
    """

    def __init__(
        self,
        client: QueryStore,
        connect: Callable[[], QueryStore],
        scope: str,
        rank: int,
        size: int,
        delay: float,
        waiting: Callable[[], Sequence[Waiting]],
    ) -> None:
        self.ranks: Sequence[int] = range(size)
        self._rank = rank
        self._connect = connect
        self._scope = scope
        self._delay = delay
        self._waiting = waiting
        self._turn = 0  # answered questions
        self._client: QueryStore | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()
        client.set(self._key("process", rank), process.here())
        self._thread = threading.Thread(
            target=self._answer_all, name="farandole-stall", daemon=True
        )
        threads.start(self._thread)

    def ask(self, ranks: Sequence[int], seconds: float) -> dict[int, Answer]:
        """Query ``ranks`` (see ``StackQuery``). Empty if the store is gone."""
        turn, deadline = self._turn, monotonic() + seconds
        answers = {}
        try:
            store = self._store()
            store.set(self._key("question", turn), b"?")
            for rank in ranks:
                answers[rank] = self._await_answer(
                    store, turn, rank, max(0.0, deadline - monotonic())
                )
        except (HorovodInternalError, OSError):
            return {}
        return answers

    def close(self) -> None:
        self._over.set()
        with self._lock:
            if self._client is not None:
                self._client.close()
        self._thread.join(1.0)

    def _key(self, *parts: object) -> str:
        return "/".join(("stall", self._scope, *map(str, parts)))

    def _store(self) -> QueryStore:
        if self._client is None:
            # without the lock: an unreachable store must not delay ``close``
            new = self._connect()
            with self._lock:
                if self._client is None and not self._over.is_set():
                    self._client = new
            if self._client is not new:
                new.close()
        if self._client is None:
            raise PeerLostError("the stall check has been closed")
        return self._client

    def _await_answer(self, store: QueryStore, turn: int, rank: int, seconds: float) -> Answer:
        try:
            return decode_answer(store.get(self._key("answer", turn, rank), seconds))
        except RendezvousError:
            return Answer(silent=process.why_silent(store.try_get(self._key("process", rank))))

    def _answer_all(self) -> None:
        # the driver is gone, or this query was closed
        with contextlib.suppress(HorovodInternalError, OSError):
            if self._over.wait(self._delay):
                return
            store = self._store()
            while not self._over.is_set():
                try:
                    store.get(self._key("question", self._turn), _PATIENCE)
                except RendezvousError:
                    self._over.wait(_PAUSE)
                    continue
                store.set(
                    self._key("answer", self._turn, self._rank), encode_own_answer(self._waiting())
                )
                self._turn += 1
