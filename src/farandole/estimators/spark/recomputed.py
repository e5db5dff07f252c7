"""A DataFrame that is computed twice, for training and for validation: rows must be the same both times."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from farandole.log import logger

# Of which each row comes out to the last bit, in whatever order rows come in. Sums of floating numbers do not, nor what
# is first, ranked, limited or sampled among rows without an order.
_ALIKE = {
    "Project", "Filter", "Union", "Join", "Sort", "Repartition", "RepartitionByExpression", "RebalancePartitions",
    "Expand", "Generate", "BatchEvalPython", "ArrowEvalPython", "LogicalRelation", "HiveTableRelation",
    "DataSourceV2ScanRelation", "LocalRelation", "InMemoryRelation", "Range", "OneRowRelation", "EmptyRelation",
}  # fmt: skip


def varies(frame: Any) -> bool:
    """Whether Spark may compute other rows each time. What it keeps already does not count. True where only a server
    has the plan (Spark Connect)."""
    try:
        execution = frame._jdf.queryExecution()
        plan = execution.optimizedPlan()
        now = frame.sparkSession._jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()
        current = bool(execution.withCachedData().containsPattern(now))  # the optimizer makes a value of current_date()
        return current or not plan.deterministic() or not _kinds(plan) <= _ALIKE
    except Exception as error:
        logger.debug("no plan: %s", error)
        return True


def _kinds(plan: Any) -> set[str]:
    """Of a plan's nodes, and those of its subqueries."""
    found, waiting = set(), [plan]
    while waiting:
        node = waiting.pop()
        found.add(str(node.getClass().getSimpleName()))
        for more in (node.children(), node.subqueries()):
            waiting += [more.apply(place) for place in range(more.size())]
    return found


@contextlib.contextmanager
def kept(frame: Any) -> Iterator[Any]:
    """The DataFrame, computed once, until the ``with`` block ends."""
    try:
        found = frame.persist()
    except Exception as error:  # of Databricks' serverless sessions, say
        logger.warning(
            "Spark computes the DataFrame twice, for training and for validation, and cannot keep it meanwhile (%s): "
            "rows that come out otherwise the second time, as after a sum of floating numbers, may be in both, or in "
            "none. Store the DataFrame before",
            str(error).splitlines()[0] if str(error) else type(error).__name__,
        )
        yield frame
        return
    try:
        yield found
    finally:
        found.unpersist()
