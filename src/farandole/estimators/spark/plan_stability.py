"""Caching of DataFrames that may return different rows when computed twice, for training and for
validation.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from farandole.base.log import logger
from farandole.data import plans

# Nodes whose rows are bit-identical for any order of their input. Sums of floats are not, nor are
# the first, ranked, limited or sampled rows without an order.
_ALIKE = {
    "Project",
    "Filter",
    "Union",
    "Join",
    "Sort",
    "Repartition",
    "RepartitionByExpression",
    "RebalancePartitions",
    "Expand",
    "Generate",
    "BatchEvalPython",
    "ArrowEvalPython",
    "LogicalRelation",
    "HiveTableRelation",
    "DataSourceV2ScanRelation",
    "LocalRelation",
    "InMemoryRelation",
    "Range",
    "OneRowRelation",
    "EmptyRelation",
}


def may_vary(frame: Any) -> bool:
    """Return whether Spark may compute different rows each time, apart from cached results. True if
    only a server has the plan (Spark Connect).
    """
    try:
        plan = frame._jdf.queryExecution().optimizedPlan()
        kinds = {plans.kind(node) for node in plans.nodes(plan)}
        return plans.holds(frame, "CURRENT_LIKE") or not plan.deterministic() or not kinds <= _ALIKE
    except Exception as error:
        logger.debug("no plan: %s", error)
        return True


_lock = threading.Lock()
_kept: list[_Kept] = []


class _Kept:
    """A DataFrame that Spark caches for one or several blocks."""

    def __init__(self, frame: Any) -> None:
        self.frame = frame
        self.blocks = 0


@contextlib.contextmanager
def cached(frame: Any) -> Iterator[Any]:
    """Yield the DataFrame, computed once, until the ``with`` block ends."""
    try:
        held = _take(frame)
    except Exception as error:  # such as in Databricks' serverless sessions
        logger.warning(
            "Spark computes the DataFrame twice, for training and for validation, and cannot keep"
            " it in between (%s). Rows that differ between the two (sums of floats, for example)"
            " may be in both or in neither. Store the DataFrame first",
            str(error).splitlines()[0] if str(error) else type(error).__name__,
        )
        yield frame
        return
    try:
        yield frame
    finally:
        if held is not None:
            _leave(held)


def _take(frame: Any) -> _Kept | None:
    """Cache a DataFrame in Spark, and count its users; return None if the program already caches
    it.

    Spark caches by plan, for all DataFrames with the same one, so blocks of other threads count,
    too.
    """
    with _lock:
        held = next((each for each in _kept if _same(each.frame, frame)), None)
        if held is None:
            level = frame.storageLevel
            if level.useMemory or level.useDisk:
                return None
            frame.persist()
            held = _Kept(frame)
            _kept.append(held)
        held.blocks += 1
        return held


def _leave(held: _Kept) -> None:
    with _lock:
        held.blocks -= 1
        if held.blocks:
            return
        _kept.remove(held)
        held.frame.unpersist()


def _same(one: Any, other: Any) -> bool:
    """Return whether two DataFrames have the same plan. Spark Connect cannot compare DataFrames of
    two sessions.
    """
    alike = hasattr(one, "_jdf") or one.sparkSession is other.sparkSession
    return bool(alike and one.sameSemantics(other))
