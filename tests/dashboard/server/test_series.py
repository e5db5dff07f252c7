"""Curves, reduced to what a screen shows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from farandole.dashboard.server.series import decimate, numbers, within
from farandole.job.runs.home import RunsHome
from tests.kits.written_runs import add_points, waves, written_run

VALUES = st.floats(allow_nan=True, allow_infinity=True, width=32)


@given(st.lists(VALUES, max_size=300), st.integers(2, 50))
def test_each_bucket_keeps_its_extremes(values: list[float], points: int) -> None:
    y = np.array(values, np.float64)
    x = np.arange(len(y)) * 2
    curve = decimate(x, y, points)
    assert curve.total == len(y)
    assert curve.not_finite == sum(not math.isfinite(value) for value in values)
    assert len(curve.x) == len(curve.y) == min(len(y), points)
    if len(y) <= points:
        assert (len(curve.low), len(curve.high)) == (0, 0)
        assert np.array_equal(curve.y, y, equal_nan=True)
        return
    begin = 0
    for place, last in enumerate(curve.x // 2):
        bucket = [value for value in values[begin : last + 1] if math.isfinite(value)]
        assert last >= begin
        assert np.array_equal(curve.y[place], y[last], equal_nan=True)
        if bucket:
            assert (curve.low[place], curve.high[place]) == (min(bucket), max(bucket))
        else:
            assert np.isnan(curve.low[place])
        begin = last + 1
    assert begin == len(y)  # every point is in a bucket


@given(st.lists(st.integers(-50, 50), max_size=60), st.integers(-60, 60), st.integers(0, 60))
def test_a_range_has_its_points_and_one_on_each_side(
    steps: list[int], begin: int, width: int
) -> None:
    x, y = within(np.array(steps, np.int64), np.arange(len(steps)), begin, begin + width)
    ordered = sorted(steps)
    inside = [step for step in ordered if begin <= step <= begin + width]
    before = [step for step in ordered if step < begin][-1:]
    after = [step for step in ordered if step > begin + width][:1]
    assert x.tolist() == [*before, *inside, *after]
    assert [steps[place] for place in y] == x.tolist()


def test_json_has_no_nan() -> None:
    assert numbers(np.array([1.5, np.nan, np.inf, -np.inf, 2.0])) == [1.5, None, None, None, 2.0]


def series(page: TestClient, path: str, **query: Any) -> list[dict[str, Any]]:
    answer = page.get(path, params=query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["series"]
    return found


def test_several_curves_of_several_runs_come_in_one_answer(
    page: TestClient, home: RunsHome
) -> None:
    one = written_run(home, ranks=2, metrics={"loss": waves(1000), "<b>": [1.0, math.nan]})
    add_points(one, {"loss": [5.0]}, rank=1)
    two = written_run(home, metrics={"loss": waves(10)})
    at = f"/api/run/{one.run_id}/series"
    loss = series(page, at, name="loss", points=50)[0]
    assert (loss["total"], len(loss["x"]), loss["x"][-1]) == (1000, 50, 999)
    assert min(loss["min"]) == min(waves(1000))
    both = series(page, at, name=["loss", "<b>"], rank=[0, 1])
    assert [(each["rank"], each["name"], each["total"]) for each in both] == [
        (0, "loss", 1000),
        (0, "<b>", 2),
        (1, "loss", 1),
        (1, "<b>", 0),
    ]
    assert both[1]["y"] == [1.0, None]
    assert [each["name"] for each in series(page, at)] == ["<b>", "loss"]
    zoomed = series(page, at, name="loss", **{"from": 100, "to": 102})[0]
    assert zoomed["x"] == [99, 100, 101, 102, 103]
    timed = series(page, at, name="loss", x="time", to=1001)[0]
    assert timed["x"] == [1000.0, 1001.0, 1002.0]
    runs = series(page, "/api/series", run=[two.run_id, one.run_id], name="loss")
    assert [(each["run"], each["total"]) for each in runs] == [(two.run_id, 10), (one.run_id, 1000)]


@pytest.mark.parametrize(
    "query", ["x=weeks", "points=1", "points=1000000", "rank=one", "from=a", "points=9e9"]
)
def test_a_wrong_request_is_refused(page: TestClient, home: RunsHome, query: str) -> None:
    run = written_run(home, metrics={"loss": [1.0]})
    answer = page.get(f"/api/run/{run.run_id}/series?{query}")
    assert answer.status_code == 400
    assert query.split("=")[1] in answer.json()["error"]
