"""Runs, inside and outside of their programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from azureml._farandole import details, journal, run_types
from azureml._farandole.context import context_experiment, context_folder, fail_at_exit
from azureml._farandole.errors import raised_as
from azureml._farandole.filters import has_tags
from azureml._farandole.offline import _OfflineRun as _OfflineRun
from azureml._farandole.pages import as_table, run_url
from azureml._farandole.run_data import RunData
from azureml._farandole.status import status_of
from azureml._farandole.stored import RunChanges
from azureml.core.experiment import Experiment
from azureml.core.workspace import Workspace
from azureml.exceptions import RunEnvironmentException, UserErrorException
from farandole.job.runs.folder import CANCEL, RunFolder
from farandole.job.runs.home import RunsHome
from farandole.job.runs.states import RunState
from farandole.jobs.references import listed
from farandole.jobs.supervisor.wake import ensure_running

List = list  # ``Run.list`` hides the type within the class


class Run(RunData):
    """A run of Farandole under the SDK's names.

    ``Run(experiment, run_id)`` opens a run, from any process of the user: the folder of the run
    holds all its data.
    """

    def __init__(self, experiment: Experiment, run_id: str, **kwargs: Any) -> None:
        """Open the run ``run_id``. Raises UserErrorException if there is none."""
        folder = RunsHome().find(run_id)
        if folder is None:
            raise UserErrorException(f"there is no run {run_id!r}; farandole runs lists all runs")
        self._experiment = experiment
        self._run_folder = folder

    @classmethod
    def _opened(cls, experiment: Experiment, folder: RunFolder) -> Run:
        """Return the run in a folder. On other hosts, the folder of a rank's run has no spec."""
        made = cls.__new__(cls)
        made._experiment, made._run_folder = experiment, folder
        return made

    @property
    def _folder(self) -> RunFolder:
        return self._run_folder

    # --- finding runs

    @staticmethod
    def get_context(allow_offline: bool = True, **kwargs: Any) -> Any:
        """Return the run of this process.

        Outside of a run, return a run that prints what the program records; with
        ``allow_offline=False``, raise RunEnvironmentException.
        """
        folder = context_folder()
        if folder is not None:
            return _SubmittedRun._opened(context_experiment(folder), folder)
        if not allow_offline:
            raise RunEnvironmentException()
        return _OfflineRun()

    @staticmethod
    def get(workspace: Workspace, run_id: str) -> Any:
        """Return the run ``run_id``. Raises UserErrorException if there is none."""
        folder = RunsHome().find(run_id)
        if folder is None:
            raise UserErrorException(f"there is no run {run_id!r}; farandole runs lists all runs")
        return run_types.run_of(_experiment_of(workspace, folder.spec().experiment), folder)

    @staticmethod
    def list(
        experiment: Experiment,
        type: str | None = None,
        tags: Any = None,
        properties: Any = None,
        status: str | None = None,
        include_children: bool = False,
    ) -> Iterator[Any]:
        """Yield the runs of an experiment, newest first; the filters as for ``get_runs``."""
        where = "experiment = ?" if include_children else "experiment = ? and parent = ''"
        for row in listed(RunsHome(), where, (experiment.name,)):
            run = run_types.run_of(experiment, RunFolder(row.path))
            if _matches(run, type, tags, properties, status):
                yield run

    @staticmethod
    def list_by_compute(
        compute: Any,
        type: str | None = None,
        tags: Any = None,
        properties: Any = None,
        status: str | None = None,
    ) -> Iterator[Any]:
        """Yield the runs of a compute target, newest first; the filters as for ``get_runs``."""
        for row in listed(RunsHome(), "target = ?", (compute.name,)):
            run = Run.get(compute.workspace, row.run_id)
            if _matches(run, type, tags, properties, status):
                yield run

    @staticmethod
    def add_type_provider(runtype: str, run_factory: Callable[[Experiment, Any], Any]) -> None:
        """Let ``run_factory(experiment, details)`` make the runs of a type."""
        run_types.providers[runtype] = run_factory

    # --- facts

    @property
    def id(self) -> str:
        return self._folder.run_id

    @property
    def name(self) -> str:
        """The display name, or the id."""
        return self.display_name or self.id

    @property
    def display_name(self) -> str:
        return str(RunChanges(self._folder).get("display_name", self._folder.spec().name))

    @display_name.setter
    def display_name(self, value: str) -> None:
        RunChanges(self._folder).set(display_name=value)

    @property
    def description(self) -> str | None:
        found: str | None = RunChanges(self._folder).get("description")
        return found

    @description.setter
    def description(self, value: str) -> None:
        RunChanges(self._folder).set(description=value)

    @property
    def type(self) -> str | None:
        return run_types.type_of(self._folder)

    @property
    def number(self) -> int:
        return int(self._folder.submitted()["number"])

    @property
    def experiment(self) -> Experiment:
        return self._experiment

    @property
    def parent(self) -> Any:
        """The run that started this one; None without a parent."""
        parent = self._folder.spec().parent
        return Run.get(self._experiment.workspace, parent) if parent else None

    @property
    def status(self) -> str:
        return self.get_status()

    def get_status(self) -> str:
        """Return the status, from ``Queued`` to ``Completed``, ``Failed`` or ``Canceled``."""
        return status_of(self._folder)

    def get_details(self) -> dict[str, Any]:
        """Return all facts about the run."""
        return details.details(self._folder)

    def get_details_with_logs(self) -> dict[str, Any]:
        """Return all facts about the run, with the text of its logs."""
        found = self.get_details()
        found["logFiles"] = {name: self._text_of(name) for name in found["logFiles"]}
        return found

    def get_environment(self) -> Any:
        """Return the environment of the run. Raises UserErrorException for a run without one."""
        from azureml.core.environment import Environment

        definition = self.get_details().get("runDefinition")
        if definition is None:
            raise UserErrorException(f"run {self.id} was not submitted and has no environment")
        return Environment._from_dict(definition["environment"])

    def get_portal_url(self) -> str:
        """Return the run's address on the dashboard, which ``farandole dashboard`` serves."""
        return run_url(self.id)

    # --- the end of a run

    def wait_for_completion(
        self,
        show_output: bool = False,
        wait_post_processing: bool = False,
        raise_on_error: bool = True,
    ) -> dict[str, Any]:
        """Wait for the end of the run and return ``get_details()``.

        Arguments:
            show_output: Print the output of rank 0 as it appears.
            wait_post_processing: Not used.
            raise_on_error: Raise ActivityFailedException if the run fails.

        Raises ExperimentExecutionException if the user interrupts the wait, and UserErrorException
        if the run is deleted.
        """
        from azureml._farandole import streaming

        if not run_types.is_interactive(self._folder):
            ensure_running(RunsHome())
        streaming.wait(self._folder, show_output=show_output, raise_on_error=raise_on_error)
        return self.get_details()

    def start(self) -> None:
        """Accept the call: a run of this process has already started."""

    def complete(self, **kwargs: Any) -> None:
        """End a run of this process as completed. A submitted run ends with its program."""
        self._end(RunState.COMPLETED)

    def fail(self, error_details: Any = None, error_code: Any = None, **kwargs: Any) -> None:
        """End the run as failed.

        A submitted run is stopped. If its own program calls ``fail()``, the run fails when the
        program ends.

        Arguments:
            error_details: A message or an exception.
            error_code: A machine-readable code, which precedes the message.
        """
        cause = ": ".join(str(each) for each in (error_code, error_details) if each is not None)
        self._end(RunState.FAILED, cause or "the program called fail()")

    def cancel(self) -> None:
        """Cancel the run. A waiting run ends immediately, a running one within its grace period."""
        if run_types.is_interactive(self._folder):
            self._end(RunState.CANCELED, "canceled")
        else:
            self._folder.request(CANCEL)
            ensure_running(RunsHome())

    def clean(self) -> None:
        """Accept the call: the working directories are deleted at the end of a run."""

    def flush(self, timeout_seconds: float = 300) -> None:
        """Accept the call: every value is written when it is recorded."""

    def _end(self, state: RunState, cause: str = "") -> None:
        if not run_types.is_interactive(self._folder):
            if state is RunState.FAILED and self._folder.finish(state, cause):
                self.cancel()  # the processes of the run have no work left
            return
        from azureml._farandole import interactive

        try:
            interactive.end(self._folder, state, cause)
        finally:
            journal.close(self._folder)

    # --- children

    def child_run(
        self, name: str | None = None, run_id: str | None = None, outputs: Any = None, **_: Any
    ) -> Run:
        """Start a child in this process and return it.

        Arguments:
            name: The display name.
            run_id: The id; by default a new uuid.
            outputs: The folder whose new files the child keeps; by default none.

        Raises UserErrorException for an id that is taken or invalid.
        """
        from azureml._farandole import interactive

        with raised_as(UserErrorException):
            started = interactive.start(
                self._experiment.name,
                name or "",
                run_id=run_id or "",
                parent=self.id,
                outputs=outputs or False,
            )
        return Run(self._experiment, started)

    def create_children(
        self,
        count: int | None = None,
        tag_key: str | None = None,
        tag_values: List[str] | None = None,
    ) -> List[Run]:
        """Start ``count`` children, or one for each of ``tag_values``, and return them.

        Each child of a value has the tag ``tag_key``. Raises UserErrorException unless exactly one
        of ``count`` and ``tag_values`` is given.
        """
        if (count is None) == (tag_values is None):
            raise UserErrorException(
                "create_children needs either count= or tag_key and tag_values"
            )
        made = []
        for value in tag_values if tag_values is not None else [None] * (count or 0):
            child = self.child_run()
            if value is not None:
                child.tag(tag_key or "", value)
            made.append(child)
        return made

    def submit_child(self, config: Any, tags: Mapping[str, str] | None = None, **_: Any) -> Any:
        """Submit a run whose parent is this run, and return it. Raises as ``Experiment.submit``."""
        return config._submit(self._experiment, dict(tags or {}), self.id)

    def get_children(
        self,
        recursive: bool = False,
        tags: Any = None,
        properties: Any = None,
        type: str | None = None,
        status: str | None = None,
        **kwargs: Any,
    ) -> Iterator[Any]:
        """Yield the children, newest first; with ``recursive``, their descendants, too.

        The filters are as for ``Experiment.get_runs``.
        """
        for row in listed(RunsHome(), "parent = ?", (self.id,)):
            child = run_types.run_of(
                _experiment_of(self._experiment.workspace, row.experiment), RunFolder(row.path)
            )
            if _matches(child, type, tags, properties, status):
                yield child
            if recursive:
                yield from child.get_children(True, tags, properties, type, status)

    # --- tags and properties

    @property
    def tags(self) -> dict[str, str | None]:
        return self.get_tags()

    def get_tags(self) -> dict[str, str | None]:
        """Return the tags; None for a tag without a value."""
        return RunChanges(self._folder).tags()

    def tag(self, key: str, value: Any = None) -> None:
        """Set a tag, with or without a value."""
        self.set_tags({key: value})

    def set_tags(self, tags: Mapping[str, Any]) -> None:
        """Set tags."""
        RunChanges(self._folder).set_tags(tags)

    def remove_tags(self, tags: List[str] | str) -> dict[str, str | None]:
        """Remove tags and return the remaining ones."""
        RunChanges(self._folder).remove_tags([tags] if isinstance(tags, str) else [*tags])
        return self.get_tags()

    @property
    def properties(self) -> dict[str, str]:
        return self.get_properties()

    def get_properties(self) -> dict[str, str]:
        """Return the properties."""
        found: dict[str, str] = self.get_details()["properties"]
        return found

    def add_properties(self, properties: Mapping[str, str]) -> None:
        """Add properties. Raises UserErrorException if one of them exists with another value."""
        RunChanges(self._folder).add_properties(properties)

    # --- secrets and models

    def get_secret(self, name: str) -> Any:
        """Return a secret of the workspace. Raises UserErrorException if there is none."""
        return self._experiment.workspace.get_default_keyvault().get_secret(name)

    def get_secrets(self, secrets: List[str]) -> dict[str, Any]:
        """Return secrets of the workspace by name. Raises UserErrorException if one is missing."""
        found: dict[str, Any] = self._experiment.workspace.get_default_keyvault().get_secrets(
            secrets
        )
        return found

    def register_model(
        self, model_name: str, model_path: str | None = None, tags: Any = None, **kwargs: Any
    ) -> Any:
        """Register files of the run as a model, and return the model.

        ``model_path``: a file or folder of the run, such as ``outputs/model``; by default the name
        of the model. Raises UserErrorException if the run has no such file or folder.
        """
        from azureml.core.model import Model

        path = self._model_files(model_path or model_name)
        return Model.register(
            self._experiment.workspace,
            model_path=path,
            model_name=model_name,
            tags={**(tags or {})},
            properties={**(kwargs.pop("properties", None) or {}), "run_id": self.id},
            **kwargs,
        )

    # --- the run as a context

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.complete()
        else:
            self.fail(error_details=f"{kind.__name__}: {error}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return (
            f"Run(Experiment: {self._experiment.name},\nId: {self.id},\nType: {self.type},\n"
            f"Status: {self.get_status()})"
        )

    def _repr_html_(self) -> str:
        return as_table(
            {
                "Experiment": self._experiment.name,
                "Id": self.id,
                "Type": self.type or "",
                "Status": self.get_status(),
                "Details Page": self.get_portal_url(),
            }
        )


class _SubmittedRun(Run):
    """The run of this process, from ``Run.get_context()``. It ends with its program."""

    def _end(self, state: RunState, cause: str = "") -> None:
        if state is RunState.FAILED:
            fail_at_exit(cause)


def get_run(experiment: Experiment, run_id: str, rehydrate: bool = True, **kwargs: Any) -> Any:
    """Return the run ``run_id``. Raises UserErrorException if there is none."""
    return Run.get(experiment.workspace, run_id)


def _experiment_of(workspace: Workspace, name: str) -> Experiment:
    """Return an experiment that exists, even if its name breaks the SDK's rule."""
    made = Experiment.__new__(Experiment)
    made._workspace, made._name = workspace, name
    return made


def _matches(run: Run, type: str | None, tags: Any, properties: Any, status: str | None) -> bool:
    return (
        type in (None, run.type)
        and status in (None, run.get_status())
        and has_tags(run.get_tags(), tags)
        and (properties is None or has_tags(run.get_properties(), properties))
    )
