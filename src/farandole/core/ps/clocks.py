"""Decisions on pushes to a centre and on waiting ranks: a state machine without I/O, time or
weights.

A server and its replicas receive the same events in the same order, so they reach the same state.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple

from farandole.errors import WireError

OPTIMIZERS = ("add", "sgd", "momentum", "adagrad", "adam")


class Rule(NamedTuple):
    """The rule of a centre for pushes, the same for all ranks.

    - ``sync``: Whether pushes are applied in steps, from all but ``backup`` ranks; else each push
      is applied immediately.
    - ``bound``: The number of clocks by which a rank may be ahead of the slowest; -1: no bound.
    - ``damp``: Whether pushes are scaled by 1 / staleness.
    - ``optimizer``: Uses a push as its (negative) gradient; "add" adds it.
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
        """Return the rule received over a connection. Raises WireError if it is invalid."""
        try:
            rule = cls(*facts)
            kinds = [type(value) for value in rule]
        except TypeError as error:
            raise WireError(f"the rule of parameter servers is malformed: {error}") from None
        if kinds != [bool, int, int, bool, str, float, float] or rule.optimizer not in OPTIMIZERS:
            raise WireError(f"the rule of parameter servers is invalid: {facts!r}")
        return rule


class Fate(enum.Enum):
    """The fate of a push. APPLY: apply it to the centre now. COLLECT: apply it with other ranks'
    pushes. DROP: it came too late. AGAIN: its rank repeats it, because it did not receive the
    answer.
    """

    APPLY = enum.auto()
    COLLECT = enum.auto()
    DROP = enum.auto()
    AGAIN = enum.auto()


class PushDecision(NamedTuple):
    """The decision on a push.

    - ``staleness``: The number of updates of the centre since the rank's last pull.
    - ``complete``: The number of collected pushes in the completed step; 0: more are awaited.
    - ``dropped``: Whether the push came too late, now or at its first arrival.
    """

    fate: Fate
    staleness: int = 0
    complete: int = 0
    dropped: bool = False


_BY_RANK = ("clocks", "_numbers", "_pulled")  # attributes of ``Clocks``
_SETS = ("gone", "joined", "settled", "moved", "_arrived")


class Clocks:
    """The clocks of ``ranks``. ``version``: the number of updates of the centre."""

    def __init__(self, ranks: Sequence[int], rule: Rule) -> None:
        self.ranks = tuple(ranks)
        self.rule = rule
        self.version = 0
        self.clocks = dict.fromkeys(ranks, 0)  # pushes, by rank
        self.gone: set[int] = set()  # ranks that have ended or left in order
        self.joined: set[int] = set()  # ranks that wait until all have joined
        self.settled: set[int] = set()  # joined ranks that have flushed, as all of them do
        # ranks that push to a different centre from now on; here they are gone
        self.moved: set[int] = set()
        self._numbers = dict.fromkeys(ranks, 0)  # number of each rank's last event
        self._decisions: dict[int, PushDecision] = {}  # the decision on that event if it is a push
        self._pulled = dict.fromkeys(ranks, 0)  # the version that each rank pulled last
        self._arrived: set[int] = set()  # ranks with a collected push for the current step

    def to_facts(self) -> dict[str, Any]:
        """Return the state in JSON-serializable form (see ``load``)."""
        pairs = {name: list(vars(self)[name].items()) for name in _BY_RANK}
        sets = {name: sorted(vars(self)[name]) for name in _SETS}
        decisions = [
            (rank, (found.fate.name, *found[1:])) for rank, found in self._decisions.items()
        ]
        return {"version": self.version, **pairs, **sets, "decisions": decisions}

    def load(self, facts: dict[str, Any]) -> None:
        """Restore the state from ``to_facts``."""
        self.version = int(facts["version"])
        vars(self).update({name: dict(facts[name]) for name in _BY_RANK})
        vars(self).update({name: set(facts[name]) for name in _SETS})
        self._decisions = {
            rank: PushDecision(Fate[fate], *rest) for rank, (fate, *rest) in facts["decisions"]
        }

    def seen(self, rank: int, number: int) -> bool:
        """Return whether this event of the rank is a repetition. Raises WireError if it is neither
        that nor the next event.
        """
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
        """Decide a push. ``number``: the number of the rank's event, from 1; ``pulled``: the
        version last pulled by the rank.

        A repeated push is not counted again, and gets the same answer.
        """
        if self.seen(rank, number):
            first = self._decisions.get(rank, PushDecision(Fate.AGAIN))
            return first._replace(fate=Fate.AGAIN, complete=0)
        found = self._decisions[rank] = self._decide(rank, pulled)
        return found

    def _decide(self, rank: int, pulled: int) -> PushDecision:
        if not 0 <= pulled <= self.version:
            raise WireError(
                f"rank {rank} started from version {pulled} of a centre at version {self.version}",
                rank,
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
        """Record that a rank will not push again (at least until all others have joined), so that
        no rank waits for it.

        Return the number of collected pushes in a step completed by this; 0: none.
        """
        (self.gone if for_good else self.joined).add(rank)
        return self._completed()

    def stray(self, *, late: bool = False) -> tuple[int, int] | None:
        """Return a rank that continues here and a rank that moved to a different centre after fewer
        pushes: one of them would never get an answer. None without such a pair.

        If no rank waits, the pair is detected only when all ranks flush, or if the push is
        ``late``: ranks need not take the same number of steps.
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
        """Return the ranks that are expected to push."""
        return [rank for rank in self.ranks if rank not in self.gone and rank not in self.joined]

    def ready(self, rank: int) -> bool:
        """Return whether the rank may continue after its last push."""
        if self.rule.sync:
            return self.version > self._pulled[rank]
        return self.rule.bound < 0 or self.clocks[rank] - self.slowest() <= self.rule.bound

    def slowest(self) -> int:
        """Return the clock of the slowest rank that is expected to push."""
        return min((self.clocks[rank] for rank in self.here()), default=0)

    def awaited(self, rank: int) -> list[int]:
        """Return the ranks awaited by ``rank``."""
        if self.ready(rank):
            return []
        here = [other for other in self.here() if other != rank]
        if self.rule.sync:
            return [other for other in here if other not in self._arrived]
        return [other for other in here if self.clocks[rank] - self.clocks[other] > self.rule.bound]

    def _come_back(self, rank: int) -> None:
        """Reset the joins if a joined rank pushes: then all ranks have joined, and all continue."""
        if rank in self.joined:
            self.joined.clear()
            self.settled.clear()
            # no rank waits for steps missed by another rank
            self.clocks = dict.fromkeys(self.ranks, max(self.clocks.values()))

    def _completed(self) -> int:
        outstanding = sum(rank not in self._arrived for rank in self.here())
        if not self._arrived or outstanding > self.rule.backup:
            return 0
        count = len(self._arrived)
        self._arrived.clear()
        self.version += 1
        return count
