"""The local workspace."""

from __future__ import annotations

import json
import os
import re
import uuid
from typing import Any

from azureml._farandole.texts import notice, say
from azureml.exceptions import UserErrorException, WorkspaceException
from farandole.job.runs.folder import make_private, read_json, write_json
from farandole.job.runs.home import RunsHome

_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}"
_CONFIGS = ("config.json", os.path.join(".azureml", "config.json"))
_LOCAL = "00000000-0000-0000-0000-000000000000"


class Workspace:
    """A workspace on this machine: a name for datasets, environments, models and secrets.

    Runs and compute targets belong to Farandole's home, which all workspaces share. No account,
    credentials or network is needed; ``subscription_id`` and ``resource_group`` are only names.
    """

    DEFAULT_CPU_CLUSTER_CONFIGURATION: Any = None
    DEFAULT_GPU_CLUSTER_CONFIGURATION: Any = None

    def __init__(
        self,
        subscription_id: str = _LOCAL,
        resource_group: str = "local",
        workspace_name: str = "local",
        auth: Any = None,
        **kwargs: Any,
    ) -> None:
        """Open the workspace ``workspace_name``; its first object creates its folder.

        ``auth`` and further arguments of the SDK are ignored. Raises UserErrorException for an
        invalid name.
        """
        if not re.fullmatch(_NAME, str(workspace_name)):
            raise UserErrorException(
                f"the workspace's name {workspace_name!r} must have 1 to 100 letters, digits, '_',"
                " '-' or '.', and begin with a letter or a digit"
            )
        self._subscription_id = subscription_id
        self._resource_group = resource_group
        self._name = workspace_name
        self._home = RunsHome()

    @staticmethod
    def from_config(path: str | None = None, auth: Any = None, **kwargs: Any) -> Workspace:
        """Return the workspace that ``config.json`` names, or a local one.

        ``path``: the file, or the folder where the search begins; by default the current folder.
        The search moves upwards and looks for ``config.json`` and ``.azureml/config.json``. Without
        such a file, the workspace is called ``local``. Raises UserErrorException if ``path`` does
        not exist or the file lacks a key.
        """
        if path is not None and not os.path.exists(path):
            raise UserErrorException(f"the workspace's configuration {path!r} does not exist")
        found = _config_file(os.path.abspath(path or "."), kwargs.get("_file_name"))
        if found is None:
            notice(
                "no config.json here or above: this is the local workspace, in"
                " $FARANDOLE_HOME; ws.write_config() creates the file"
            )
            return Workspace()
        try:
            with open(found, encoding="utf-8") as file:
                data = json.load(file)
            return Workspace(
                data["subscription_id"], data["resource_group"], data["workspace_name"]
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UserErrorException(
                f"{found} must be a JSON object with subscription_id, resource_group and"
                f" workspace_name: {type(error).__name__}: {error}"
            ) from error

    @staticmethod
    def get(
        name: str,
        auth: Any = None,
        subscription_id: str | None = None,
        resource_group: str | None = None,
        location: str | None = None,
        cloud: str = "AzureCloud",
        id: str | None = None,
    ) -> Workspace:
        """Return the workspace ``name``, even if it has no objects yet.

        Raises UserErrorException for an invalid name.
        """
        return Workspace(subscription_id or _LOCAL, resource_group or "local", name)

    @staticmethod
    def create(
        name: str,
        auth: Any = None,
        subscription_id: str | None = None,
        resource_group: str | None = None,
        location: str | None = None,
        create_resource_group: bool = True,
        sku: str = "basic",
        tags: dict[str, str] | None = None,
        friendly_name: str | None = None,
        exist_ok: bool = False,
        show_output: bool = True,
        **kwargs: Any,
    ) -> Workspace:
        """Create a workspace and return it.

        ``location``, ``sku``, ``tags`` and ``friendly_name`` are only stored. Raises
        WorkspaceException if the workspace exists, unless ``exist_ok``.
        """
        made = Workspace(subscription_id or _LOCAL, resource_group or "local", name)
        if made._facts() and not exist_ok:
            raise WorkspaceException(
                f"Workspace with name '{name}' already exists; get it with Workspace.get, or pass"
                " exist_ok=True"
            )
        if not made._facts():
            facts = {
                "id": str(uuid.uuid4()),
                "location": location or "local",
                "sku": sku,
                "tags": dict(tags or {}),
                "friendlyName": friendly_name or name,
                "subscriptionId": made.subscription_id,
                "resourceGroup": made.resource_group,
            }
            write_json(os.path.join(made._storage(), "workspace.json"), facts)
        if show_output:
            say(f"Deployed Workspace with name {name}.")
        return made

    @staticmethod
    def list(
        subscription_id: str | None = None, auth: Any = None, resource_group: str | None = None
    ) -> dict[str, list[Workspace]]:
        """Return the workspaces of this machine by name."""
        root = os.path.join(RunsHome().path, "azureml")
        names = sorted(os.listdir(root)) if os.path.isdir(root) else []
        return {name: [Workspace.get(name)] for name in names if re.fullmatch(_NAME, name)}

    def write_config(self, path: str | None = None, file_name: str | None = None) -> None:
        """Write ``.azureml/config.json``, or ``.azureml/FILE_NAME``, below ``path``.

        ``path``: by default the current folder.
        """
        folder = os.path.join(path or ".", ".azureml")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, file_name or "config.json"), "w", encoding="utf-8") as file:
            json.dump(
                {
                    "subscription_id": self.subscription_id,
                    "resource_group": self.resource_group,
                    "workspace_name": self.name,
                },
                file,
                indent=4,
            )

    # --- facts

    @property
    def name(self) -> str:
        return self._name

    @property
    def subscription_id(self) -> str:
        return self._subscription_id

    @property
    def resource_group(self) -> str:
        return self._resource_group

    @property
    def location(self) -> str:
        return str(self._facts().get("location", "local"))

    @property
    def sku(self) -> str:
        return str(self._facts().get("sku", "basic"))

    @property
    def tags(self) -> dict[str, str]:
        return dict(self._facts().get("tags", {}))

    def get_details(self) -> dict[str, Any]:
        """Return the facts about the workspace."""
        place = f"/subscriptions/{self.subscription_id}/resourceGroups/{self.resource_group}"
        kind = "Microsoft.MachineLearningServices/workspaces"
        return {
            "id": f"{place}/providers/{kind}/{self.name}",
            "name": self.name,
            "location": self.location,
            "type": kind,
            "tags": self.tags,
            "sku": self.sku,
            "workspaceid": self._facts().get("id", _LOCAL),
            "friendlyName": self._facts().get("friendlyName", self.name),
        }

    def get_mlflow_tracking_uri(self) -> str:
        """Return the URI of the database that ``farandole submit --mirror mlflow`` writes."""
        return os.environ.get(
            "MLFLOW_TRACKING_URI", f"sqlite:///{os.path.join(self._home.path, 'mlflow.db')}"
        )

    # --- contents

    @property
    def compute_targets(self) -> dict[str, Any]:
        from azureml.core.compute_target import ComputeTarget

        return {target.name: target for target in ComputeTarget.list(self)}

    @property
    def experiments(self) -> dict[str, Any]:
        from azureml.core.experiment import Experiment

        return {each.name: each for each in Experiment.list(self)}

    @property
    def environments(self) -> dict[str, Any]:
        from azureml.core.environment import Environment

        return Environment.list(self)

    @property
    def datastores(self) -> dict[str, Any]:
        from azureml.core.datastore import Datastore

        return Datastore._all(self)

    @property
    def datasets(self) -> dict[str, Any]:
        from azureml.core.dataset import Dataset

        return Dataset.get_all(self)

    @property
    def models(self) -> dict[str, Any]:
        from azureml.core.model import Model

        return {each.name: each for each in reversed(Model.list(self))}

    def get_default_datastore(self) -> Any:
        from azureml.core.datastore import Datastore

        return Datastore.get_default(self)

    def set_default_datastore(self, name: str) -> None:
        from azureml.core.datastore import Datastore

        Datastore.get(self, name).set_as_default()

    def get_default_keyvault(self) -> Any:
        from azureml.core.keyvault import Keyvault

        return Keyvault(self)

    def get_default_compute_target(self, type: str = "CPU") -> Any:
        """Return the first compute target; None if there is none."""
        return next(iter(self.compute_targets.values()), None)

    def get_run(self, run_id: str) -> Any:
        """Return the run ``run_id``. Raises UserErrorException if there is none."""
        from azureml.core.run import Run

        return Run.get(self, run_id)

    # --- storage

    def _storage(self, kind: str = "") -> str:
        """Return the folder for the workspace's objects of a kind; create it."""
        return make_private(os.path.join(self._home.path, "azureml", self.name, kind).rstrip("/"))

    def _facts(self) -> dict[str, Any]:
        path = os.path.join(self._home.path, "azureml", self.name, "workspace.json")
        return read_json(path) or {}

    def __repr__(self) -> str:
        return (
            f"Workspace.create(name={self.name!r}, subscription_id={self.subscription_id!r},"
            f" resource_group={self.resource_group!r})"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Workspace) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)


def _config_file(path: str, name: str | None) -> str | None:
    """Return the configuration in ``path`` or above it; None if there is none."""
    if os.path.isfile(path):
        return path
    names = (name, os.path.join(".azureml", name)) if name else _CONFIGS
    while True:
        for each in names:
            found = os.path.join(path, each)
            if os.path.isfile(found):
                return found
        parent = os.path.dirname(path)
        if parent == path:
            return None
        path = parent
