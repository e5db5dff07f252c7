"""Benchmarks of jobs: submission, queue, tracking."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.samples import Case


def cases(quick: bool = False) -> Iterator[Case | str]:
    """Yield the costs of the queue, then of tracking."""
    from benchmarks.jobs import queue, tracking

    yield from queue.cases(quick)
    yield from tracking.cases(quick)
