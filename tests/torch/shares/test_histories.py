"""Random losses and joins: a short part of ``benchmarks.elastic.exactness``."""

from __future__ import annotations

import pytest

from benchmarks.elastic.exactness import trial

pytest.importorskip("torch", reason="torch is not installed")


@pytest.mark.slow
def test_disturbed_trainings_end_with_the_undisturbed_weights() -> None:
    found = trial(3, seed=2)
    assert found.faults == []
    assert found.disturbed >= 3
    assert found.kills >= 2
