"""The same ranks, initialised anew in the middle of training."""

from __future__ import annotations

import copy

from farandole.job import context


def init_again() -> None:
    """``shutdown()`` and ``init()``, with the process sets that are registered: the program's
    objects stay valid. All ranks must call this. Whether a job learns is asked when it ends, and
    this is not its end.
    """
    counts = context.exchange_counts()
    so_far = copy.copy(counts)
    counts.skipped = True
    dynamic = context.settings().dynamic_process_sets
    sets = sorted(context._registered, key=lambda each: each.process_set_id or 0)
    context.shutdown()
    context.init(process_sets="dynamic" if dynamic else None)
    context.exchange_counts().continue_from(so_far)
    for process_set in sets:
        context._add(process_set)
