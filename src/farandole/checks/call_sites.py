"""Recording of the program's lines that call unnamed collectives, while ranks are compared
(``agreement``).
"""

from __future__ import annotations

import os
import sys
from collections import deque
from functools import lru_cache
from itertools import combinations
from types import CodeType
from typing import TYPE_CHECKING

from farandole.base.package import FOLDER

if TYPE_CHECKING:
    from farandole.checks.call_order import CallReport

_KEPT = 256  # calls
_OTHERS = 32  # places to compare for mutual exclusion
_OURS = FOLDER + os.sep


class CallRecorder:
    """Records the latest calls of this rank over one engine: numbers and places."""

    def __init__(self) -> None:
        self.reported = False  # whether swapped calls have been reported
        self._kept: deque[tuple[int, CodeType, int]] = deque(maxlen=_KEPT)

    def add(self, number: int) -> None:
        """Record that the program makes call ``number``."""
        frame = sys._getframe(3)  # the caller of the function that adds an entry
        while frame.f_code.co_filename.startswith(_OURS):
            if frame.f_back is None:
                return
            frame = frame.f_back
        self._kept.append((number, frame.f_code, frame.f_lasti))

    def restart(self) -> None:
        """Forget the calls: their numbers restart."""
        self._kept.clear()

    def last(self) -> int:
        return self._kept[-1][0] if self._kept else 0

    def digest(self, after: int) -> int:
        """Return a digest of the order of the calls after number ``after``."""
        # Imported at the first comparison, not at every start.
        from farandole.base.digests import digest_of_text

        return digest_of_text(
            "\n".join(f"{number} {_place(code, at)}" for number, code, at in self._since(after))
        )

    def report(self, after: int) -> CallReport:
        """Return the report of the calls after number ``after``."""
        from farandole.checks.branches import alternatives
        from farandole.checks.call_order import CallReport

        calls = self._since(after)
        sites = list(dict.fromkeys((code, at) for _, code, at in calls))
        places = list(dict.fromkeys(_place(code, at) for code, at in sites))
        index = {place: number for number, place in enumerate(places)}
        exclusive = [
            [index[_place(*one)], index[_place(*other)]]
            for one, other in combinations(sites[:_OTHERS], 2)
            if one[0] is other[0] and alternatives(one[0], one[1], other[1])
        ]
        return CallReport(
            places,
            {number: index[_place(code, at)] for number, code, at in calls},
            exclusive,
            self.last(),
        )

    def _since(self, after: int) -> list[tuple[int, CodeType, int]]:
        return [call for call in list(self._kept) if call[0] > after]


@lru_cache(maxsize=1024)
def _place(code: CodeType, at: int) -> str:
    """Return ``file:line`` of the instruction at ``at``."""
    line = next((line for begin, end, line in code.co_lines() if begin <= at < end), None)
    return f"{code.co_filename}:{line or code.co_firstlineno}"
