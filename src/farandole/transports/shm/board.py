"""The notice board in shared memory. Long messages are posted page by page."""

from __future__ import annotations

from farandole.transports.shm import futex
from farandole.transports.shm.segment import NOTICE, NOTICE_HEADER, NOTICES, POSTED, Segment

_ROOM = NOTICE - NOTICE_HEADER


class ShmBoard:
    """See ``contracts.Board``. A page is overwritten two rounds later, when everybody has surely read it: a rank posts
    page k+2 only after collecting page k+1, which its peers posted only after collecting page k."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._page = 1  # the page that is being posted or awaited
        self._rest: list[bytes] | None = None  # pages still to post; None: nothing posted in this round
        self._collected: list[bytes] = [b""] * segment.size
        self._heard = 0

    def post(self, message: bytes) -> None:
        pages = [message[i : i + _ROOM] for i in range(0, len(message), _ROOM)] or [b""]
        self._rest = pages
        self._pin()

    def started(self) -> bool:
        return any(self._segment.words[peer][POSTED // 8] >= self._page for peer in self._segment.others)

    def missing(self) -> list[int]:
        return [rank for rank in range(self._segment.size) if self._segment.words[rank][POSTED // 8] < self._page]

    def collect(self) -> list[bytes] | None:
        segment = self._segment
        while True:
            for peer in segment.others:
                if segment.words[peer][POSTED // 8] < self._page:
                    return None
            if self._rest is None:
                return None
            if not self._read():
                messages, self._collected = self._collected, [b""] * segment.size
                self._rest = None
                self._page += 1
                return messages
            self._page += 1
            self._pin()

    def wait(self, seconds: float, *, spin: bool) -> None:
        segment, page = self._segment, self._page
        flags = [segment.words[peer] for peer in segment.others]
        enough = any if self._rest is None else all  # before posting, one peer is news; after it, the last one is

        def news() -> bool:
            return segment.wakes != self._heard or enough([words[POSTED // 8] >= page for words in flags])

        segment.wait_until(news, seconds, spin=spin)
        self._heard = segment.wakes

    def wake(self) -> None:
        self._segment.wake_self()

    def verify(self) -> None:
        self._segment.check_alive()

    def _pin(self) -> None:
        assert self._rest is not None
        page = self._rest.pop(0) if self._rest else b""
        segment, me = self._segment, self._segment.rank
        start = NOTICES + (self._page % 2) * NOTICE
        words = segment.words[me]
        words[start // 8] = len(page)
        words[start // 8 + 1] = bool(self._rest)
        if page:
            first = start + NOTICE_HEADER
            segment.chars[me][first : first + len(page)] = page
        futex.publish_fence()
        words[POSTED // 8] = self._page
        segment.wake_others()

    def _read(self) -> bool:
        """Take in everybody's current page; True if anybody has more to come."""
        segment, more = self._segment, False
        start = NOTICES + (self._page % 2) * NOTICE
        first = start + NOTICE_HEADER
        for rank in range(segment.size):
            words = segment.words[rank]
            length = words[start // 8]
            if length:
                self._collected[rank] += bytes(segment.chars[rank][first : first + length])
            more = more or bool(words[start // 8 + 1])
        return more
