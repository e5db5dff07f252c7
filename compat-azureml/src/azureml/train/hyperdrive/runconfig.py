"""``HyperDriveConfig``: a script, the hyperparameters to try, and the metric that decides."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from enum import Enum
from typing import Any

from azureml._farandole.errors import raised_as
from azureml._farandole.texts import notice
from azureml.exceptions import HyperDriveConfigException, UserErrorException
from azureml.train.hyperdrive.policy import EarlyTerminationPolicy, NoTerminationPolicy
from azureml.train.hyperdrive.sampling import HyperParameterSampling
from farandole.job.runs.home import RunsHome
from farandole.jobs.sweeps.sweep import Sweep

HYPERDRIVE = "hyperdrive"
_MOST = 1000
_MINUTES = 10080  # a week


class PrimaryMetricGoal(Enum):
    """The direction of the primary metric: larger or smaller values are better."""

    MAXIMIZE = "MAXIMIZE"
    MINIMIZE = "MINIMIZE"

    @staticmethod
    def from_str(goal: str) -> PrimaryMetricGoal:
        """Return the goal for ``maximize`` or ``minimize``."""
        return PrimaryMetricGoal[goal.upper()]


class HyperDriveConfig:
    """The configuration of a sweep, for ``Experiment.submit``."""

    def __init__(
        self,
        hyperparameter_sampling: HyperParameterSampling,
        primary_metric_name: str,
        primary_metric_goal: PrimaryMetricGoal,
        max_total_runs: int,
        max_concurrent_runs: int | None = None,
        max_duration_minutes: int = _MINUTES,
        policy: EarlyTerminationPolicy | None = None,
        estimator: Any = None,
        run_config: Any = None,
        resume_from: Any = None,
        resume_child_runs: Any = None,
        pipeline: Any = None,
        debug_flag: Any = None,
    ) -> None:
        """Configure a sweep.

        Arguments:
            hyperparameter_sampling: The hyperparameters and the choice of their values.
            primary_metric_name: A name that the script gives to ``run.log``.
            primary_metric_goal: Whether larger or smaller values are better.
            max_total_runs: The number of runs, 1 to 1000.
            max_concurrent_runs: The largest number of active runs; by default all.
            max_duration_minutes: Minutes after which active runs are canceled, 1 to 43200.
            policy: Ends unpromising runs; by default none.
            run_config: The ``ScriptRunConfig`` of the script. A value reaches the script as
                ``--name value``.

        Raises HyperDriveConfigException for a value out of its range, or for ``estimator``,
        ``pipeline``, ``resume_from`` and ``resume_child_runs``, which are not supported.
        """
        given = {
            "estimator": estimator,
            "pipeline": pipeline,
            "resume_from": resume_from,
            "resume_child_runs": resume_child_runs,
        }
        for name, value in given.items():
            if value is not None:
                raise HyperDriveConfigException(
                    f"HyperDriveConfig({name}=...) is not supported; pass a ScriptRunConfig as"
                    " run_config"
                )
        if not hasattr(run_config, "_submit"):
            raise HyperDriveConfigException(
                f"run_config={run_config!r} of a HyperDriveConfig must be a ScriptRunConfig"
            )
        if not isinstance(primary_metric_goal, PrimaryMetricGoal):
            raise HyperDriveConfigException(
                f"primary_metric_goal={primary_metric_goal!r} must be PrimaryMetricGoal.MAXIMIZE or"
                " PrimaryMetricGoal.MINIMIZE"
            )
        concurrent = max_total_runs if max_concurrent_runs is None else max_concurrent_runs
        _check("max_total_runs", max_total_runs, _MOST)
        _check("max_concurrent_runs", concurrent, max_total_runs)
        _check("max_duration_minutes", max_duration_minutes, 43200)
        self._sampling = hyperparameter_sampling
        self._primary_metric_name = primary_metric_name
        self._goal = primary_metric_goal
        self._max_total_runs = max_total_runs
        self._max_concurrent_runs = concurrent
        self._max_duration_minutes = max_duration_minutes
        self._policy = policy or NoTerminationPolicy()
        self.run_config = run_config

    @property
    def estimator(self) -> None:
        """None: estimators are not supported."""

    def _submit(self, experiment: Any, tags: Mapping[str, str], parent: str) -> Any:
        """Submit the run that controls the sweep and return it.

        Raises UserErrorException or SnapshotException for a request that cannot succeed.
        """
        from azureml._farandole import submission

        run_id = RunsHome().new_id(experiment.name)
        script = submission.request_of(self.run_config, experiment, run_id, tags)
        if self.run_config.run_config.output_data or script.facts["outputs"]:
            notice("all runs of a sweep write to the same folder of an OutputFileDatasetConfig")
        maximize = self._goal is PrimaryMetricGoal.MAXIMIZE
        with raised_as(UserErrorException):
            made = Sweep(
                script.request,
                self._sampling._space(),
                self._primary_metric_name,
                "maximize" if maximize else "minimize",
                self._sampling._search(maximize),
                self._max_total_runs,
                self._max_concurrent_runs,
                self._policy._policy,
                self._seed(),
                self._max_duration_minutes * 60.0,
            ).submission(experiment.name)
        facts = {**script.facts, "type": HYPERDRIVE, "hyperDrive": self._facts()}
        return submission.send(made, experiment, facts, run_id=run_id, parent=parent)

    def _seed(self) -> int:
        properties = self._sampling.properties or {}
        return int(properties.get("seed", secrets.randbelow(2**31)))

    def _facts(self) -> dict[str, Any]:
        """Return the configuration as plain data, for the properties of the run."""
        return {
            "name": self._sampling._NAME,
            "parameter_space": self._sampling.parameter_space,
            "primary_metric_config": {
                "name": self._primary_metric_name,
                "goal": self._goal.value.lower(),
            },
            "max_total_jobs": self._max_total_runs,
            "max_concurrent_jobs": self._max_concurrent_runs,
            "max_duration_minutes": self._max_duration_minutes,
            "policy": self._policy.POLICY_NAME,
        }


def _check(name: str, value: Any, most: int) -> None:
    if not isinstance(value, int) or not 1 <= value <= most:
        raise HyperDriveConfigException(f"{name}={value!r} must be a whole number from 1 to {most}")
