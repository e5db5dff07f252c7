"""Compares and repairs the replicas of a state at its commits (``--check-replicas-every``).

A wrong bit in a processor or in memory corrupts the training without an error. Ranks with equal
replicas outvote a damaged one, and one of them sends it the values that differ. Without a majority
(two ranks) the ranks of an elastic job return to the state of the last comparison, and repeat the
steps since then.

A comparison is one reduction of a few words if all replicas are equal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from farandole.base.digests import combined, digest_of_text
from farandole.checks.catalogue import DAMAGED_REPLICA
from farandole.checks.exchange import all_equal, gathered
from farandole.checks.finding import Finding, error_of
from farandole.checks.replica_votes import Votes, votes_of
from farandole.checks.reporting import warn
from farandole.core.api.objects import allgather_object, broadcast_object
from farandole.errors import HorovodInternalError, RanksDifferError, ranks_named
from farandole.job import context
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
        self._pending = False  # a comparison was due while the replicas may differ
        self._compared = False  # since the last commit
        self._sound: Any = None  # the saved values of the last successful comparison
        self._failed = False  # whether the last comparison led back to these values

    def reset(self) -> None:
        """Start again with new ranks, which receive equal states."""
        self._pending, self._sound = False, None

    def before_save(self) -> None:
        """Compare the replicas if a comparison is due. Collective.

        Raises HorovodInternalError on all ranks of an elastic job if the ranks have to return to
        the last comparison; RanksDifferError if they cannot, or if that did not help.
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
        if not equal:
            texts = gathered(engine, _LABEL, json.dumps(digests).encode())
            self._handle(replicas, votes_of([json.loads(text) for text in texts]))
        self._failed = False

    def after_save(self) -> None:
        """Keep the saved values if they have just been compared, to return to them."""
        if self._compared:
            self._compared = False
            self._sound = self._state.saved_values() if context.size() == 2 else None

    def _handle(self, replicas: Mapping[str, Any], votes: Votes) -> None:
        hosts = allgather_object(context.placement().hostname, name=f"{_LABEL}.hosts")
        names = list(replicas)
        if votes.majority:
            self._repair(replicas, votes)
            found = _finding(votes, names, hosts, "It was repaired with the values of the others")
            if context.rank() == 0:
                warn(found)
            if context.rank() == votes.majority[0] and context.is_elastic():
                _report(votes, found)
            return
        if self._failed or not context.is_elastic() or self._sound is None:
            why = "again " if self._failed else ""
            raise error_of(RanksDifferError, [_finding(votes, names, hosts, _stop(why))])
        self._failed = True
        self._compared = False
        self._state.use_saved_values(self._sound)
        words = "The ranks return to the last comparison, and compute the steps since then again"
        raise error_of(HorovodInternalError, [_finding(votes, names, hosts, words)])

    def _repair(self, replicas: Mapping[str, Any], votes: Votes) -> None:
        """Send the values that differ from a rank of the majority to the others. Collective."""
        names = list(replicas)
        wanted = [names[place] for place in votes.places]
        sender = votes.majority[0]
        values = {name: self._state.bytes_of_replica(replicas[name]) for name in wanted}
        received = broadcast_object(
            values if context.rank() == sender else {}, sender, name=f"{_LABEL}.values"
        )
        mine = [names[place] for place in votes.damaged.get(context.rank(), ())]
        if mine:
            self._state.overwrite_replicas({name: received[name] for name in mine})


def _finding(votes: Votes, names: Sequence[str], hosts: Sequence[str], end: str) -> Finding:
    shown = [names[place] for place in votes.places[:_SHOWN]]
    more = len(votes.places) - len(shown)
    listed = ", ".join(shown) + (f" and {more} more" if more > 0 else "")
    if votes.majority:
        where = ", ".join(f"rank {rank} on {hosts[rank]}" for rank in votes.damaged)
        text = f"the replica of {where} is damaged: it differs from the other ranks in {listed}"
    else:
        ranks = ranks_named([0, *votes.damaged])
        text = (
            f"the replicas of {ranks} on {', '.join(dict.fromkeys(hosts))} differ in {listed}, and"
            " no majority agrees"
        )
    return DAMAGED_REPLICA.finding(f"{text}. {end}", where=shown[0])


def _stop(why: str) -> str:
    return (
        f"The job cannot decide {why}which one is right, and ends: start it again from a"
        " checkpoint, with three ranks or more, or as an elastic job (--min-np)"
    )


def _report(votes: Votes, found: Finding) -> None:
    """Report the damaged ranks to the driver, which excludes a host that is reported repeatedly."""
    client = context.store()
    if client is not None:
        key = keys.damaged(context.placement().generation, context.commits())
        client.set(key, json.dumps(list(votes.damaged)).encode())
