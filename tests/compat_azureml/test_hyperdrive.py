"""HyperDrive's configuration as a sweep, and the results of a sweep."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from azureml.core import Experiment, Run, ScriptRunConfig, Workspace
from azureml.exceptions import HyperDriveConfigException
from azureml.train.hyperdrive import (
    BanditPolicy,
    BayesianParameterSampling,
    GridParameterSampling,
    HyperDriveConfig,
    HyperDriveRun,
    MedianStoppingPolicy,
    NoTerminationPolicy,
    PrimaryMetricGoal,
    RandomParameterSampling,
    TruncationSelectionPolicy,
    choice,
    lognormal,
    loguniform,
    normal,
    qlognormal,
    qloguniform,
    qnormal,
    quniform,
    randint,
    uniform,
)

from farandole.job.runs.folder import RunFolder
from farandole.job.runs.home import RunsHome
from farandole.job.runs.spec import RunSpec
from farandole.job.runs.states import RunState
from farandole.job.tracking.tracker import Tracker
from farandole.jobs import spool
from farandole.jobs.submission import write_request
from farandole.jobs.sweeps.policies import Bandit, MedianStopping, NoPolicy, Truncation
from tests.compat_azureml.data import write
from tests.kits.messages import mentioning


@pytest.fixture
def script(home: RunsHome, tmp_path: Path) -> ScriptRunConfig:
    write(tmp_path / "train.py", "")
    return ScriptRunConfig(str(tmp_path), "train.py", ["--epochs", 3])


def config(script: ScriptRunConfig, **changed: Any) -> HyperDriveConfig:
    options: dict[str, Any] = {
        "hyperparameter_sampling": RandomParameterSampling({"--lr": loguniform(-6, -1)}),
        "primary_metric_name": "accuracy",
        "primary_metric_goal": PrimaryMetricGoal.MAXIMIZE,
        "max_total_runs": 4,
        "run_config": script,
    }
    return HyperDriveConfig(**{**options, **changed})


def test_expressions_are_distributions() -> None:
    sampling = RandomParameterSampling(
        {
            "--a": choice(1, 2),
            "b": choice(range(3)),
            "c": choice(["x", "y"]),
            "--d-e": loguniform(-6, -1),
            "f": qloguniform(0, 2, 0.5),
            "g": normal(0, 1),
            "h": qnormal(0, 1, 2),
            "i": lognormal(0, 1),
            "j": qlognormal(0, 1, 2),
            "k": randint(4),
            "l": uniform(0, 1),
            "m": quniform(0, 1, 0.25),
        }
    )
    space = sampling._space()
    assert list(space)[:4] == ["a", "b", "c", "d-e"]
    assert space["a"].choices() == (1, 2)
    assert space["b"].choices() == (0, 1, 2)
    assert space["d-e"].arguments == (math.exp(-6), math.exp(-1))
    assert choice(1, 2) == ["choice", [[1, 2]]]
    assert uniform(0, 1) == ["uniform", [0, 1]]


@pytest.mark.parametrize(
    ("kind", "space", "value"),
    [
        (RandomParameterSampling, {"lr": uniform(1, 0)}, "'lr'"),
        (RandomParameterSampling, {"lr": 3}, "'lr'"),
        (RandomParameterSampling, {}, "{}"),
        (GridParameterSampling, {"lr": uniform(0, 1)}, "'lr'"),
        (BayesianParameterSampling, {"lr": normal(0, 1)}, "'lr'"),
    ],
)
def test_a_space_cannot_be(kind: Any, space: dict[str, Any], value: str) -> None:
    with pytest.raises(HyperDriveConfigException, match=mentioning(value)):
        kind(space)


def test_policies_are_those_of_sweeps() -> None:
    assert BanditPolicy(1, slack_factor=0.1, delay_evaluation=5)._policy == Bandit(0.1, 0.0, 1, 5)
    assert MedianStoppingPolicy(2)._policy == MedianStopping(2, 0)
    assert TruncationSelectionPolicy(20)._policy == Truncation(20)
    assert NoTerminationPolicy()._policy == NoPolicy()
    with pytest.raises(HyperDriveConfigException, match=mentioning("BanditPolicy", "slack_factor")):
        BanditPolicy(slack_factor=0.1, slack_amount=0.2)


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"estimator": object()}, "estimator"),
        ({"resume_from": object()}, "resume_from"),
        ({"run_config": None}, "run_config=None"),
        ({"primary_metric_goal": "max"}, "'max'"),
        ({"max_total_runs": 0}, "max_total_runs=0"),
        ({"max_concurrent_runs": 5}, "max_concurrent_runs=5"),
        ({"max_duration_minutes": 0.5}, "max_duration_minutes=0.5"),
    ],
)
def test_a_config_cannot_be(script: ScriptRunConfig, options: dict[str, Any], value: str) -> None:
    with pytest.raises(HyperDriveConfigException, match=mentioning(value)):
        config(script, **options)


def test_bayesian_values_are_random_without_optuna(
    script: ScriptRunConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    sampling = BayesianParameterSampling({"lr": uniform(0, 1)})
    assert sampling._search(True) == "random"
    assert sampling._search(True) == "random"
    assert [("optuna" in line) for line in capsys.readouterr().err.splitlines()] == [True]


def test_bayesian_values_come_from_optuna(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "optuna" / "__init__.py", "def create_study(direction): return direction")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "optuna", raising=False)
    sampling = BayesianParameterSampling({"lr": uniform(0, 1)})
    assert (sampling._search(True), sampling._search(False)) == ("maximize", "minimize")
    monkeypatch.delitem(sys.modules, "optuna")


def child(home: RunsHome, parent: str, rate: float, values: list[float], state: RunState) -> str:
    """Make an ended run of a sweep, and return its id."""
    run_id = home.new_id("sweeps")
    folder = RunFolder(str(Path(home.runs, "sweeps", run_id)))
    folder.folder(".")
    spec = RunSpec("sweeps", ("python", "train.py"), parent=parent, parameters={"lr": rate})
    write_request(folder, spec, home, source="", tracked=True)
    tracker = Tracker(folder, 0)
    for value in values:
        tracker.scalars({"accuracy": value})
    tracker.close()
    folder.record("state", state=RunState.RUNNING.value)
    folder.finish(state, cause="", exit_code=0)
    spool.add(home, folder)
    return run_id


def test_the_best_run_and_the_order(home: RunsHome, script: ScriptRunConfig) -> None:
    experiment = Experiment(Workspace.from_config(), "sweeps")
    run = experiment.submit(config(script))
    run.cancel()
    assert "best_child_run_id" not in run.get_properties()
    good = child(home, run.id, 0.1, [0.5, 0.9, 0.8], RunState.COMPLETED)
    stopped = child(home, run.id, 0.2, [0.95], RunState.CANCELED)
    none = child(home, run.id, 0.3, [math.nan], RunState.FAILED)
    assert isinstance(run, HyperDriveRun)
    assert isinstance(Run.get(experiment.workspace, run.id), HyperDriveRun)
    best = run.get_best_run_by_primary_metric()
    assert best is not None
    assert best.id == stopped
    completed = run.get_best_run_by_primary_metric(include_canceled=False)
    assert completed is not None
    assert completed.id == good
    ordered = run.get_children_sorted_by_primary_metric()
    assert [each["run_id"] for each in ordered] == [stopped, good, none]
    assert ordered[1] == {
        "run_id": good,
        "hyperparameters": json.dumps({"--lr": 0.1}),
        "best_primary_metric": 0.9,
        "status": "Completed",
    }
    worst = run.get_children_sorted_by_primary_metric(1, reverse=True, discard_no_metric=True)
    assert [each["run_id"] for each in worst] == [good]
    assert run.get_hyperparameters()[stopped] == json.dumps({"--lr": 0.2})
    assert run.get_metrics()[good]["accuracy"] == [0.5, 0.9, 0.8]
    assert run.get_details()["runDefinition"]["arguments"] == ["--epochs", "3"]
    properties = run.get_properties()
    assert (properties["best_child_run_id"], properties["score"]) == (stopped, "0.95")
    assert json.loads(properties["primary_metric_config"])["name"] == "accuracy"
