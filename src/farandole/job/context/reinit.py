"""Leaving and rejoining the job in the middle of training, with the same ranks."""

from __future__ import annotations

import copy

from farandole.job.context import exchanges, process_set, session
from farandole.job.context.lifecycle import init, shutdown


def reinitialize() -> None:
    """Call ``shutdown()`` and ``init()`` with the registered process sets; the program's objects
    stay valid.

    All ranks must call this. The check for exchanged gradients belongs to the job's end and is
    skipped here.
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
