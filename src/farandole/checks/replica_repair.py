"""Comparison and repair of a state's replicas at its commits (``--check-replicas-every``).

A wrong bit in a processor or in memory silently corrupts training. Ranks with equal replicas
outvote a damaged one, and one of them sends it the differing values. Without a majority (two ranks)
the ranks of an elastic job return to the state of the last comparison, and repeat the steps since
then.

A comparison is one reduction of a few words if all replicas are equal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from farandole.base.digests import combined, digest_of_text
from farandole.checks.catalogue import DAMAGED_REPLICA, DIFFERENT_REPLICAS
from farandole.checks.exchange import all_equal, gathered
from farandole.checks.finding import Finding, error_of
from farandole.checks.replica_causes import (
    Differences,
    EarlierDifference,
    difference_of,
    mistake_of,
)
from farandole.checks.replica_votes import Votes, votes_of
from farandole.checks.reporting import warn
from farandole.core.api.objects import allgather_object, broadcast_object
from farandole.errors import HorovodInternalError, RanksDifferError, ranks_named
from farandole.job import context
from farandole.job.config import Connection
from farandole.job.report import keys

_LABEL = "elastic.replicas"
_SHOWN = 5  # names of values in a message


class ReplicatedState(Protocol):
    """A state whose replicas can be compared: see ``core.api.state.State``."""

    def replicas(self) -> Mapping[str, Any]: ...
    def digest_of_replica(self, value: Any) -> int: ...
    def bytes_of_replica(self, value: Any) -> Any: ...
    def overwrite_replicas(self, values: Mapping[str, Any]) -> None: ...
    def saved_values(self) -> Any: ...
    def use_saved_values(self, saved: Any) -> None: ...


class ReplicaRepair:
    """The comparisons of one state.

    ``every``: the number of commits between two comparisons.
    """

    def __init__(self, state: ReplicatedState, every: int) -> None:
        self._state, self._every = state, every
        self._pending = False  # whether a comparison was due while replicas were allowed to differ
        self._compared = False  # since the last commit
        self._sound: Any = None  # the saved values of the last successful comparison
        self._failed = False  # whether the last comparison restored these values
        self._memory = _Memory()
        self._reported: set[str] = set()  # values with a logged mistake

    def reset(self) -> None:
        """Restart with new ranks, which receive equal states."""
        self._pending, self._sound = False, None

    def before_save(self) -> None:
        """Compare the replicas if a comparison is due. Collective.

        Raises HorovodInternalError on all ranks of an elastic job if the ranks must return to the
        last comparison; RanksDifferError if they cannot, or if a return did not help.
        """
        if self._sound is None and context.size() == 2:
            self._sound = self._state.saved_values()  # received from rank 0
        self._pending |= (context.commits() + 1) % self._every == 0
        if not self._pending:
            return
        replicas = self._state.replicas()
        digests = [self._state.digest_of_replica(value) for value in replicas.values()]
        engine = context.engine()
        names = digest_of_text("\n".join(replicas))
        mine = combined(digests) if digests else None
        same_names, equal = all_equal(engine, f"{_LABEL}.equal", [names, mine])
        # The weights of the ranks differ until they are averaged, or some optimizers have no state
        # before their first step.
        if equal is None or not same_names:
            return
        self._pending, self._compared = False, True
        if equal:
            memory = self._memory
            self._memory = _Memory(memory.comparison + 1, True, memory.earlier)
        else:
            texts = gathered(engine, _LABEL, json.dumps(digests).encode())
            self._handle(replicas, votes_of([json.loads(text) for text in texts]))
        self._failed = False

    def after_save(self) -> None:
        """Keep the saved values for a return if they have just been compared."""
        if self._compared:
            self._compared = False
            self._sound = self._state.saved_values() if context.size() == 2 else None

    def _handle(self, replicas: Mapping[str, Any], votes: Votes) -> None:
        names, reference = list(replicas), self._reference_values(replicas, votes)
        facts = self._facts(replicas, reference, votes)
        mistake = self._mistake(votes, facts, len(names))
        if votes.majority:
            mine = [names[place] for place in votes.damaged.get(context.rank(), ())]
            if mine:
                self._state.overwrite_replicas({name: reference[name] for name in mine})
        found = _Difference(votes, names, [each.host for each in facts], mistake)
        if mistake:
            self._report_mistake(found)
        elif votes.majority:
            _report_damage(found)
        else:
            self._go_back(found)

    def _reference_values(self, replicas: Mapping[str, Any], votes: Votes) -> dict[str, Any]:
        """Return the bytes of the differing values from a rank of the majority; without a majority,
        from rank 0. Collective.
        """
        names = list(replicas)
        wanted = [names[place] for place in votes.places] * (context.rank() == votes.reference)
        values = {name: self._state.bytes_of_replica(replicas[name]) for name in wanted}
        received: dict[str, Any] = broadcast_object(
            values, votes.reference, name=f"{_LABEL}.values"
        )
        return received

    def _facts(
        self, replicas: Mapping[str, Any], reference: Mapping[str, Any], votes: Votes
    ) -> list[_Facts]:
        """Return the facts of all ranks, each with rank 0's record of all comparisons.
        Collective.
        """
        names = list(replicas)
        found = [
            difference_of(
                place, self._state.bytes_of_replica(replicas[names[place]]), reference[names[place]]
            )
            for place in votes.damaged.get(context.rank(), ())
        ]
        own = [each for each in found if each is not None]
        facts: list[_Facts] = allgather_object(
            _Facts(context.placement().hostname, _process(), own, self._memory),
            name=f"{_LABEL}.facts",
        )
        self._memory = facts[0].memory
        return facts

    def _mistake(self, votes: Votes, facts: Sequence[_Facts], values: int) -> str:
        """Return the evidence that the program caused a difference, and record the difference."""
        number, were_equal, earlier = self._memory
        differences = {rank: facts[rank].differences for rank in votes.damaged}
        before = {
            rank: earlier[facts[rank].process]
            for rank in differences
            if facts[rank].process in earlier
        }
        self._memory = _Memory(
            number + 1,
            were_equal,
            {
                **earlier,
                **{
                    facts[rank].process: EarlierDifference(number, each)
                    for rank, each in differences.items()
                },
            },
        )
        return mistake_of(votes, differences, values, before, number, were_equal=were_equal)

    def _report_mistake(self, found: _Difference) -> None:
        """Log a mistake in the program once. Raise RanksDifferError on all ranks if ``--check
        raise`` demands it, or if the ranks cannot become equal.
        """
        finding = found.program_mistake()
        if not found.votes.majority or context.settings().check == "raise":
            raise error_of(RanksDifferError, [finding])
        if context.rank() == 0 and finding.where not in self._reported:
            warn(finding)
        self._reported.add(finding.where)

    def _go_back(self, found: _Difference) -> None:
        """Return to the last comparison, by an error on all ranks: see ``before_save``."""
        if self._failed or not context.is_elastic() or self._sound is None:
            raise error_of(RanksDifferError, [found.damage(_stop("again " * self._failed))])
        self._failed = True
        self._compared = False
        self._state.use_saved_values(self._sound)
        words = "The ranks return to the last comparison, and repeat the steps since then"
        raise error_of(HorovodInternalError, [found.damage(words)])


class _Memory(NamedTuple):
    """The earlier comparisons: the number of the next one, whether all replicas were equal in any
    of them, and the latest difference of each process.
    """

    comparison: int = 0
    were_equal: bool = False
    earlier: Mapping[int, EarlierDifference] = {}


class _Facts(NamedTuple):
    """The facts of one rank about a difference. ``process``: a number that identifies its process
    for its lifetime.
    """

    host: str
    process: int
    differences: Differences
    memory: _Memory


def _process() -> int:
    member = Connection.from_env().member
    return member if member >= 0 else context.rank()


class _Difference(NamedTuple):
    """The description of a difference. ``mistake``: the evidence that the program is the cause, or
    empty.
    """

    votes: Votes
    names: Sequence[str]
    hosts: Sequence[str]
    mistake: str

    @property
    def shown(self) -> str:
        """The first names of differing values."""
        places = self.votes.places
        more = len(places) - _SHOWN
        listed = ", ".join(self.names[place] for place in places[:_SHOWN])
        return listed + (f" and {more} more" if more > 0 else "")

    def damage(self, end: str) -> Finding:
        """Return the finding for damaged replicas. ``end``: the consequence, a sentence."""
        votes, hosts = self.votes, self.hosts
        if votes.majority:
            where = ", ".join(f"rank {rank} on {hosts[rank]}" for rank in votes.damaged)
            text = f"the replica of {where} is damaged: it differs from the other ranks in"
            text = f"{text} {self.shown}"
        else:
            text = (
                f"the replicas of {ranks_named([0, *votes.damaged])} on"
                f" {', '.join(dict.fromkeys(hosts))} differ in {self.shown}, and no majority agrees"
            )
        return DAMAGED_REPLICA.finding(f"{text}. {end}", where=self.names[votes.places[0]])

    def program_mistake(self) -> Finding:
        """Return the finding for a mistake in the program."""
        ranks = [*self.votes.damaged] if self.votes.majority else [0, *self.votes.damaged]
        verb = "differ" if len(ranks) > 1 else "differs"
        others = " from the other ranks" if self.votes.majority else ""
        end = "adopted the values of the others" if self.votes.majority else "cannot continue"
        return DIFFERENT_REPLICAS.finding(
            f"{ranks_named(ranks)} {verb}{others} in {self.shown}, and {end}. The cause is the"
            f" program, not a defect, because {self.mistake}. Begin with equal weights"
            " (hvd.broadcast_parameters), change weights and learning rates on all ranks in the"
            " same way, and keep values that differ between ranks out of the state"
            " (state.register_per_rank)",
            where=self.names[self.votes.places[0]],
        )


def _report_damage(found: _Difference) -> None:
    """Log a repair. Report the damaged ranks to the driver, which excludes a host that is named
    repeatedly.
    """
    votes = found.votes
    if context.rank() == 0:
        warn(found.damage("It was repaired with the values of the others"))
    client = context.store() if context.is_elastic() else None
    if client is not None and context.rank() == votes.reference:
        key = keys.damaged(context.placement().generation, context.commits())
        client.set(key, json.dumps(list(votes.damaged)).encode())


def _stop(why: str) -> str:
    return (
        f"The job cannot determine {why}which one is right, and ends: restart it from a checkpoint,"
        " with three ranks or more, or as an elastic job (--min-np)"
    )
