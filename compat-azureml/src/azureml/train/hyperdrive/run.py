"""``HyperDriveRun``: the run that controls a sweep, and its runs."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

from azureml._farandole.definition import FILE
from azureml.core.run import Run
from azureml.exceptions import UserErrorException
from azureml.train.hyperdrive.runconfig import PrimaryMetricGoal as PrimaryMetricGoal
from farandole.job.runs.folder import RunFolder, read_json
from farandole.job.runs.home import RunsHome
from farandole.job.runs.states import RunState
from farandole.jobs.metrics import series
from farandole.jobs.references import listed


class HyperDriveChild(NamedTuple):
    """A run of a sweep.

    - ``hyperparameters``: A JSON object with the values by name.
    - ``best``: The best finite value of the primary metric; None without one.
    """

    folder: RunFolder
    state: RunState
    hyperparameters: str
    best: float | None


class HyperDriveRun(Run):
    """A sweep that was submitted with a ``HyperDriveConfig``."""

    def get_best_run_by_primary_metric(
        self,
        include_failed: bool = True,
        include_canceled: bool = True,
        include_resume_from_runs: bool = False,
    ) -> Run | None:
        """Return the run with the best value of the primary metric so far; None without a value.

        Arguments:
            include_failed: Consider failed runs.
            include_canceled: Consider canceled runs.
            include_resume_from_runs: Not used.
        """
        left_out = {
            *([] if include_failed else [RunState.FAILED]),
            *([] if include_canceled else [RunState.CANCELED]),
        }
        for child in self._sorted():
            if child.best is not None and child.state not in left_out:
                return self._child(child.folder)
        return None

    def get_children_sorted_by_primary_metric(
        self, top: int = 0, reverse: bool = False, discard_no_metric: bool = False
    ) -> list[dict[str, Any]]:
        """Return facts about the runs, best first; runs without a value of the metric come last.

        Arguments:
            top: The number of runs; 0 for all.
            reverse: Return the worst first.
            discard_no_metric: Leave out runs without a value.
        """
        found = self._sorted()
        valued = [child for child in found if child.best is not None]
        others = [] if discard_no_metric else [child for child in found if child.best is None]
        order = [*(valued[::-1] if reverse else valued), *others]
        return [
            {
                "run_id": child.folder.run_id,
                "hyperparameters": child.hyperparameters,
                "best_primary_metric": child.best,
                "status": child.state.value.capitalize(),
            }
            for child in order[: top or None]
        ]

    def get_hyperparameters(self) -> dict[str, str]:
        """Return the hyperparameters of each run as JSON, by the run's id."""
        return {child.folder.run_id: child.hyperparameters for child in self._children()}

    def get_metrics(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the metrics of each run by the run's id.

        The arguments are the arguments of ``Run.get_metrics``.
        """
        return {
            child.folder.run_id: self._child(child.folder).get_metrics(*args, **kwargs)
            for child in self._children()
        }

    def get_details(self) -> dict[str, Any]:
        """Return all facts about the sweep; the properties name the metric and the best run."""
        found = super().get_details()
        best = next((child for child in self._sorted() if child.best is not None), None)
        found["properties"] = {
            **found["properties"],
            "primary_metric_config": json.dumps(self._config()["primary_metric_config"]),
            "resume_from": "null",
            "runTemplate": "HyperDrive",
            "azureml.runsource": "hyperdrive",
            **(
                {
                    "best_child_run_id": best.folder.run_id,
                    "score": str(best.best),
                    "best_metric_status": "Succeeded",
                }
                if best is not None
                else {}
            ),
        }
        return found

    def _config(self) -> dict[str, Any]:
        found = (read_json(self._folder.file(FILE)) or {}).get("hyperDrive")
        if found is None:
            raise UserErrorException(f"run {self.id} was not submitted with a HyperDriveConfig")
        config: dict[str, Any] = found
        return config

    def _child(self, folder: RunFolder) -> Run:
        from azureml._farandole.run_types import run_of

        return run_of(self.experiment, folder)

    def _sorted(self) -> list[HyperDriveChild]:
        """Return the runs, best first; runs without a value of the metric come last."""
        sign = -1.0 if self._config()["primary_metric_config"]["goal"] == "maximize" else 1.0
        return sorted(
            self._children(),
            key=lambda child: math.inf if child.best is None else sign * child.best,
        )

    def _children(self) -> list[HyperDriveChild]:
        """Return the runs of the sweep, oldest first."""
        config = self._config()
        metric = config["primary_metric_config"]
        pick = max if metric["goal"] == "maximize" else min
        names = {name.lstrip("-"): name for name in config["parameter_space"]}
        found = []
        for row in reversed(listed(RunsHome(), "parent = ?", (self.id,))):
            folder = RunFolder(row.path)
            values = [float(each) for each in series(folder, metric["name"])[2]]
            finite = [each for each in values if math.isfinite(each)]
            parameters = folder.spec().parameters
            chosen = {names[key]: value for key, value in parameters.items() if key in names}
            best = pick(finite) if finite else None
            found.append(HyperDriveChild(folder, folder.state(), json.dumps(chosen), best))
        return found
