"""Which pushes to a centre count, and which ranks wait: a state from events to decisions. No I/O,
no clock, no numbers.

It is the same for a server and for its replicas, which see the same events in the same order.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple

from farandole.errors import WireError

OPTIMIZERS = ("add", "sgd", "momentum", "adagrad", "adam")


class Rule(NamedTuple):
    """How a centre takes pushes, the same for all ranks. ``sync``: step by step, from all but
    ``backup`` ranks; else each at once. ``bound``: so many clocks a rank may be ahead of the
    slowest one; -1: no bound. ``damp``: scale by 1 / staleness. ``optimizer``: what takes a push as
    its (negative) gradient; "add" adds it.
    """

    sync: bool = False
    backup: int = 0
    bound: int = -1
    damp: bool = False
    optimizer: str = "add"
    lr: float = 1.0
    momentum: float = 0.9

    @classmethod
    def of(cls, facts: Any) -> Rule:
        """Of what came over a connection. WireError for what is no rule."""
        try:
            rule = cls(*facts)
            kinds = [type(value) for value in rule]
        except TypeError as error:
            raise WireError(f"a rule of parameter servers cannot be read: {error}") from None
        if kinds != [bool, int, int, bool, str, float, float] or rule.optimizer not in OPTIMIZERS:
            raise WireError(f"a rule of parameter servers cannot be {facts!r}")
        return rule


class Fate(enum.Enum):
    """Of a push. APPLY: to the centre, now. COLLECT: with those of other ranks. DROP: it came too
    late. AGAIN: it has come before, and its rank did not hear the answer.
    """

    APPLY = enum.auto()
    COLLECT = enum.auto()
    DROP = enum.auto()
    AGAIN = enum.auto()


class PushDecision(NamedTuple):
    """``staleness``: updates of the centre since the rank's last pull. ``complete``: so many
    collected pushes are the step now; 0: more are awaited. ``dropped``: it came too late, now or
    when it came first.
    """

    fate: Fate
    staleness: int = 0
    complete: int = 0
    dropped: bool = False


class Clocks:
    """Of ``ranks``. ``version``: updates of the centre so far."""

    def __init__(self, ranks: Sequence[int], rule: Rule) -> None:
        self.ranks = tuple(ranks)
        self.rule = rule
        self.version = 0
        self.clocks = dict.fromkeys(ranks, 0)  # pushes, by rank
        self.gone: set[int] = set()  # they have ended, or left in order
        self.joined: set[int] = set()  # they wait until all have joined
        self.settled: set[int] = set()  # those of ``joined`` that have flushed, as all do then
        self.moved: set[int] = set()  # they push to another centre from now on, and are gone here
        self._numbers = dict.fromkeys(ranks, 0)  # of the last event of each rank
        self._decisions: dict[int, PushDecision] = {}  # on that event, if it is a push
        self._pulled = dict.fromkeys(ranks, 0)  # versions from which they set out, by rank
        self._arrived: set[int] = set()  # collected for the present step

    def seen(self, rank: int, number: int) -> bool:
        """Has this event of the rank come before? WireError for one that cannot be the next."""
        last = self._numbers[rank]
        if number not in (last, last + 1):
            raise WireError(
                f"rank {rank} sent event {number} to a parameter server after event {last}", rank
            )
        if number != last:
            self._numbers[rank] = number
            self._decisions.pop(rank, None)
        return number == last

    def push(self, rank: int, number: int, pulled: int) -> PushDecision:
        """``number``: of the rank's event, from 1; ``pulled``: the version from which it set out.
        One that comes again is not counted, and its rank hears what it would have heard the first
        time.
        """
        if self.seen(rank, number):
            first = self._decisions.get(rank, PushDecision(Fate.AGAIN))
            return first._replace(fate=Fate.AGAIN, complete=0)
        found = self._decisions[rank] = self._decide(rank, pulled)
        return found

    def _decide(self, rank: int, pulled: int) -> PushDecision:
        if not 0 <= pulled <= self.version:
            raise WireError(
                f"rank {rank} set out from version {pulled} of a centre at {self.version}", rank
            )
        self._come_back(rank)
        self.clocks[rank] += 1
        self._pulled[rank] = pulled
        staleness = self.version - pulled
        if not self.rule.sync:
            self.version += 1
            return PushDecision(Fate.APPLY, staleness)
        if staleness:
            return PushDecision(Fate.DROP, staleness, dropped=True)
        self._arrived.add(rank)
        return PushDecision(Fate.COLLECT, 0, self._completed())

    def leave(self, rank: int, *, for_good: bool) -> int:
        """The rank will not push any more, or not before all others have joined, too: nobody waits
        for it. Returns the number of collected pushes that are the step now.
        """
        (self.gone if for_good else self.joined).add(rank)
        return self._completed()

    def stray(self, *, late: bool = False) -> tuple[int, int] | None:
        """A rank that goes on here, and one that has moved, though it came less far: one of them
        would never have an answer. Where nobody waits, that shows only when all flush, or when it
        is ``late``: ranks need not take as many steps.
        """
        slack = 0 if self.rule.sync or late else self.rule.bound
        for other in sorted(self.moved - self.settled):
            ahead = [
                one for one in self.here() if 0 <= slack < self.clocks[one] - self.clocks[other]
            ]
            for one in sorted({*ahead, *self.settled}):
                return one, other
        return None

    def here(self) -> list[int]:
        """The ranks that are expected to push."""
        return [rank for rank in self.ranks if rank not in self.gone and rank not in self.joined]

    def ready(self, rank: int) -> bool:
        """May the rank go on after its last push?"""
        if self.rule.sync:
            return self.version > self._pulled[rank]
        return self.rule.bound < 0 or self.clocks[rank] - self.slowest() <= self.rule.bound

    def slowest(self) -> int:
        """The clock of the slowest rank that is here."""
        return min((self.clocks[rank] for rank in self.here()), default=0)

    def awaited(self, rank: int) -> list[int]:
        """The ranks that hold this one up."""
        if self.ready(rank):
            return []
        here = [other for other in self.here() if other != rank]
        if self.rule.sync:
            return [other for other in here if other not in self._arrived]
        return [other for other in here if self.clocks[rank] - self.clocks[other] > self.rule.bound]

    def _come_back(self, rank: int) -> None:
        """A rank that pushes after it has joined shows that all have, and that all go on."""
        if rank in self.joined:
            self.joined.clear()
            self.settled.clear()
            # nobody waits for what one has missed
            self.clocks = dict.fromkeys(self.ranks, max(self.clocks.values()))

    def _completed(self) -> int:
        outstanding = sum(rank not in self._arrived for rank in self.here())
        if not self._arrived or outstanding > self.rule.backup:
            return 0
        count = len(self._arrived)
        self._arrived.clear()
        self.version += 1
        return count
