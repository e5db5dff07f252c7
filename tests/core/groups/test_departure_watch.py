"""Departed members of a group that is being formed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from farandole.core.groups.departure_watch import DepartureWatch
from farandole.errors import HorovodInternalError, PeerLostError


class Messages:
    """Rank 2 of 0 to 3 has left; rank 3 was given up, as if by its own mistake."""

    def __init__(self) -> None:
        self.failed, self.asked, self.cancelled = False, list[int](), list[int]()

    def receive(self, src: int, *_: Any, **named: Any) -> Any:
        self.asked.append(src)
        errors = {2: PeerLostError("rank 2 left", 2, left=True), 3: HorovodInternalError("other")}
        return SimpleNamespace(src=src, done=src in errors, error=errors.get(src))

    def cancel(self, note: Any) -> None:
        self.cancelled.append(note.src)


def test_departed_ranks_are_places_in_the_new_group() -> None:
    messages = Messages()
    group: Any = SimpleNamespace(rank=0, messages=messages)
    watch = DepartureWatch(group, [0, 1, 2, 3])
    watch.close()
    assert not messages.asked  # nothing happens until a thread polls
    assert watch.departed() == watch.departed() == [2]
    assert DepartureWatch(group, [3, 2, 0]).departed() == [1]
    messages.failed = True  # all of them: each may come to the next group
    assert watch.departed() == []
    watch.close()
    assert messages.cancelled == [1]
