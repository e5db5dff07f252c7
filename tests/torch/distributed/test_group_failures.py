"""Deadlines, and members that leave, stop or die."""

from __future__ import annotations

import os
import re
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests import pool
from tests.kits.messages import mentioning, mentions
from tests.kits.worlds import until
from tests.pool import Died
from tests.torch.distributed.tools import error_of, members

pytest.importorskip("torch")


def left_barrier(rank: int, left: Path) -> str:
    """On 3 ranks: a handler of a signal raises on rank 0, which waits for rank 2; then ``left``
    exists.
    """
    from torch import distributed as dist

    from farandole.torch.distributed import monitored_barrier

    def preempt(number: int, frame: Any) -> None:
        while frame is not None and frame.f_code is not monitored_barrier.__code__:
            frame = frame.f_back
        if frame is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise ValueError("preempted")

    before = signal.signal(signal.SIGALRM, preempt) if rank == 0 else None
    try:
        if rank == 0:
            signal.setitimer(signal.ITIMER_REAL, 0.5, 0.5)
        if rank == 2:
            until(left.exists, "the end of rank 0's wait")
        # longer than a test may take
        text = error_of(lambda: monitored_barrier(timeout=timedelta(seconds=600)))
    finally:
        if rank == 0:
            signal.signal(signal.SIGALRM, before)
            left.touch()
    dist.barrier()
    monitored_barrier()
    return text


def test_a_monitored_barrier_reports_that_rank_0_has_left(tmp_path: Path) -> None:
    """Whether rank 0 left during the barrier or before it; within the timeout."""
    texts = members(3, lambda rank: left_barrier(rank, tmp_path / "left"))
    assert texts[0] == "preempted"
    assert [mentions(text, "ValueError", "barrier") for text in texts] == [
        False,
        True,
        True,
    ]


def barrier_of_a_dead_rank(rank: int) -> str:
    """On 3 ranks."""
    from farandole.torch.distributed import monitored_barrier

    monitored_barrier()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return error_of(lambda: monitored_barrier(timeout=timedelta(seconds=20)))


def test_a_monitored_barrier_reports_a_lost_rank() -> None:
    """Immediately, and not as a timeout."""
    texts = members(3, barrier_of_a_dead_rank, deaths=True)
    assert "Rank 2 failed to pass monitoredBarrier: " in texts[0]
    assert ["timed out" in text or "20000 ms" in text for text in texts[:2]] == [False, False]
    assert texts[2] == Died(-signal.SIGKILL)


def too_late(rank: int, what: str) -> str:
    """On 3 ranks: rank 2 arrives after the others have given up, stops, or is killed."""
    import torch
    from torch import distributed as dist

    aside = dist.new_group()
    pids: list[Any] = [None] * 3
    dist.all_gather_object(pids, os.getpid())
    if what == "killed":
        return error_of(lambda: killed_together(rank))
    dist.barrier()
    dist.group.WORLD.set_timeout(timedelta(seconds=1))
    if rank == 2:
        if what == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)  # until rank 0 has seen it
            return error_of(lambda: dist.all_reduce(torch.ones(4)))
        error_of(lambda: dist.recv(torch.ones(1), 0, group=aside))  # it waits for something else
        return error_of(lambda: dist.all_reduce(torch.ones(4)))
    text = error_of(lambda: dist.all_reduce(torch.ones(4)))
    if rank == 0 and what == "stopped":
        os.kill(pids[2], signal.SIGCONT)
    if rank == 0 and what == "elsewhere":
        dist.send(torch.ones(1), 2, group=aside)
    return text


def killed_together(rank: int) -> None:
    """Rank 2 is killed while others are still in the barrier, or in the next call."""
    import torch
    from torch import distributed as dist

    dist.barrier()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(4))


def names_rank_2(text: str) -> bool:
    """Check that rank 2 is named, with rank 1 if that was late, too."""
    return re.search(r"\branks? (1, )?2\b", text) is not None


@pytest.mark.parametrize("wire", ["auto", "tcp"])
def test_a_rank_that_does_not_come_is_named_on_all(wire: str) -> None:
    texts = members(3, lambda rank: too_late(rank, "elsewhere"), wire=wire)
    for text in texts:
        # on rank 2 too: it gets no result that the others do not have
        assert names_rank_2(text), texts
    stands = (" is at:\n", f"    {__file__}, line ", "error_of(lambda: dist.")
    is_named = any(all(part in text for part in stands) for text in texts)
    # on a machine that is too busy
    assert is_named or any("does not answer" in text for text in texts), texts
    first, second, died = members(3, lambda rank: too_late(rank, "killed"), wire=wire, deaths=True)
    assert isinstance(died, Died)
    assert "rank 2" in first
    assert "rank 2" in second


def without_rank_0(rank: int) -> None:
    """Rank 1 of 3 connects to a store without rank 0."""
    from torch import distributed as dist

    from farandole.errors import RendezvousError
    from farandole.torch.distributed import rendezvous

    store = dist.HashStore()
    with pytest.raises(
        RendezvousError, match=mentioning("members 0", "3", "0.2", "group")
    ) as caught:
        rendezvous.meet(store, 1, 3, 0.2)
    assert caught.value.missing == (0,)


def test_rank_0_that_does_not_come_is_named() -> None:
    pool.spread(1, without_rank_0)


@pytest.mark.slow
def test_a_rank_that_stopped_is_named() -> None:
    texts = members(3, lambda rank: too_late(rank, "stopped"))[:2]
    assert all(names_rank_2(text) for text in texts), texts
    # it may be asked before it stops
    assert any(" is stopped" in text or " is at:\n" in text for text in texts), texts
