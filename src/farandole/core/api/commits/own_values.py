"""Each rank's own values in an elastic job: copied to other ranks at each commit, and handed over
when ranks are lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from farandole.core.api.commits.chunks import LostRank
from farandole.core.api.commits.copies import CopyReceiver, CopySender, Shelf
from farandole.core.api.commits.placement import Holding, heirs_of, holders_of, lost_among
from farandole.core.api.objects import allgather_object
from farandole.errors import HorovodInternalError
from farandole.job import context

_HOLDINGS, _VALUES, _FLUSHED = "elastic.copies", "elastic.lost_ranks", "elastic.flushed"


class OwnValues:
    """The copies of one state's own values, on ``copies`` other ranks."""

    def __init__(self, copies: int) -> None:
        self._copies = copies
        self._shelf = Shelf()
        self._sender: CopySender | None = None
        self._is_new = True
        self._absorbed: frozenset[int] = frozenset()  # lost processes merged in the last commit
        self._pending: frozenset[int] = frozenset()  # lost processes merged since the last commit

    def keep(self, state: Any, number: int) -> None:
        """Start to copy the commit ``number`` just saved by ``state``. Waits until the copies of
        the previous commit are complete.
        """
        self._absorbed |= self._pending
        self._pending, self._is_new = frozenset(), False
        if self._sender is not None:
            saved = state.saved_own_values()
            self._sender.send(number, self._absorbed, saved)

    def hand_over(self, state: Any) -> None:
        """Hand over the values of lost ranks to the present ranks, and create the channel for
        copies. Collective, at the start of each membership.
        """
        self.close()
        self._pending = frozenset()
        process = context.connection().member
        held = {each: (copy.number, copy.absorbed) for each, copy in self._shelf.newest().items()}
        place = context.placement()
        mine = Holding(process, place.hostname, self._is_new, self._absorbed, held)
        ranks: list[Holding] = allgather_object(mine, name=_HOLDINGS)
        self._shelf.drop(frozenset().union(*(each.absorbed for each in ranks)))
        lost = lost_among(ranks)
        if lost:
            self._take_over(state, self._exchange(lost, place.rank), ranks, place.rank)
        self._connect([each.process for each in ranks], [each.host for each in ranks], place.rank)

    def flush(self) -> None:
        """Wait until all ranks have the copies of the last commit, before a planned change of
        ranks. Collective, unless ranks commit independently.
        """
        if self._sender is not None:
            self._sender.flush()
            if context.commits_alone():
                return
            # The loss of a rank now breaks the membership, which ends anyway.
            with contextlib.suppress(HorovodInternalError):
                allgather_object(None, name=_FLUSHED)

    def close(self) -> None:
        """Stop copying, because the membership has ended."""
        if self._sender is not None:
            self._sender.close()
            self._sender = None

    def _exchange(self, lost: Mapping[int, int], rank: int) -> dict[int, LostRank]:
        """Return the values of the lost processes, the same on all ranks."""
        newest, mine = self._shelf.newest(), {}
        for process, holder in lost.items():
            if holder == rank:
                copy = newest[process]
                mine[process] = LostRank(process, copy.rank, copy.number, copy.values)
        found: dict[int, LostRank] = {}
        for each in allgather_object(mine, name=_VALUES):
            found |= each
        return {process: found[process] for process in lost}

    def _take_over(
        self, state: Any, lost: Mapping[int, LostRank], ranks: list[Holding], rank: int
    ) -> None:
        state.lost_ranks = list(lost.values())
        merges = state.merges_of_own_values()
        for process, heir in heirs_of(list(lost), ranks).items():
            values = lost[process].values
            is_taken = ranks[heir].is_new or any(merges.values())
            if heir == rank and is_taken:
                _merge(state, values, merges, first=self._is_new and not self._pending)
                self._pending |= {process}

    def _connect(self, processes: list[int], hosts: list[str], rank: int) -> None:
        messages = None if len(hosts) == 1 else context.messages_among(range(len(hosts)))
        if messages is None:
            return
        holders = [holders_of(each, hosts, self._copies) for each in range(len(hosts))]
        for ward, theirs in enumerate(holders):
            if rank in theirs:
                CopyReceiver(messages, ward, processes[ward], self._shelf)
        self._sender = CopySender(messages, rank, holders[rank])


def _merge(
    state: Any,
    values: Mapping[str, Any],
    merges: Mapping[str, Callable[[Any, Any], Any] | None],
    first: bool,
) -> None:
    """Let ``state`` take over the ``values`` of a lost rank. ``first``: the values become the own
    values of a new rank. Otherwise they are merged, and values without a merge function are
    dropped.
    """
    for name, merge in merges.items():
        if name not in values:
            continue
        if first:
            setattr(state, name, values[name])
        elif merge is not None:
            setattr(state, name, merge(getattr(state, name), values[name]))
