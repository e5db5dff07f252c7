"""The notice board in shared memory. Long messages are posted page by page."""

from __future__ import annotations

from farandole.transports.shm import futex
from farandole.transports.shm.arena import NOTICE, NOTICE_HEADER, NOTICES, POSTED, Arena

_ROOM = NOTICE - NOTICE_HEADER


class ShmBoard:
    """See ``contracts.Board``. A page is overwritten two rounds later, when everybody has surely read it: a rank posts
    page k+2 only after collecting page k+1, which its peers posted only after collecting page k."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._page = 1  # the page that is being posted or awaited
        self._rest: list[bytes] | None = None  # pages still to post; None: nothing posted in this round
        self._collected: list[bytes] = [b""] * arena.size
        self._heard = 0

    def post(self, message: bytes) -> None:
        pages = [message[i : i + _ROOM] for i in range(0, len(message), _ROOM)] or [b""]
        self._rest = pages
        self._pin()

    def started(self) -> bool:
        return any(self._arena.words[peer][POSTED // 8] >= self._page for peer in self._arena.others)

    def missing(self) -> list[int]:
        return [rank for rank in range(self._arena.size) if self._arena.words[rank][POSTED // 8] < self._page]

    def collect(self) -> list[bytes] | None:
        arena = self._arena
        while True:
            for peer in arena.others:
                if arena.words[peer][POSTED // 8] < self._page:
                    return None
            if self._rest is None:
                return None
            if not self._read():
                messages, self._collected = self._collected, [b""] * arena.size
                self._rest = None
                self._page += 1
                return messages
            self._page += 1
            self._pin()

    def wait(self, seconds: float, *, spin: bool) -> None:
        arena, page = self._arena, self._page
        flags = [arena.words[peer] for peer in arena.others]
        enough = any if self._rest is None else all  # before posting, one peer is news; after it, the last one is

        def news() -> bool:
            return arena.rings != self._heard or enough([words[POSTED // 8] >= page for words in flags])

        arena.wait_until(news, seconds, spin=spin)
        self._heard = arena.rings

    def ring(self) -> None:
        self._arena.ring_self()

    def verify(self) -> None:
        self._arena.check_alive()

    def _pin(self) -> None:
        assert self._rest is not None
        page = self._rest.pop(0) if self._rest else b""
        arena, me = self._arena, self._arena.rank
        start = NOTICES + (self._page % 2) * NOTICE
        words = arena.words[me]
        words[start // 8] = len(page)
        words[start // 8 + 1] = bool(self._rest)
        if page:
            first = start + NOTICE_HEADER
            arena.chars[me][first : first + len(page)] = page
        futex.publish_fence()
        words[POSTED // 8] = self._page
        arena.ring_others()

    def _read(self) -> bool:
        """Take in everybody's current page; True if anybody has more to come."""
        arena, more = self._arena, False
        start = NOTICES + (self._page % 2) * NOTICE
        first = start + NOTICE_HEADER
        for rank in range(arena.size):
            words = arena.words[rank]
            length = words[start // 8]
            if length:
                self._collected[rank] += bytes(arena.chars[rank][first : first + length])
            more = more or bool(words[start // 8 + 1])
        return more
