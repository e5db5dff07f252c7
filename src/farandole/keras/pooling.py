"""Joint decisions of ranks at the end of an epoch: metrics over all ranks, and whether to stop."""

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
    """One rank's metrics.

    ``logs``: their values, of any shape, over its own samples. ``states``: the sums and counts (or
    a histogram for an AUC, ...) from which they are computed, so that the sums of all ranks' states
    give the metric over all samples, even if the ranks' shares are uneven. ``computed``: the names
    in ``logs`` whose value comes from ``states``.
    """

    logs: dict[str, Array]
    states: list[Array]
    computed: frozenset[str]


def pooled_states(tallies: Sequence[Tally], rules: Sequence[str]) -> list[Array] | None:
    """Pool the states of all ranks, each by its rule: "sum", "mean" or "first". None if ranks have
    different states.
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
    """Pool the logs of all ranks; the result is the same on all ranks.

    A value comes from ``exact`` (computed from pooled states) if every rank that has it computed it
    from states; otherwise it is the mean over the ranks that have it. Arrays whose shapes differ
    between ranks are left out.
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


# Joint decisions.


def root_of(process_set: ProcessSet) -> int:
    """Return the rank that decides for all of ``process_set``."""
    return (process_set.ranks or [0])[0]


def wait_for_all(process_set: ProcessSet = WORLD) -> None:
    """Wait until all ranks have called this. Ranks may have different numbers of batches, so the
    waiting rank joins the others' reductions until then, without contributing.
    """
    engine = context.engine(process_set)
    if engine.size > 1:
        # otherwise a step of ``ps``, or the bound of ``ssp``, would wait for this rank
        context.leave_servers()
        engine.run([Entry(_JOIN, Buffer(_NOTHING, _NOTHING, DType.UINT8))])
        context.return_to_servers()
        engine.numbers.restart()


def any_rank(flag: bool, process_set: ProcessSet = WORLD) -> bool:
    """Return whether ``flag`` is true on any rank."""
    engine = context.engine(process_set)
    word = np.array([int(flag)], dtype=np.int64)
    request = Request("allreduce.any", Kind.ALLREDUCE, DType.INT64, word.shape, ReduceOp.MAX)
    engine.run([Entry(request, Buffer(word, word, DType.INT64), engine.numbers.next())])
    return bool(word[0])
