"""Detects departed members of a new group, so that its creation does not wait for them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from farandole.core.groups.group import CollectiveGroup
from farandole.core.groups.inbox import Transfer
from farandole.errors import PeerLostError

_TAG = -(1 << 41)  # never sent; programs use different tags


class DepartureWatch:
    """Watch for departed members of a new group.

    ``ranks``: the members of the new group, as numbered in ``group``. Nothing is sent before the
    first call of ``departed``.
    """

    def __init__(self, group: CollectiveGroup, ranks: Sequence[int]) -> None:
        self._group = group
        self._ranks = ranks
        self._notes: dict[int, Transfer] = {}

    def departed(self) -> list[int]:
        """Return the indexes in ``ranks`` of members that have left ``group`` or died. A departure
        is detected shortly after the first call.
        """
        group = self._group
        if not self._notes:
            for place, rank in enumerate(self._ranks):
                if rank != group.rank:
                    self._notes[place] = group.messages.receive(
                        rank, _TAG, np.empty(1, np.uint8), dtype=0, timeout=math.inf
                    )
        # The group failed for a different reason, reported to all members; they may still join the
        # new group.
        if group.messages.failed:
            return []
        return [place for place, note in self._notes.items() if self._has_left(place, note)]

    def close(self) -> None:
        for note in self._notes.values():
            if not note.done:
                self._group.messages.cancel(note)

    def _has_left(self, place: int, note: Transfer) -> bool:
        return (
            note.done
            and isinstance(note.error, PeerLostError)
            and note.error.rank == self._ranks[place]
        )
