"""Random kills of an elastic job's ranks: a short part of ``benchmarks.elastic.chaos``."""

from __future__ import annotations

import pytest

from benchmarks.elastic.chaos import Line, faults_of, lost_pushes, trial

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
