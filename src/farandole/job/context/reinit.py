"""Leaving and rejoining the job during training, with the same or other ranks."""

from __future__ import annotations

import copy

from farandole.job.context import exchanges, process_set, session
from farandole.job.context.lifecycle import init, shutdown


def reinitialize() -> None:
    """Call ``shutdown()`` and ``init()``, and register the process sets again; objects of the
    program stay valid.

    All ranks must call this. In an elastic job, this process gets its place in the next membership,
    and a process set with a missing rank is skipped, with a warning, until that rank exists. The
    check for exchanged gradients belongs to the job's end and is skipped here.

    Raises HorovodInternalError if a rank is lost during the call, and SystemExit with code 0 if
    this process has been removed from the job.
    """
    counts = exchanges.exchange_counts()
    so_far = copy.copy(counts)
    counts.skipped = True
    dynamic = session.settings().dynamic_process_sets
    kept = process_set.kept()
    shutdown()
    process_set.keep(kept)  # also for the next attempt if this one fails
    init(process_sets="dynamic" if dynamic else None)
    exchanges.exchange_counts().continue_from(so_far)
    process_set.register_again()
