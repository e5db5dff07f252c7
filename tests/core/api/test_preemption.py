"""The agreement of ranks on signals that ask them to end."""

from __future__ import annotations

import os
import signal

import pytest

from farandole.core.api import preemption
from farandole.core.api.preemption import Preemption, preempted
from farandole.errors import NotInitializedError
from tests.run_job import job


def test_one_rank_is_asked_and_all_answer() -> None:
    def train(rank: int) -> list[bool]:
        found = [preempted()]
        try:
            if rank == 1:
                signal.raise_signal(signal.SIGUSR1)
            return [*found, preempted(), preempted()]
        finally:  # this process runs other tests, too
            preemption._preemption.restore()
            preemption._preemption = Preemption()

    assert job(3, train, wire="shm") == [[False, True, True]] * 3


def test_outside_a_job() -> None:
    with pytest.raises(NotInitializedError):
        preempted()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_the_programs_own_handler_still_runs(number: signal.Signals) -> None:
    seen: list[int] = []
    before = signal.signal(number, lambda number, _: seen.append(number))
    watched = Preemption()
    try:
        watched.watch()
        watched.watch()
        assert not watched.received
        signal.raise_signal(number)
        assert watched.received
        assert seen == [number]
    finally:
        watched.restore()
        assert signal.getsignal(number) not in (signal.SIG_DFL, before)
        signal.signal(number, before)


def test_a_forked_process_ends_by_the_signal() -> None:
    """Such as a data loader's worker."""
    watched = Preemption()
    watched.watch()
    try:
        pid = os.fork()
        if pid == 0:
            signal.raise_signal(signal.SIGTERM)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM
    finally:
        watched.restore()
