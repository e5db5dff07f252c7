"""A DataFrame that is computed twice, for training and for validation: rows must be the same both times."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from farandole.data import plans
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
        plan = frame._jdf.queryExecution().optimizedPlan()
        kinds = {plans.kind(node) for node in plans.nodes(plan)}
        return plans.holds(frame, "CURRENT_LIKE") or not plan.deterministic() or not kinds <= _ALIKE
    except Exception as error:
        logger.debug("no plan: %s", error)
        return True


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
