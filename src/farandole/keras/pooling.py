"""What the ranks decide together when an epoch ends: metrics over all ranks, and whether to
stop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from farandole.base.types import Buffer, DType, Kind, ReduceOp, Request
from farandole.core.api.ops import WORLD
from farandole.core.engine import Entry
from farandole.job import context
from farandole.job.context import ProcessSet

if TYPE_CHECKING:
    from farandole.base.types import Array

_NOTHING = np.empty(0, dtype=np.uint8)
_JOIN = Request("join", Kind.JOIN, DType.UINT8, (0,))


# Metrics over all ranks.


class Tally(NamedTuple):
    """One rank's knowledge of its metrics.

    ``logs``: their values, of any shape, as its own samples gave them. ``states``: what they are
    computed from (sums and counts, a histogram for an AUC, ...), so that adding up states of ranks
    gives the metric over all samples, however unevenly these are dealt. ``computed``: the names in
    ``logs`` whose value comes from ``states``.
    """

    logs: dict[str, Array]
    states: list[Array]
    computed: frozenset[str]


def pooled_states(tallies: Sequence[Tally], rules: Sequence[str]) -> list[Array] | None:
    """The states of all ranks together, each by its rule: "sum", "mean", "first". None if ranks
    have different ones.
    """
    every = [tally.states for tally in tallies]
    shapes = {tuple(state.shape for state in states) for states in every}
    if len(shapes) != 1 or len(every[0]) != len(rules):
        return None
    return [
        _pooled(column, rule) for column, rule in zip(zip(*every, strict=True), rules, strict=True)
    ]


def _pooled(column: Sequence[Array], rule: str) -> Array:
    if rule == "first":
        return column[0]
    total: Array = np.sum([np.asarray(state, dtype=np.float64) for state in column], axis=0)
    if rule == "mean":
        total /= len(column)
    return total.astype(column[0].dtype)


def pooled_logs(tallies: Sequence[Tally], exact: Mapping[str, Array]) -> dict[str, float | Array]:
    """The logs of all ranks together: from ``exact``, what was computed from pooled states, where
    every rank that has the value computed it from states; else the mean of the ranks that have it.
    The same on all ranks. Arrays whose shapes differ between ranks are left out.
    """
    result: dict[str, float | Array] = {}
    for name in sorted({name for tally in tallies for name in tally.logs}):
        having = [tally for tally in tallies if name in tally.logs]
        first = having[0].logs[name]
        if len({tally.logs[name].shape for tally in having}) > 1:
            continue
        if name in exact and all(name in tally.computed for tally in having):
            pooled = exact[name].reshape(first.shape)
        else:
            pooled = np.mean([tally.logs[name] for tally in having], axis=0, dtype=np.float64)
        result[name] = pooled.astype(first.dtype) if first.ndim else float(pooled)
    return result


# Deciding together.


def root_of(process_set: ProcessSet) -> int:
    """The rank whose word counts for all of ``process_set``."""
    return (process_set.ranks or [0])[0]


def wait_for_all(process_set: ProcessSet = WORLD) -> None:
    """Return when all ranks have come here; meanwhile take part, with nothing, in the reductions of
    those that have not: ranks may have had different numbers of batches.
    """
    engine = context.engine(process_set)
    if engine.size > 1:
        context.leave_servers()  # a step of ``ps``, or a bound of ``ssp``, would wait for this rank
        engine.run([Entry(_JOIN, Buffer(_NOTHING, _NOTHING, DType.UINT8))])
        context.return_to_servers()
        engine.numbers.restart()


def any_rank(flag: bool, process_set: ProcessSet = WORLD) -> bool:
    """Is ``flag`` true on some rank?"""
    engine = context.engine(process_set)
    word = np.array([int(flag)], dtype=np.int64)
    request = Request("allreduce.any", Kind.ALLREDUCE, DType.INT64, word.shape, ReduceOp.MAX)
    engine.run([Entry(request, Buffer(word, word, DType.INT64), engine.numbers.next())])
    return bool(word[0])
