"""Random kills of an elastic job's ranks: a short part of ``benchmarks.elastic.chaos``."""

from __future__ import annotations

import math

import pytest

from benchmarks.elastic.chaos import Line, faults_of, kept_throughput, lost_pushes, trial

pytestmark = pytest.mark.slow


def test_no_committed_step_is_lost() -> None:
    found = trial(kills=5, framework="numpy", ranks=3, interval=0.8, seed=1)
    assert found.faults == []
    assert found.kills == 5
    assert found.memberships > 5


@pytest.mark.parametrize("strategy", ["ps", "ssp:3"])
def test_no_acknowledged_push_is_lost(strategy: str) -> None:
    """Ranks and servers are killed."""
    found = trial(kills=4, framework="numpy", ranks=3, interval=2.0, seed=2, strategy=strategy)
    assert found.faults == []
    assert found.kills == 4


def test_faults_are_found() -> None:
    lines = [
        Line("commit", 1.0, 1, rank=0, size=2, process=0),
        Line("commit", 2.0, 2, rank=0, size=2, process=0),
        Line("begin", 3.0, 1, rank=0, size=1, process=1),
        Line("end:3.0", 4.0, 2, rank=0, size=1, process=1),
    ]
    assert len(list(faults_of(lines))) == 2
    assert list(faults_of(lines[:2])) != []
    assert list(faults_of([lines[0], lines[3]._replace(what="end:2.0")])) == []
    pushes = [lines[0]._replace(what="push")] * 3
    assert list(lost_pushes([*pushes, lines[3]], 0)) == []
    assert list(lost_pushes([*pushes, lines[3]._replace(what="end:2.0")], 1)) != []
    assert list(lost_pushes([*pushes, lines[3]._replace(what="end:5.0")], 1)) != []


def test_throughput_counts_the_time_after_kills() -> None:
    """A step takes 0.1 s, and 2 s are lost after a kill: 199 steps in 21.8 s."""
    calm = [Line("commit", 0.1 * step, step, 0, 2, 0) for step in range(201)]
    later = [Line("commit", 22 + 0.1 * step, 201 + step, 0, 2, 0) for step in range(199)]
    assert math.isclose(kept_throughput([*calm, *later], [20.0], calm=2.5), 199 / 218, rel_tol=0.02)
    assert math.isnan(kept_throughput([*calm, *later], [0.1 * step for step in range(400)]))
