"""The mirror ``mlflow``: an MLflow run with the same metrics, parameters, tags and outputs.

``MLFLOW_TRACKING_URI`` and MLflow's other variables choose the server, as for any program. Without
them, all runs go to ``mlflow.db`` in Farandole's home, or to ``mlruns`` without SQLAlchemy.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from farandole.errors import RunError
from farandole.job.runs.folder import RunFolder
from farandole.job.runs.home import RunsHome
from farandole.job.runs.states import RunState
from farandole.jobs.mirrors.contract import Point

_BATCH = 1000  # metrics per request: MLflow's limit
_PARAMETERS = 100  # parameters per request: MLflow's limit
_LONGEST = 500  # the longest parameter value, in characters, that all MLflow stores accept
_STATUS = {
    RunState.COMPLETED: "FINISHED",
    RunState.FAILED: "FAILED",
    RunState.CANCELED: "KILLED",
}


class MlflowMirror:
    """An MLflow run: a new one, or the run that ``MLFLOW_RUN_ID`` names."""

    name: ClassVar[str] = "mlflow"

    def __init__(self, folder: RunFolder, state: Mapping[str, Any]) -> None:
        os.environ.setdefault("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "false")
        try:
            import mlflow
        except ImportError as error:
            raise RunError(
                f"the mirror mlflow needs MLflow ({error}): pip install mlflow"
            ) from None
        self._folder = folder
        own = not (os.environ.get("MLFLOW_TRACKING_URI") or os.environ.get("DATABRICKS_HOST"))
        self._home = RunsHome() if own else None
        uri = _uri_in(self._home.path) if self._home else None
        self._client = mlflow.MlflowClient(tracking_uri=uri)
        self._known: set[str] = set(state.get("params", ()))
        self._run_id: str = state.get("run_id") or os.environ.get("MLFLOW_RUN_ID") or self._new()

    def _new(self) -> str:
        spec, submitted = self._folder.spec(), self._folder.submitted()
        git = submitted.get("git", {})
        tags = {
            "farandole.run_id": self._folder.run_id,
            "farandole.folder": self._folder.path,
            "mlflow.user": submitted["user"],
            "mlflow.source.name": " ".join(spec.command) or "a function",
            "mlflow.source.type": "JOB",
            "mlflow.source.git.commit": git.get("commit", ""),
            "mlflow.source.git.branch": git.get("branch", ""),
            "mlflow.source.git.repoURL": git.get("remote", ""),
            **spec.tags,
        }
        run = self._client.create_run(
            self._experiment(spec.experiment),
            start_time=int(submitted["time"] * 1000),
            tags={name: value for name, value in tags.items() if value},
            run_name=spec.name or self._folder.run_id,
        )
        self._run_id = run.info.run_id
        self.params(spec.parameters)
        return self._run_id

    def _experiment(self, name: str) -> str:
        """Return the id of the experiment; create the experiment if there is none."""
        if found := os.environ.get("MLFLOW_EXPERIMENT_ID"):
            return found
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or name
        place = f"file://{self._home.path}/mlflow-artifacts" if self._home else None
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        return str(self._client.create_experiment(name, artifact_location=place))

    def state(self) -> Mapping[str, Any]:
        return {"run_id": self._run_id, "params": sorted(self._known)}

    def points(self, points: Sequence[Point]) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(_key(each.name), each.value, int(each.time * 1000), each.step) for each in points
        ]
        for start in range(0, len(metrics), _BATCH):
            self._client.log_batch(self._run_id, metrics=metrics[start : start + _BATCH])

    def params(self, values: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        # MLflow does not allow changes of a parameter, so the first value is kept.
        new = {name: value for name, value in values.items() if name not in self._known}
        params = [Param(_key(name), str(value)[:_LONGEST]) for name, value in new.items()]
        for start in range(0, len(params), _PARAMETERS):
            self._client.log_batch(self._run_id, params=params[start : start + _PARAMETERS])
        self._known |= new.keys()

    def end(self, state: RunState) -> None:
        outputs = self._folder.file("outputs")
        if os.path.isdir(outputs) and os.listdir(outputs):
            self._client.log_artifacts(self._run_id, outputs)
        end = self._folder.end() or {}
        if end.get("cause"):
            self._client.set_tag(self._run_id, "farandole.cause", end["cause"][:_LONGEST])
        self._client.set_terminated(
            self._run_id, _STATUS[state], end_time=int(end.get("time", 0) * 1000) or None
        )


def _uri_in(home: str) -> str:
    """Return the URI of a store in Farandole's home: a database, or a folder for mlflow-skinny."""
    if importlib.util.find_spec("sqlalchemy") is not None:
        return f"sqlite:///{home}/mlflow.db"
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    return f"file://{home}/mlruns"


def _key(name: str) -> str:
    """Return a name with ``_`` for each character that MLflow does not accept."""
    return re.sub(r"[^\w\-. /]", "_", name)[:250]
