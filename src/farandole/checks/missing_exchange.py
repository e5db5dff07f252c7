"""Detection of jobs whose ranks began with equal parameters but exchanged no gradients.

A program that broadcasts the parameters and then forgets to exchange gradients silently trains
unrelated models. There are as many gradients as parameters, but only a few numbers for metrics. A
job that broadcast parameters and then reduced only a few numbers therefore ends with a warning,
unless the parameters never changed, as in a job that only predicts.
"""

from __future__ import annotations

from collections.abc import Sequence

from farandole.checks.catalogue import MISSING_EXCHANGE, UNREAD_FAILURE
from farandole.checks.finding import Finding
from farandole.checks.reporting import warn
from farandole.core.observe.exchanges import ExchangeCounts
from farandole.job import context


def outcome(size: int, digests: Sequence[int] | None) -> str:
    """Describe the models of ``size`` ranks that exchange nothing. ``digests``: digests of their
    weights after the same number of steps.
    """
    if digests is None:
        return f"{size} separate models, or the same one {size} times if all read the same data"
    if len(set(digests)) == 1:
        return f"the same model on the same data, which repeats the work {size} times"
    return f"{size} unrelated models"


def missing_exchange(counts: ExchangeCounts, size: int) -> Finding | None:
    """Return the finding for a job of ``size`` ranks at its end, or None."""
    if not counts.no_gradients(size) or counts.predicted():
        return None
    what = f"at most {counts.exchanged} numbers at a time" if counts.exchanged else "nothing"
    return MISSING_EXCHANGE.finding(
        f"the {size} ranks of this job began with the same {counts.broadcast_in_all():,}"
        f" parameters, but exchanged no gradients (they exchanged {what}). If the job trains, it"
        f" trained {outcome(size, None)}. Let gradients pass through hvd's DistributedOptimizer,"
        " DistributedGradientTape, DistributedTrainer or hvd.allreduce. If the job only predicts,"
        " ignore this warning"
    )


def at_end(end: context.JobEnd) -> None:
    """Warn about a job without gradients, and about unnoticed failures of asynchronous
    collectives.
    """
    found = missing_exchange(end.exchanges, end.size)
    if found is not None and not end.rank:
        warn(found)
    for failures in end.unread:
        finding = UNREAD_FAILURE.finding(
            f"{len(failures)} asynchronous collective(s) failed and were never synchronized, so"
            " their tensors are unchanged. Call hvd.synchronize(handle) for each handle. The"
            f" first error: {failures[0]}"
        )
        warn(finding)
