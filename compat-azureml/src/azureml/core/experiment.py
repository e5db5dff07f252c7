"""Experiments: named groups of runs."""

from __future__ import annotations

import datetime
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from azureml.core.workspace import Workspace
from azureml.exceptions import UserErrorException
from farandole.job.runs.folder import read_json, write_json
from farandole.job.runs.home import RunsHome

if TYPE_CHECKING:
    from azureml.core.run import Run

_NAME = (
    r"[A-Za-z0-9][A-Za-z0-9_-]{2,99}"  # the service accepts more than the documented 36 characters
)


class Experiment:
    """A named group of runs.

    Its runs are the runs of Farandole's experiment of this name: ``farandole runs`` lists them.
    """

    def __init__(self, workspace: Workspace, name: str, **kwargs: Any) -> None:
        """Open the experiment ``name`` of a workspace; its first run creates it.

        Raises UserErrorException if the name breaks the SDK's rule.
        """
        if not re.fullmatch(_NAME, str(name)):
            raise UserErrorException(
                f"the experiment's name {name!r} must have 3 to 100 letters, digits, '_' or '-',"
                " and begin with a letter or a digit"
            )
        self._workspace = workspace
        self._name = name

    # --- runs

    def submit(self, config: Any, tags: Mapping[str, str] | None = None, **kwargs: Any) -> Any:
        """Submit a run and return it immediately.

        Arguments:
            config: A ``ScriptRunConfig`` or ``HyperDriveConfig``.
            tags: Free text by name.

        Raises:
            UserErrorException: The run cannot succeed, for example without its script.
            SnapshotException: The source folder is too large.
        """
        if not hasattr(config, "_submit"):
            raise UserErrorException(
                f"Experiment.submit takes a ScriptRunConfig or a HyperDriveConfig, not a"
                f" {type(config).__name__}"
            )
        self._remember()
        return config._submit(self, dict(tags or {}), "")

    def start_logging(
        self,
        outputs: str | bool | None = None,
        snapshot_directory: str | None = ".",
        display_name: str | None = None,
        **kwargs: Any,
    ) -> Run:
        """Start a run in this process, and return it.

        Arguments:
            outputs: The folder whose files the run keeps, by default ``outputs``; False for none.
            snapshot_directory: The folder of the program; None for no snapshot.
            display_name: A name for display.

        The run ends with ``complete()``, or with this process. Raises SnapshotException if the
        folder of the program is too large.
        """
        from azureml._farandole import interactive
        from azureml.core.run import Run

        self._remember()
        run_id = interactive.start(
            self.name, display_name or "", source=snapshot_directory or "", outputs=outputs
        )
        return Run(self, run_id)

    def get_runs(
        self,
        type: str | None = None,
        tags: Any = None,
        properties: Any = None,
        include_children: bool = False,
    ) -> Iterator[Run]:
        """Yield the runs of this experiment, newest first.

        Arguments:
            type: The type of the runs; None for all.
            tags: A name, a list of names, or a dict of values by name; None for all runs.
            properties: A filter like ``tags``.
            include_children: Yield the children of runs, too.
        """
        from azureml.core.run import Run

        return Run.list(
            self, type=type, tags=tags, properties=properties, include_children=include_children
        )

    # --- facts

    @property
    def workspace(self) -> Workspace:
        return self._workspace

    @property
    def workspace_object(self) -> Workspace:
        return self._workspace

    @property
    def name(self) -> str:
        return self._name

    @property
    def id(self) -> str:
        return str(self._remember()["id"])

    @property
    def tags(self) -> dict[str, str]:
        return dict(self._facts().get("tags", {}))

    @property
    def archived_time(self) -> str | None:
        """The time of ``archive()`` in ISO 8601; None for an active experiment."""
        found: str | None = self._facts().get("archived")
        return found

    def get_portal_url(self) -> str:
        """Return the address of the experiment on Farandole's dashboard."""
        from azureml._farandole.pages import experiment_url

        return experiment_url(self.name)

    # --- changes

    def tag(self, key: str, value: str | None = None) -> None:
        """Set a tag."""
        self.set_tags({key: value or ""})

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags."""
        self._change(tags={**self.tags, **tags})

    def remove_tags(self, tags: list[str]) -> dict[str, str]:
        """Remove tags and return the remaining ones."""
        self._change(tags={key: text for key, text in self.tags.items() if key not in tags})
        return self.tags

    def archive(self) -> None:
        """Omit the experiment from ``Experiment.list``."""
        self._change(archived=datetime.datetime.now(datetime.timezone.utc).isoformat())

    def reactivate(self, new_name: str | None = None) -> None:
        """Undo ``archive``. Raises UserErrorException for a new name, which runs cannot change."""
        if new_name and new_name != self.name:
            raise UserErrorException(
                f"the experiment {self.name!r} cannot be renamed to {new_name!r}, because its runs'"
                " ids contain its name; reactivate it without new_name"
            )
        self._change(archived=None)

    def refresh(self) -> None:
        """Accept the call: every property is read when it is used."""

    @staticmethod
    def list(
        workspace: Workspace,
        experiment_name: str | None = None,
        view_type: str = "ActiveOnly",
        tags: Any = None,
    ) -> list[Experiment]:
        """Return the experiments, sorted by name.

        Arguments:
            workspace: The workspace.
            experiment_name: Return only the experiment of this name.
            view_type: ``ActiveOnly``, ``ArchivedOnly`` or ``All``.
            tags: A name, a list of names, or a dict of values by name; None for all experiments.
        """
        from azureml._farandole.filters import has_tags

        known = {name[:-5] for name in os.listdir(workspace._storage("experiments"))}
        names = sorted(known | set(RunsHome().experiments()))
        found = [Experiment(workspace, name) for name in names if re.fullmatch(_NAME, name)]
        wanted = {"ActiveOnly": (False,), "ArchivedOnly": (True,)}.get(view_type, (False, True))
        return [
            each
            for each in found
            if experiment_name in (None, each.name)
            and (each.archived_time is not None) in wanted
            and has_tags(each.tags, tags)
        ]

    @staticmethod
    def delete(workspace: Workspace, experiment_id: str) -> None:
        """Delete an experiment without runs.

        Raises UserErrorException if there is no such experiment, or if it has runs.
        """
        found = [
            each for each in Experiment.list(workspace, view_type="All") if each.id == experiment_id
        ]
        if not found:
            raise UserErrorException(f"there is no experiment with id {experiment_id!r}")
        home, name = RunsHome(), found[0].name
        folder = os.path.join(home.runs, name)
        if os.path.isdir(folder) and os.listdir(folder):
            raise UserErrorException(
                f"the experiment {name!r} has {len(os.listdir(folder))} runs; delete them first,"
                " with farandole gc"
            )
        shutil.rmtree(folder, ignore_errors=True)
        os.unlink(found[0]._path())

    # --- storage

    def _path(self) -> str:
        return os.path.join(self._workspace._storage("experiments"), f"{self.name}.json")

    def _facts(self) -> dict[str, Any]:
        return read_json(self._path()) or {}

    def _remember(self) -> dict[str, Any]:
        """Return the stored facts; the first call creates them."""
        found = self._facts()
        if not found:
            found = {"id": str(uuid.uuid4()), "tags": {}, "archived": None}
            write_json(self._path(), found)
        return found

    def _change(self, **values: Any) -> None:
        write_json(self._path(), {**self._remember(), **values})

    def __repr__(self) -> str:
        return f"Experiment(Name: {self.name},\nWorkspace: {self.workspace.name})"

    def _repr_html_(self) -> str:
        from azureml._farandole.pages import as_table

        return as_table({"Name": self.name, "Workspace": self.workspace.name})
