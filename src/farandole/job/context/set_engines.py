"""Engines of process sets, and message channels between ranks.

A set has its own engine over a split of the wire that joins all ranks, so sets do not wait for each
other. All ranks create and remove sets together, in the same order. Ids are small numbers that are
reused after removal.
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
_GRACE = 10.0  # seconds at the end for sending pending messages


class SetEngines:
    """The registered process sets of a session. Id 0 is the set of all ranks."""

    def __init__(self, whole: Engine, engine_of: EngineOf) -> None:
        """``engine_of(transport, ranks, id)`` creates the engine of a set."""
        self._engine_of = engine_of
        self._ranks: dict[int, tuple[int, ...]] = {0: tuple(range(whole.size))}
        self._engines: dict[int, Engine] = {0: whole}
        self._changes = 0
        self._unique_ids = {0: 0}
        # None: this rank is not a member.
        self._messages: dict[tuple[int, ...], tuple[Messages, Transport] | None] = {}

    def engine(self, number: int) -> Engine | None:
        """Return the set's engine; None on a rank outside the set."""
        return self._engines.get(number)

    def engines(self) -> list[Engine]:
        """Return the engines of all sets that include this rank."""
        return list(self._engines.values())

    def ranks(self, number: int) -> tuple[int, ...] | None:
        """Return the set's global ranks, sorted; None if there is no such set."""
        return self._ranks.get(number)

    def unique_id(self, number: int) -> int:
        """Return the number of additions and removals before this set was added.

        Unlike ``number``, it is never reused.
        """
        return self._unique_ids[number]

    def all(self) -> dict[int, list[int]]:
        return {number: list(ranks) for number, ranks in sorted(self._ranks.items())}

    def add(self, ranks: Sequence[int]) -> int:
        """Register a set on all ranks; return its id. Raises ValueError for invalid ranks."""
        members = tuple(sorted(ranks))
        size = len(self._ranks[0])
        if (
            not members
            or len(set(members)) < len(members)
            or not 0 <= members[0] <= members[-1] < size
        ):
            raise ValueError(
                f"ProcessSet({list(ranks)}): a process set needs at least one rank, each listed"
                f" once, from 0 to {size - 1}"
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
        """Register sets where each rank passes a set that includes it; return the id of this
        rank's set.
        """
        size = len(self._ranks[0])
        named = self._of_all(np.isin(np.arange(size), ranks))
        sets = dict.fromkeys(tuple(np.flatnonzero(row).tolist()) for row in named)
        numbers = {members: self.add(members) for members in sets}
        return numbers[tuple(sorted(ranks))]

    def remove(self, number: int) -> bool:
        """Remove a set on all ranks; False for the set of all ranks and for one that is not
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
        """Remove sets where each rank passes its own set."""
        known = sorted(self._ranks)
        named = self._of_all(np.array([each == number for each in known])).any(axis=0)
        removed = [self.remove(each) for each, wanted in zip(known, named, strict=True) if wanted]
        return all(removed)

    def messages(self, ranks: Sequence[int]) -> Messages | None:
        """Return the message channel among ``ranks``, valid until ``shutdown``; None on a rank
        outside.

        In the channel, a rank is identified by its position in the sorted ranks. The same object is
        returned each time, unless it has failed on a member; then it is replaced. All ranks of the
        job must call this in the same order.
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
        # imported here because a plain job sends no messages
        from farandole.core.groups.messages import Messages

        transport = self._engines[0].transport.split(members)
        if transport is None:
            return None
        return (
            Messages(cast(Streaming, transport).streams(), lambda place: f"rank {members[place]}"),
            transport,
        )

    def shutdown(self) -> None:
        """Close the message channels, then shut down all engines, the engine of all ranks last."""
        for messages, transport in filter(None, self._messages.values()):
            _close(messages, transport, 0.0 if sys.exc_info()[0] else _GRACE)
        for number in sorted(self._engines, reverse=True):
            self._engines[number].shutdown()

    def _meet(self, verb: str, members: tuple[int, ...]) -> None:
        """Synchronize all ranks and verify that they pass the same set."""
        self._changes += 1
        none: Any = np.empty(0, np.uint8)
        request = Request(f"process_set.{verb}.{self._changes}", Kind.BARRIER, DType.UINT8, members)
        try:
            self._engines[0].run([Entry(request, Buffer(none, none, DType.UINT8))])
        except MismatchError as error:
            raise ValueError(
                f"all ranks must {verb} the same process sets in the same order; this rank has"
                f" {list(members)} ({error})"
            ) from error

    def _of_all(self, mine: Any) -> Any:
        """Return a table with the bits of each rank as a row. All ranks pass the same number of
        bits.
        """
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
        """Return whether ``true`` holds on all ranks, which have synchronized before."""
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
