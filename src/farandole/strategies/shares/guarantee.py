"""The message about the exactness of a job with a fixed global batch."""

from __future__ import annotations

from farandole.base.log import logger
from farandole.job import context


def report(total: int, reason: str) -> None:
    """Log, on rank 0, whether the weights are bitwise identical, or the same up to rounding.

    ``total``: the shares of the global batch. ``reason``: the cause of differences in rounding;
    empty if there are none.
    """
    if context.rank():
        return
    sums = f"the global batch is {total} share{'s' if total > 1 else ''} for any number of ranks"
    if reason:
        logger.warning("%s, and the weights are the same up to rounding, because %s", sums, reason)
    else:
        logger.warning("%s, and the weights are the same in all bits", sums)
