"""Detection of ranks of one job that train separately and exchange nothing.

The check must not add collective calls to a program that makes none. Each rank therefore stores a
digest of its weights in the job's store, and rank 0 compares the digests.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from time import monotonic

from farandole.checks.catalogue import (
    DISCARDED_RESULTS,
    UNWRAPPED_OPTIMIZER,
    UNWRAPPED_SECOND_OPTIMIZER,
)
from farandole.checks.finding import Finding
from farandole.checks.missing_exchange import outcome
from farandole.checks.reporting import report
from farandole.errors import HorovodInternalError, RendezvousError
from farandole.job import context
from farandole.job.config.rank_variables import RUN_VARIABLE

MOMENT = 2.0  # seconds for other ranks to finish their first epoch
STEPS = 20  # this many steps without an exchange count as training
# Elements of an exchange that may be a gradient. Metrics are smaller, and so are the gradients of
# small models.
_GRADIENT_SIZE = 64


def enough_for_gradients(parameters: int) -> float:
    """Return the size of an exchange that may be a gradient of a model with this number of
    parameters.
    """
    return min(_GRADIENT_SIZE, parameters / 10)


def stored_digests(digest: int, seconds: float = 0.0, subject: str = "") -> list[int] | None:
    """Put ``digest`` into the store. On rank 0, return the digests of all ranks if they arrive
    within ``seconds``; otherwise None.

    Call it once per session for each ``subject``: a second model would replace the first model's
    digest.
    """
    client, rank, size = context.store(), context.rank(), context.size()
    if client is None:
        return None
    scope, until = f"unwrapped/{context.session_id()}{subject}", monotonic() + seconds
    try:
        if rank:
            client.set(f"{scope}/{rank}", f"{digest}".encode())
            return None
        found = [digest]
        for other in range(1, size):
            left = until - monotonic()
            key = f"{scope}/{other}"
            value = client.get(key, left) if left > 0 else client.try_get(key)
            if value is None:
                return None
            found.append(int(value))
    # The digest has not arrived yet, or the store has ended with the job.
    except (HorovodInternalError, RendezvousError):
        return None
    return found


def unwrapped(what: str, size: int, digests: Sequence[int] | None, cure: str) -> Finding:
    """Return the finding that ``size`` ranks did ``what`` and exchanged nothing."""
    text = (
        f"{what} and exchanged nothing, so the {size} ranks of this job train"
        f" {outcome(size, digests)}. To train one model: {cure}"
    )
    return UNWRAPPED_OPTIMIZER.finding(text, cure=cure)


def unwrapped_second(what: str, digests: Sequence[int], cure: str) -> Finding | None:
    """Return the finding that ranks did ``what`` with a plain optimizer next to a distributed one,
    if that made them differ; else None.
    """
    if len(set(digests)) == 1:
        return None
    text = (
        f"{what} and exchanged nothing, although another optimizer is distributed, so each rank"
        f" trains these parameters separately. To train one model: {cure}"
    )
    return UNWRAPPED_SECOND_OPTIMIZER.finding(text, cure=cure)


def discarded_results(what: str, digests: Sequence[int], count: int) -> Finding | None:
    """Return the finding that ranks did ``what`` with ``count`` gradients that they had reduced
    into other tensors, if that made them differ; else None.
    """
    if len(set(digests)) == 1:
        return None
    gradients = "gradient" if count == 1 else "gradients"
    return DISCARDED_RESULTS.finding(
        f"{what}, but each rank trains its own model: hvd.allreduce returned the mean of {count}"
        f" {gradients} as a new tensor and left p.grad, which the optimizer uses, unchanged. Write"
        " p.grad = hvd.allreduce(p.grad), or use hvd.allreduce_(p.grad), which changes it in"
        " place. If ranks are meant to train separately: --check off"
    )


def _record_models(digests: Sequence[int] | None) -> None:
    """Record the number of different models in the run, if this process belongs to a run."""
    if digests is not None and os.environ.get(RUN_VARIABLE):
        # imported here because most jobs leave no run
        from farandole.job.tracking import training

        training.record(models=len(set(digests)))


def report_unwrapped(what: str, digests: Sequence[int] | None, cure: str) -> None:
    """Report on rank 0 that ranks did ``what`` and exchanged nothing, and skip the check at the
    job's end.
    """
    if context.rank() == 0:
        _record_models(digests)
        report(context.engine(), [unwrapped(what, context.size(), digests, cure)])
    context.skip_exchange_check()
