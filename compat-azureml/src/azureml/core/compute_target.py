"""Compute targets: the places where runs are executed."""

from __future__ import annotations

import datetime
import os
from typing import Any

from azureml._farandole.errors import raised_as
from azureml._farandole.texts import say
from azureml.core.workspace import Workspace
from azureml.exceptions import ComputeTargetException as ComputeTargetException
from farandole.errors import SettingsError
from farandole.job.runs.folder import read_json, write_json
from farandole.job.runs.home import RunsHome
from farandole.jobs import targets
from farandole.jobs.targets.contract import NodeCounts, TargetSpec

# The class of a target that was not created through this SDK, by its kind.
_CLASSES = {"local": "AmlCompute", "ssh": "RemoteCompute", "slurm": "BatchCompute"}


class ComputeTarget:
    """A target of Farandole's jobs: ``farandole targets`` lists it, ``farandole submit`` uses it.

    ``ComputeTarget(workspace, name)`` returns an object of the target's class.
    """

    _compute_type = "AmlCompute"

    def __new__(cls, workspace: Workspace, name: str) -> ComputeTarget:
        """Open the target ``name``. Raises ComputeTargetException if it does not exist."""
        made = object.__new__(cls)
        made._workspace, made._name = workspace, name
        if name not in _defined(workspace):
            raise ComputeTargetException(
                f"ComputeTargetNotFound: Compute Target with name {name} not found in provided"
                " workspace"
            )
        if cls is ComputeTarget:
            made.__class__ = class_of(made._facts().get("type") or _CLASSES.get(made._spec().kind))
        return made

    _workspace: Workspace
    _name: str

    # --- all targets

    @staticmethod
    def create(
        workspace: Workspace, name: str, provisioning_configuration: TargetConfiguration
    ) -> ComputeTarget:
        """Create a target and return it; an existing one gets the new configuration.

        Raises ComputeTargetException if the name or the configuration is invalid.
        """
        spec = TargetSpec(
            name, provisioning_configuration.kind, **provisioning_configuration.limits
        )
        with raised_as(ComputeTargetException):
            targets.save_target(workspace._home, spec)
        now = datetime.datetime.now(datetime.timezone.utc).isoformat()
        facts = {
            "type": provisioning_configuration.type,
            "created": now,
            **provisioning_configuration.facts,
        }
        write_json(_facts_path(workspace, name), facts)
        return ComputeTarget(workspace, name)

    @staticmethod
    def attach(
        workspace: Workspace, name: str, attach_configuration: TargetConfiguration
    ) -> ComputeTarget:
        """Create a target on existing hosts and return it.

        Raises ComputeTargetException if the name or the configuration is invalid.
        """
        return ComputeTarget.create(workspace, name, attach_configuration)

    @staticmethod
    def list(workspace: Workspace) -> list[ComputeTarget]:
        """Return all targets, sorted by name."""
        return [ComputeTarget(workspace, name) for name in _defined(workspace)]

    # --- one target

    @property
    def name(self) -> str:
        return self._name

    @property
    def workspace(self) -> Workspace:
        return self._workspace

    @property
    def type(self) -> str:
        return self._compute_type

    @property
    def provisioning_state(self) -> str:
        return "Succeeded"

    @property
    def provisioning_errors(self) -> Any:
        return None

    @property
    def vm_size(self) -> str:
        return str(self._facts().get("vm_size", ""))

    @property
    def tags(self) -> dict[str, str]:
        return dict(self._facts().get("tags") or {})

    @property
    def description(self) -> str | None:
        found: str | None = self._facts().get("description")
        return found

    @property
    def location(self) -> str:
        return self._workspace.location

    def get_status(self) -> Any:
        """Return the provisioning state. ``AmlCompute`` returns the state of its nodes."""
        return self.provisioning_state

    def wait_for_completion(self, show_output: bool = False, **kwargs: Any) -> None:
        """Return immediately: a target is ready when created."""
        if show_output:
            say('Succeeded\nProvisioning operation finished, operation "Succeeded"')

    def refresh_state(self) -> None:
        """Accept the call: every property is read when it is used."""

    def delete(self) -> None:
        """Delete the target's definition.

        Raises ComputeTargetException if it does not exist.
        """
        with raised_as(ComputeTargetException):
            targets.remove_target(self._workspace._home, self.name)
        if os.path.exists(_facts_path(self._workspace, self.name)):
            os.unlink(_facts_path(self._workspace, self.name))

    def detach(self) -> None:
        """Delete the target's definition; its hosts are unchanged."""
        self.delete()

    def serialize(self) -> dict[str, Any]:
        """Return the facts about the target."""
        spec = self._spec()
        return {
            "id": f"{self._workspace.get_details()['id']}/computes/{self.name}",
            "name": self.name,
            "location": self.location,
            "tags": self.tags,
            "properties": {
                "computeType": self.type,
                "description": self.description,
                "provisioningState": self.provisioning_state,
                "provisioningErrors": None,
                "properties": {
                    "vmSize": self.vm_size,
                    "scaleSettings": {
                        "minNodeCount": spec.min_nodes,
                        "maxNodeCount": spec.max_nodes,
                    },
                },
            },
        }

    def _spec(self) -> TargetSpec:
        return targets.target_spec(self._workspace._home, self.name)

    def _facts(self) -> dict[str, Any]:
        return read_json(_facts_path(self._workspace, self.name)) or {}

    def _counts(self) -> NodeCounts:
        with raised_as(ComputeTargetException):
            return targets.node_counts(self._workspace._home, self.name) or NodeCounts()

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(workspace={self._workspace!r}, name={self.name},"
            f" type={self.type}, provisioning_state={self.provisioning_state},"
            f" location={self.location}, tags={self.tags})"
        )


class TargetConfiguration:
    """The configuration of a new target.

    - ``type``: The class of the target.
    - ``kind``: The kind of Farandole's target.
    - ``limits``: Further fields of ``TargetSpec``.
    - ``facts``: Facts that only this SDK shows, such as ``vm_size``.
    """

    def __init__(
        self, type: str, kind: str, limits: dict[str, Any], facts: dict[str, Any] | None = None
    ) -> None:
        self.type = type
        self.kind = kind
        self.limits = limits
        self.facts = facts or {}


def class_of(name: str | None) -> type[ComputeTarget]:
    """Return the class of a target by the name of the class; ``AmlCompute`` for None."""
    from azureml.core import compute

    found: type[ComputeTarget] = getattr(compute, name or "AmlCompute")
    return found


def exists(workspace_home: RunsHome, name: str) -> bool:
    """Return whether a run can name this target."""
    try:
        targets.target_spec(workspace_home, name)
    except SettingsError:
        return False
    return True


def _defined(workspace: Workspace) -> list[str]:
    """Return the names of the targets that users have defined."""
    folder = os.path.join(workspace._home.path, "targets")
    if not os.path.isdir(folder):
        return []
    return sorted(name[:-5] for name in os.listdir(folder) if name.endswith(".json"))


def _facts_path(workspace: Workspace, name: str) -> str:
    return os.path.join(workspace._storage("computes"), f"{name}.json")
