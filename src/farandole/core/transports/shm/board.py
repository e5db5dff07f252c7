"""The notice board in shared memory. Long messages are posted in pages."""

from __future__ import annotations

from farandole.core.transports.shm import futex
from farandole.core.transports.shm.segment import NOTICE, NOTICE_HEADER, NOTICES, POSTED, Segment

_ROOM = NOTICE - NOTICE_HEADER
_POSTED = POSTED // 8  # index in words


class ShmBoard:
    """See ``contracts.Board``. A page may be overwritten two rounds later, when all ranks have read
    it: a rank posts page k+2 only after it has collected page k+1, which its peers posted only
    after they had collected page k.
    """

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._page = 1  # the page being posted or awaited
        # pages left to post; None: nothing posted in this round
        self._rest: list[bytes] | None = None
        self._flags = [segment.words[peer] for peer in segment.others]
        self._views = list(zip(segment.words, segment.chars, strict=True))
        self._mine = self._views[segment.rank]
        self._collected: list[bytes] = [b""] * segment.size
        self._seen_wakes = 0

    def post(self, message: bytes) -> None:
        if len(message) <= _ROOM:
            self._rest = []
            self._post_page(message)
        else:
            self._rest = [message[i : i + _ROOM] for i in range(0, len(message), _ROOM)]
            self._post_page(self._rest.pop(0))

    def started(self) -> bool:
        return any(words[_POSTED] >= self._page for words in self._flags)

    def missing(self) -> list[int]:
        return [rank for rank, (words, _) in enumerate(self._views) if words[_POSTED] < self._page]

    def collect(self) -> list[bytes] | None:
        while True:
            for words in self._flags:
                if words[_POSTED] < self._page:
                    return None
            if self._rest is None:
                return None
            if not self._read():
                messages, self._collected = self._collected, [b""] * self._segment.size
                self._rest = None
                self._page += 1
                return messages
            self._page += 1
            self._post_page(self._rest.pop(0) if self._rest else b"")

    def wait(self, seconds: float, *, spin: bool) -> None:
        segment, page, flags = self._segment, self._page, self._flags
        # before posting, wait for any peer; afterwards, for all peers
        enough = any if self._rest is None else all

        def news() -> bool:
            return segment.wakes != self._seen_wakes or enough(
                [words[_POSTED] >= page for words in flags]
            )

        segment.wait_until(news, seconds, spin=spin)
        self._seen_wakes = segment.wakes

    def wake(self) -> None:
        self._segment.wake_self()

    def verify(self) -> None:
        self._segment.check_alive()

    def _post_page(self, page: bytes) -> None:
        start = NOTICES + (self._page & 1) * NOTICE
        (words, chars), length = self._mine, len(page)
        words[start // 8] = length
        words[start // 8 + 1] = bool(self._rest)
        if length:
            first = start + NOTICE_HEADER
            chars[first : first + length] = page
        futex.publish_fence()
        words[_POSTED] = self._page
        self._segment.wake_others()

    def _read(self) -> bool:
        """Read all ranks' current pages. Return True if any rank has more pages."""
        collected, more = self._collected, 0
        start = NOTICES + (self._page & 1) * NOTICE
        at, first = start // 8, start + NOTICE_HEADER
        for rank, (words, chars) in enumerate(self._views):
            length = words[at]
            if length:
                collected[rank] += chars[first : first + length].tobytes()
            more |= words[at + 1]
        return bool(more)
