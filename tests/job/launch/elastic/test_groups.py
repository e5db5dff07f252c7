"""Process sets in elastic jobs: remaining and new ranks have the same sets in each membership."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

import farandole.numpy as hvd
from farandole.core.api import elastic
from farandole.core.api.state import ObjectState
from farandole.job.elastic.options import ElasticOptions
from tests.job.launch.elastic.training import run_job

pytestmark = pytest.mark.slow


def sums() -> list[list[float]]:
    """Train with a set of the first two ranks, a set of ranks 0 and 2, and a set of the function's
    own. Two of four processes die in the third step.

    Returns, for each step, the size of the job and the sums of ones over the three sets; 0 outside
    a set or without it.
    """
    process = int(os.environ["FARANDOLE_MEMBER"])
    front = hvd.ProcessSet([0, 1])
    hvd.init(process_sets=[front])
    apart = hvd.add_process_set([0, 2])
    state = ObjectState(step=0, seen=[])

    def total(process_set: Any) -> float:
        if process_set.process_set_id is None or not process_set.included():
            return 0.0
        return float(hvd.allreduce(np.ones(1), op=hvd.Sum, process_set=process_set)[0])

    @elastic.run
    def train(state: Any) -> None:
        own = hvd.add_process_set([hvd.size() - 1])
        while state.step < 8:
            if state.step == 2 and process in (1, 2):
                os.kill(os.getpid(), signal.SIGKILL)
            seen = [float(hvd.size()), total(front), total(apart), total(own)]
            seen = [float(each) for each in hvd.allreduce(np.array(seen), op=hvd.Max, name="seen")]
            state.seen = [*state.seen, seen]
            if state.step != 4 or hvd.size() == 4:  # wait for new ranks
                state.step += 1
            state.commit()

    train(state)
    return list(state.seen)


def test_process_sets_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
    options = ElasticOptions(np=4, min_np=2, max_np=4)
    results, _ = run_job(sums, (), options, {"localhost": 4})
    assert all(seen == results[0] for seen in results)
    assert results[0][:2] == [[4.0, 2.0, 2.0, 1.0]] * 2
    assert [2.0, 2.0, 0.0, 1.0] in results[0]
    assert results[0][-3:] == [[4.0, 2.0, 2.0, 1.0]] * 3
