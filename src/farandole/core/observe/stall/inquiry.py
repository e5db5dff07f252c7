"""What does every rank do now? Asked and answered over the job's store.

A thread of every rank waits for the question, so that also a rank answers whose main thread is busy
with something else. A rank that does not answer is stopped, or holds Python's lock; the kernel
knows more, if it is on this host.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, Protocol

from farandole.base import threads
from farandole.base.contracts import Waiting
from farandole.core.observe.stall import process
from farandole.errors import HorovodInternalError, PeerLostError, RendezvousError

if TYPE_CHECKING:
    from farandole.core.observe.stall.stacks import Frame

_PATIENCE = 30.0  # seconds that one request to the store waits for a question
_PAUSE = 1.0


class Store(Protocol):
    """The methods needed of ``farandole.net.store.StoreClient``."""

    def set(self, key: str, value: bytes) -> None: ...
    def get(self, key: str, timeout: float) -> bytes: ...
    def try_get(self, key: str) -> bytes | None: ...
    def close(self) -> None: ...


class Answer(NamedTuple):
    """A rank's activity. ``silent``: why it does not answer, empty if it does. ``waits``: names of
    collectives that others stay away from; ``stuck``: of one that has begun and does not go on, for
    it waits for the ranks ``awaited``. ``seconds``: for how long. ``stack``: the user's frames of
    the main thread, the innermost last.
    """

    silent: str = ""
    waits: tuple[str, ...] = ()
    stuck: tuple[str, ...] = ()
    awaited: tuple[int, ...] = ()
    stack: tuple[Frame, ...] = ()
    seconds: float = 0.0


class Inquiry:
    """One rank's side, from ``init`` to ``shutdown``. ``waiting`` is asked what waits here, in any
    thread.

    ``client`` is used at once, to say which process this is; ``connect`` makes a connection of our
    own ``delay`` seconds later, so that a job that lasts no longer is not bothered.
    """

    def __init__(
        self,
        client: Store,
        connect: Callable[[], Store],
        scope: str,
        rank: int,
        size: int,
        delay: float,
        waiting: Callable[[], Sequence[Waiting]],
    ) -> None:
        self.rank, self.size = rank, size
        self._connect, self._scope, self._delay, self._waiting = connect, scope, delay, waiting
        self._turn = 0  # questions answered
        self._client: Store | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()
        client.set(self._key("process", rank), process.here())
        self._thread = threading.Thread(
            target=self._answer_all, name="farandole-stall", daemon=True
        )
        threads.start(self._thread)

    def ask(self, seconds: float) -> dict[int, Answer]:
        """Every rank's answer, within so many seconds; empty if the store is gone."""
        turn, deadline = self._turn, monotonic() + seconds
        answers = {}
        try:
            store = self._store()
            store.set(self._key("question", turn), b"?")
            for rank in range(self.size):
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

    def _store(self) -> Store:
        if self._client is None:
            # without the lock: a store that cannot be reached must not hold up ``close``
            new = self._connect()
            with self._lock:
                if self._client is None and not self._over.is_set():
                    self._client = new
            if self._client is not new:
                new.close()
        if self._client is None:
            raise PeerLostError("the stall check has been closed")
        return self._client

    def _await_answer(self, store: Store, turn: int, rank: int, seconds: float) -> Answer:
        try:
            found = json.loads(store.get(self._key("answer", turn, rank), seconds))
        except RendezvousError:
            return Answer(silent=process.why_silent(store.try_get(self._key("process", rank))))
        waits, stuck, awaited, stack, waited = found
        from farandole.core.observe.stall.stacks import Frame  # here: nobody is asked in most jobs

        frames = tuple(Frame(*frame) for frame in stack)
        return Answer("", tuple(waits), tuple(stuck), tuple(awaited), frames, waited)

    def _answer_all(self) -> None:
        # the driver has gone, or we were closed
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
                store.set(self._key("answer", self._turn, self.rank), self._answer())
                self._turn += 1

    def _answer(self) -> bytes:
        from farandole.core.observe.stall import stacks

        waiting = [wait for wait in self._waiting() if wait.missing]
        waits = [wait.name for wait in waiting if not wait.inside]
        stuck = [wait.name for wait in waiting if wait.inside]
        awaited = sorted({rank for wait in waiting if wait.inside for rank in wait.missing})
        seconds = max((wait.seconds for wait in waiting), default=0.0)
        return json.dumps([waits, stuck, awaited, stacks.users(), seconds]).encode()
