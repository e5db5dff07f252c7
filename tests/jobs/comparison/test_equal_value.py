"""The time to an equal value, and the choice of a metric and its direction."""

from __future__ import annotations

import numpy as np
import pytest

from farandole.jobs.comparison.curves import RunCurve
from farandole.jobs.comparison.equal_value import (
    MAXIMIZE,
    MINIMIZE,
    by_relevance,
    equal_value,
    goal_of,
)


def curve(*values: float, seconds: float = 10.0) -> RunCurve:
    count = len(values)
    steps = np.arange(count)
    return RunCurve(steps, (steps + 1) * seconds, np.array(values, dtype=np.float64))


def test_the_best_value_that_all_runs_reach() -> None:
    slow = curve(0.5, 0.7, 0.9, 0.8)
    fast = curve(0.6, 0.85, 0.84, seconds=4.0)
    found = equal_value("val_auc", MAXIMIZE, [slow, fast], [(40.0, 4000.0), (12.0, None)])
    assert found is not None
    assert found.value == 0.85
    assert found.seconds == (30.0, 8.0)
    assert found.steps == (2, 1)
    assert found.best == (0.9, 0.85)
    assert found.samples == (3000.0, None)


def test_a_loss_is_minimized() -> None:
    found = equal_value("val_loss", MINIMIZE, [curve(3, 2, 1), curve(2.5, float("nan"), 1.5)])
    assert found is not None
    assert (found.value, found.steps) == (1.5, (2, 2))
    assert found.to_json()["goal"] == "minimize"


@pytest.mark.parametrize("values", [(), (float("nan"), float("inf"))])
def test_runs_without_values_have_no_equal_value(values: tuple[float, ...]) -> None:
    assert equal_value("auc", MAXIMIZE, [curve(0.5), curve(*values)]) is None
    assert equal_value("auc", MAXIMIZE, []) is None


@pytest.mark.parametrize(
    ("name", "goal"),
    [
        ("val_loss", MINIMIZE),
        ("validation/perplexity", MINIMIZE),
        ("val_mae", MINIMIZE),
        ("val_auc", MAXIMIZE),
        ("Accuracy", MAXIMIZE),
        ("eval/f1", MAXIMIZE),
        ("quality", None),
    ],
)
def test_the_name_shows_the_direction(name: str, goal: str | None) -> None:
    assert goal_of(name) == goal


def test_the_curves_show_the_direction_of_other_names() -> None:
    assert goal_of("quality", [curve(1, 5, 3), curve(0, 1)]) == MAXIMIZE
    assert goal_of("quality", [curve(3, 1)]) == MINIMIZE
    assert goal_of("quality", [curve(3, 1), curve(1, 3)]) is None


def test_validation_metrics_are_chosen_first() -> None:
    names = ["loss", "val_loss", "val_auc", "auc", "val_accuracy", "eval/f1"]
    expected = ["val_auc", "val_accuracy", "eval/f1", "val_loss", "auc", "loss"]
    assert by_relevance(names) == expected


def test_long_curves_keep_their_extremes() -> None:
    values = np.zeros(10_000)
    values[1234], values[8765], values[-1] = 7.0, -7.0, np.nan
    data = RunCurve(np.arange(10_000), np.arange(10_000) * 0.5, values).to_json(points=100)
    assert len(data["step"]) == len(data["seconds"]) == len(data["value"]) <= 100
    assert {7.0, -7.0, 0.0} <= set(data["value"])
    assert data["step"][0] == 0
    assert (data["step"][-1], data["value"][-1]) == (9999, None)


@pytest.mark.parametrize("points", [2, 3, 4, 7, 50])
def test_nan_is_no_extreme_and_points_are_few(points: int) -> None:
    values = np.full(1000, np.nan)
    values[100:900:2] = 9.0
    values[500], values[502] = 5.0, 12.0
    found = RunCurve(np.arange(1000), np.arange(1000.0), values).to_json(points)
    assert 2 <= len(found["value"]) <= points
    finite = [each for each in found["value"] if each is not None]
    assert (points < 4 and not finite) or (min(finite), max(finite)) == (5.0, 12.0)
