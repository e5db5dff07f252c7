"""Who of a group to be made has left."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from farandole.core.groups.leavers import Leavers
from farandole.errors import HorovodInternalError, PeerLostError


class Messages:
    """Rank 2 of 0 to 3 has left; 3 was given up, as if by its own mistake."""

    def __init__(self) -> None:
        self.failed, self.asked, self.cancelled = False, list[int](), list[int]()

    def receive(self, src: int, *_: Any) -> Any:
        self.asked.append(src)
        errors = {2: PeerLostError("rank 2 left", 2, left=True), 3: HorovodInternalError("other")}
        return SimpleNamespace(src=src, done=src in errors, error=errors.get(src))

    def cancel(self, note: Any) -> None:
        self.cancelled.append(note.src)


def test_they_are_told_by_their_places_in_the_new_group() -> None:
    messages = Messages()
    group: Any = SimpleNamespace(rank=0, messages=messages)
    leavers = Leavers(group, [0, 1, 2, 3])
    leavers.close()
    assert not messages.asked  # nothing is done until somebody looks
    assert leavers.look() == leavers.look() == [2]
    assert Leavers(group, [3, 2, 0]).look() == [1]
    messages.failed = True  # all of them: each may come to the next group
    assert leavers.look() == []
    leavers.close()
    assert messages.cancelled == [1]
