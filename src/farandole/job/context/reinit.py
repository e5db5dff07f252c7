"""Leaving the job and joining it again in the middle of training, with the same ranks."""

from __future__ import annotations

import copy

from farandole.job.context import exchanges, process_set, session
from farandole.job.context.lifecycle import init, shutdown


def reinitialize() -> None:
    """``shutdown()`` and ``init()``, with the process sets that are registered: the program's
    objects stay valid. All ranks must call this. Whether a job learns is asked when it ends, and
    this is not its end.
    """
    counts = exchanges.exchange_counts()
    so_far = copy.copy(counts)
    counts.skipped = True
    dynamic = session.settings().dynamic_process_sets
    process_sets = process_set.registered()
    shutdown()
    init(process_sets="dynamic" if dynamic else None)
    exchanges.exchange_counts().continue_from(so_far)
    for each in process_sets:
        process_set.register(each)
