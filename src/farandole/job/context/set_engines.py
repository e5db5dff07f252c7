"""Sets of ranks that run collectives among themselves, and ranks that send each other messages.

A set has an engine of its own, over a split of the wire that joins all ranks, so sets do not wait
for each other. Sets are made and removed by all ranks together, in the same order; ids are small
numbers, used again after removal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from farandole.base.contracts import Streaming, Transport
from farandole.base.types import Buffer, DType, Kind, ReduceOp, Request
from farandole.core.engine import Engine, Entry
from farandole.errors import MismatchError

if TYPE_CHECKING:
    from farandole.core.groups.messages import Messages

EngineOf = Callable[[Transport, tuple[int, ...], int], Engine]
_GRACE = 10.0  # seconds in which messages that are still to be sent go on their way at the end


class SetEngines:
    """The registered sets of one job, from ``init`` to ``shutdown``. Id 0 is all ranks."""

    def __init__(self, whole: Engine, engine_of: EngineOf) -> None:
        """``engine_of(transport, ranks, id)`` makes the engine of a set."""
        self._engine_of = engine_of
        self._ranks: dict[int, tuple[int, ...]] = {0: tuple(range(whole.size))}
        self._engines: dict[int, Engine] = {0: whole}
        self._changes = 0
        self._unique_ids = {0: 0}
        # None: among others
        self._messages: dict[tuple[int, ...], tuple[Messages, Transport] | None] = {}

    def engine(self, number: int) -> Engine | None:
        """The set's engine; None on a rank outside it."""
        return self._engines.get(number)

    def engines(self) -> list[Engine]:
        """The engines of all sets that this rank is in."""
        return list(self._engines.values())

    def ranks(self, number: int) -> tuple[int, ...] | None:
        """The set's global ranks, sorted; None if there is no such set."""
        return self._ranks.get(number)

    def unique_id(self, number: int) -> int:
        """Return the number of additions and removals before this set was added: unlike ``number``,
        it is never used again.
        """
        return self._unique_ids[number]

    def all(self) -> dict[int, list[int]]:
        return {number: list(ranks) for number, ranks in sorted(self._ranks.items())}

    def add(self, ranks: Sequence[int]) -> int:
        """Register a set on all ranks; its id. Raises ValueError for ranks that cannot make a
        set.
        """
        members = tuple(sorted(ranks))
        size = len(self._ranks[0])
        if (
            not members
            or len(set(members)) < len(members)
            or not 0 <= members[0] <= members[-1] < size
        ):
            raise ValueError(
                f"ProcessSet({list(ranks)}): a process set needs at least one rank, each once, from"
                f" 0 to {size - 1}"
            )
        if members in self._ranks.values():
            raise ValueError(f"Attempted to add a duplicate process set: {list(members)}")
        self._meet("add", members)
        transport = self._engines[0].transport.split(members)
        number = next(
            number for number in range(1, len(self._ranks) + 1) if number not in self._ranks
        )
        self._ranks[number], self._unique_ids[number] = members, self._changes
        if transport is not None:
            self._engines[number] = self._engine_of(transport, members, number)
        return number

    def add_each(self, ranks: Sequence[int]) -> int:
        """The same where each rank names a set of its own, that it is in; the id of this rank's."""
        size = len(self._ranks[0])
        named = self._of_all(np.isin(np.arange(size), ranks))
        sets = dict.fromkeys(tuple(np.flatnonzero(row).tolist()) for row in named)
        numbers = {members: self.add(members) for members in sets}
        return numbers[tuple(sorted(ranks))]

    def remove(self, number: int) -> bool:
        """Take a set back on all ranks; False for all ranks' set and for one that is not
        registered.
        """
        if number == 0 or number not in self._ranks:
            return False
        self._meet("remove", self._ranks[number])
        del self._ranks[number]
        engine = self._engines.pop(number, None)
        if engine is not None:
            engine.shutdown()
        return True

    def remove_each(self, number: int) -> bool:
        """The same where each rank names a set of its own."""
        known = sorted(self._ranks)
        named = self._of_all(np.array([each == number for each in known])).any(axis=0)
        removed = [self.remove(each) for each, wanted in zip(known, named, strict=True) if wanted]
        return all(removed)

    def messages(self, ranks: Sequence[int]) -> Messages | None:
        """What sends messages among ``ranks``, until ``shutdown``; each is known there by its place
        among them, sorted. None on a rank outside. The same object each time, unless it has failed
        on one of them: then a new one. Called by all ranks of the job, in the same order.
        """
        members = tuple(sorted(ranks))
        self._meet("join", members)
        found = self._messages.get(members)
        if not self._everywhere(
            members in self._messages and (found is None or not found[0].failed)
        ):
            if found is not None:
                _close(*found, 0.0)
            found = self._messages[members] = self._messages_among(members)
        return None if found is None else found[0]

    def _messages_among(self, members: tuple[int, ...]) -> tuple[Messages, Transport] | None:
        from farandole.core.groups.messages import Messages  # here: a plain job sends none

        transport = self._engines[0].transport.split(members)
        if transport is None:
            return None
        return (
            Messages(cast(Streaming, transport).streams(), lambda place: f"rank {members[place]}"),
            transport,
        )

    def shutdown(self) -> None:
        """End messages, then all engines, that of all ranks last."""
        for messages, transport in filter(None, self._messages.values()):
            _close(messages, transport, 0.0 if sys.exc_info()[0] else _GRACE)
        for number in sorted(self._engines, reverse=True):
            self._engines[number].shutdown()

    def _meet(self, verb: str, members: tuple[int, ...]) -> None:
        """All ranks are here, and mean the same set."""
        self._changes += 1
        none: Any = np.empty(0, np.uint8)
        request = Request(f"process_set.{verb}.{self._changes}", Kind.BARRIER, DType.UINT8, members)
        try:
            self._engines[0].run([Entry(request, Buffer(none, none, DType.UINT8))])
        except MismatchError as error:
            raise ValueError(
                f"all ranks must {verb} the same process sets in the same order; this rank came"
                f" with {list(members)} ({error})"
            ) from error

    def _of_all(self, mine: Any) -> Any:
        """The bits of each rank, in a row. All have as many."""
        self._changes += 1
        whole = self._engines[0]
        table: Any = np.zeros((whole.size, len(mine)), np.uint8)
        table[whole.rank] = mine
        flat = table.reshape(-1)
        request = Request(
            f"process_set.each.{self._changes}",
            Kind.ALLREDUCE,
            DType.UINT8,
            flat.shape,
            ReduceOp.MAX,
        )
        whole.run([Entry(request, Buffer(flat, flat, DType.UINT8))])
        return table

    def _everywhere(self, true: bool) -> bool:
        """Is it so on all ranks? They have met before."""
        word: Any = np.array([true], np.uint8)
        request = Request(
            f"process_set.everywhere.{self._changes}",
            Kind.ALLREDUCE,
            DType.UINT8,
            (1,),
            ReduceOp.MIN,
        )
        self._engines[0].run([Entry(request, Buffer(word, word, DType.UINT8))])
        return bool(word[0])


def _close(messages: Messages, transport: Transport, seconds: float) -> None:
    messages.close(seconds)
    transport.close()
