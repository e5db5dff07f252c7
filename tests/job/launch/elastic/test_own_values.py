"""Values that differ between the ranks of an elastic job outlive their rank."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import farandole.numpy as hvd
from farandole.core.api import elastic
from farandole.core.api.state import ObjectState
from farandole.job.elastic.options import ElasticOptions
from tests.job.launch.elastic.training import run_job

pytestmark = pytest.mark.slow

STEPS = 12


class Found(NamedTuple):
    """The values of a rank at the end, and the lost ranks that it has seen."""

    process: int
    seen: list[tuple[int, int]]
    counted: float
    lost: list[tuple[int, int]]


def train(folder: str, victims: list[int], merges: bool) -> Found:
    """Record each step, with the process, in a value of the rank; ``victims`` die in step 5."""
    process = int(os.environ["FARANDOLE_MEMBER"])
    hvd.init()
    state: Any = ObjectState(step=0, seen=[], counted=0.0)
    state.register_per_rank("seen", (lambda own, lost: own + lost) if merges else None)
    state.register_per_rank("counted", (lambda own, lost: own + lost) if merges else None)
    lost: list[tuple[int, int]] = []

    @elastic.run
    def steps(state: Any) -> None:
        lost.extend((each.process, each.commit) for each in state.lost_ranks)
        while state.step < STEPS:
            share = 1.0 / hvd.size()
            hvd.allreduce(np.zeros(1), name="step")
            if process in victims and state.step == 5:
                Path(folder, f"{process}").write_text(json.dumps(state.seen))
                os.kill(os.getpid(), signal.SIGKILL)
            state.seen = [*state.seen, (state.step, process)]
            state.counted += share
            state.step += 1
            state.commit()

    steps(state)
    return Found(process, state.seen, state.counted, lost)


def steps_of(process: int, begin: int, end: int) -> list[tuple[int, int]]:
    return [(step, process) for step in range(begin, end)]


def test_lost_values_are_merged_once(tmp_path: Path) -> None:
    options = ElasticOptions(np=4, min_np=1)
    hosts = {"localhost": 2, "127.0.0.1": 2}
    results, _ = run_job(train, (str(tmp_path), [2, 3], True), options, hosts)
    everything = sorted(each for result in results for each in result.seen)
    found = {each: [step for step, process in everything if process == each] for each in range(4)}
    assert (found[0], found[1]) == (list(range(STEPS)), list(range(STEPS)))
    for process in (2, 3):
        committed = len(json.loads((tmp_path / str(process)).read_text()))
        # The copy of the last commit may not have been complete.
        assert found[process] in (list(range(committed)), list(range(committed - 1)))
    assert {tuple(process for process, _ in result.lost) for result in results} == {(2, 3)}


def test_a_new_rank_takes_over_the_values_of_a_lost_one(tmp_path: Path) -> None:
    options = ElasticOptions(np=2, min_np=2)
    results, _ = run_job(train, (str(tmp_path), [1], False), options, {"localhost": 2})
    replaced = next(each for each in results if each.process == 2)
    steps = [step for step, process in replaced.seen if process == 1]
    assert steps in (list(range(4)), list(range(5)))
    assert [process for _, process in replaced.seen if process not in (1, 2)] == []
    kept = next(each for each in results if each.process == 0)
    assert kept.seen == steps_of(0, 0, STEPS)
    assert kept.lost == replaced.lost == [(1, len(steps))]
