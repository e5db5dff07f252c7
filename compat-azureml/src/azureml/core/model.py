"""``Model``: files of a trained model, registered with a name and a version."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, NamedTuple

from azureml._farandole.refused import refused_names
from azureml._farandole.texts import say
from azureml.data._storage import checked_name, workspace_folder
from azureml.exceptions import ModelNotFoundException, ModelPathNotFoundException
from farandole.job.runs.folder import read_json, write_json

__getattr__ = refused_names(__name__, ("InferenceConfig", "Deployment"))


class ModelFacts(NamedTuple):
    """The description of a model at its registration."""

    tags: Mapping[str, str] = {}
    properties: Mapping[str, str] = {}
    description: str | None = None
    framework: str = "Custom"
    framework_version: str | None = None


class Model:
    """A registered model. ``Model(workspace, name)`` opens the newest version."""

    class Framework:
        """The names of frameworks for ``model_framework``."""

        CUSTOM = "Custom"
        TENSORFLOW = "TensorFlow"
        SCIKITLEARN = "ScikitLearn"
        ONNX = "Onnx"
        PYTORCH = "PyTorch"

    def __init__(
        self,
        workspace: Any,
        name: str | None = None,
        id: str | None = None,
        tags: Any = None,
        properties: Any = None,
        version: int | None = None,
        **_: Any,
    ) -> None:
        """Open the newest model that matches all given values.

        Arguments:
            workspace: The workspace.
            name: The name of the model.
            id: ``name:version``, in place of ``name`` and ``version``.
            tags: Names of tags, or pairs of a name and a value.
            properties: A filter like ``tags``.
            version: The version; by default the newest.

        Raises ModelNotFoundException if there is none.
        """
        if id:
            name, _separator, text = id.rpartition(":")
            version = int(text)
        found = [
            entry
            for entry in _entries(workspace, name)
            if (version is None or entry["version"] == int(version))
            and _has(entry["tags"], tags)
            and _has(entry["properties"], properties)
        ]
        if not found:
            known = sorted({entry["name"] for entry in _entries(workspace, None)})
            raise ModelNotFoundException(
                f"ModelNotFound: there is no model {id or name!r}"
                f"{f' of version {version}' if version and not id else ''} in the workspace"
                f" {workspace.name!r} (registered: {', '.join(known) or 'none'})"
            )
        self.workspace = workspace
        self._entry = found[-1]

    @property
    def name(self) -> str:
        return str(self._entry["name"])

    @property
    def version(self) -> int:
        return int(self._entry["version"])

    @property
    def id(self) -> str:
        """``name:version``."""
        return f"{self.name}:{self.version}"

    @property
    def tags(self) -> dict[str, str]:
        return dict(self._entry["tags"])

    @property
    def properties(self) -> dict[str, str]:
        return dict(self._entry["properties"])

    @property
    def description(self) -> str | None:
        found: str | None = self._entry["description"]
        return found

    @property
    def created_time(self) -> datetime:
        """The time of the registration, in UTC."""
        return datetime.fromtimestamp(self._entry["created"], timezone.utc)

    @property
    def run_id(self) -> str | None:
        """The id of the run that made the model; None if unknown."""
        return self.properties.get("run_id")

    @property
    def model_framework(self) -> str:
        return str(self._entry["framework"])

    @staticmethod
    def register(
        workspace: Any,
        model_path: str,
        model_name: str,
        tags: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        description: str | None = None,
        datasets: Any = None,
        model_framework: str | None = None,
        model_framework_version: str | None = None,
        child_paths: list[str] | None = None,
        **_: Any,
    ) -> Model:
        """Copy a file or folder into the workspace as the next version of a model.

        Arguments:
            workspace: The workspace.
            model_path: The file or folder.
            model_name: The name of the model.
            tags: The tags by name.
            properties: The properties by name.
            description: A description of the model.
            datasets: Not used.
            model_framework: One of ``Model.Framework``.
            model_framework_version: The version of the framework.
            child_paths: The files of the folder to copy; by default all.

        Raises ModelPathNotFoundException if the path does not exist, and UserErrorException for an
        invalid name.
        """
        say(f"Registering model {model_name}")
        facts = ModelFacts(
            tags or {},
            properties or {},
            description,
            model_framework or Model.Framework.CUSTOM,
            model_framework_version,
        )
        return store(workspace, model_path, model_name, facts, child_paths)

    @staticmethod
    def list(
        workspace: Any,
        name: str | None = None,
        tags: Any = None,
        properties: Any = None,
        run_id: str | None = None,
        latest: bool = False,
        **_: Any,
    ) -> list[Model]:
        """Return the registered models, the newest registration first.

        Arguments:
            workspace: The workspace.
            name: The name of the models; None for all.
            tags: Names of tags, or pairs of a name and a value.
            properties: A filter like ``tags``.
            run_id: The run that made the models; None for any.
            latest: Return only the newest model of each name.
        """
        found = [
            entry
            for entry in _entries(workspace, name)
            if _has(entry["tags"], tags)
            and _has(entry["properties"], properties)
            and run_id in (None, entry["properties"].get("run_id"))
        ]
        if latest:
            found = list({entry["name"]: entry for entry in found}.values())
        return [Model(workspace, each["name"], version=each["version"]) for each in found[::-1]]

    @staticmethod
    def get_model_path(model_name: str, version: int | None = None, _workspace: Any = None) -> str:
        """Return the path of a registered model's file or folder.

        In a process of a run, the workspace is the run's; elsewhere, ``Workspace.from_config()``.
        ``version``: by default the newest. Raises ModelNotFoundException if there is no such model.
        """
        if _workspace is None:
            from azureml.core.run import Run
            from azureml.core.workspace import Workspace

            experiment = getattr(Run.get_context(), "experiment", None)
            _workspace = experiment.workspace if experiment else Workspace.from_config()
        return Model(_workspace, model_name, version=version)._path

    @property
    def _path(self) -> str:
        folder = _folder(self.workspace, self.name, str(self.version))
        return os.path.join(folder, self._entry["file"])

    def download(
        self, target_dir: str = ".", exist_ok: bool = False, exists_ok: bool | None = None
    ) -> str:
        """Copy the model to a folder and return the path of the copy.

        Raises ModelPathNotFoundException if the copy exists and ``exist_ok`` is False.
        """
        target = os.path.join(target_dir, self._entry["file"])
        if os.path.exists(target) and not (exist_ok or exists_ok):
            raise ModelPathNotFoundException(
                f"{target} exists already, so the model {self.id} cannot be downloaded to it; pass"
                " exist_ok=True to replace it"
            )
        os.makedirs(target_dir, exist_ok=True)
        _copy(self._path, target)
        return target

    def delete(self) -> None:
        """Remove this version of the model."""
        shutil.rmtree(_folder(self.workspace, self.name, str(self.version)))

    def add_tags(self, tags: Mapping[str, str]) -> None:
        """Add tags; they replace tags of the same name."""
        self._change("tags", {**self.tags, **tags})

    def remove_tags(self, tags: Any) -> None:
        """Remove tags by name."""
        self._change("tags", {name: text for name, text in self.tags.items() if name not in tags})

    def add_properties(self, properties: Mapping[str, str]) -> None:
        """Add properties."""
        self._change("properties", {**self.properties, **properties})

    def _change(self, key: str, value: Mapping[str, str]) -> None:
        self._entry[key] = dict(value)
        folder = _folder(self.workspace, self.name, str(self.version))
        write_json(os.path.join(folder, "model.json"), self._entry)

    def serialize(self) -> dict[str, Any]:
        """Return the facts about the model as plain data."""
        return {
            "createdTime": self.created_time.isoformat(),
            "description": self.description,
            "framework": self.model_framework,
            "frameworkVersion": self._entry["framework_version"],
            "id": self.id,
            "name": self.name,
            "properties": self.properties,
            "runId": self.run_id,
            "tags": self.tags,
            "version": self.version,
        }

    def __repr__(self) -> str:
        return (
            f"Model(workspace={self.workspace!r}, name={self.name}, id={self.id},"
            f" version={self.version}, tags={self.tags}, properties={self.properties})"
        )


def store(
    workspace: Any,
    path: str,
    name: str,
    facts: ModelFacts,
    child_paths: list[str] | None = None,
) -> Model:
    """Copy a file or folder into a workspace as the next version of a model.

    ``child_paths``: the files of the folder to copy; all if None. Raises ModelPathNotFoundException
    if the path does not exist, and UserErrorException for an invalid name.
    """
    path = os.path.abspath(path)
    if not os.path.exists(path):
        raise ModelPathNotFoundException(f"Error, provided model path {path!r} cannot be found")
    parent = _folder(workspace, checked_name(name, "model"))
    version = max([0, *(int(each) for each in os.listdir(parent) if each.isdecimal())]) + 1
    folder = os.path.join(parent, str(version))
    os.mkdir(folder, 0o700)
    target = os.path.join(folder, os.path.basename(path))
    if child_paths is None:
        _copy(path, target)
    else:
        for each in child_paths:
            os.makedirs(os.path.dirname(os.path.join(target, each)), exist_ok=True)
            _copy(os.path.join(path, each), os.path.join(target, each))
    entry = {
        **facts._asdict(),
        "tags": dict(facts.tags),
        "properties": dict(facts.properties),
        "name": name,
        "version": version,
        "created": time.time(),
        "file": os.path.basename(path),
    }
    write_json(os.path.join(folder, "model.json"), entry)
    return Model(workspace, name, version=version)


def _copy(path: str, target: str) -> None:
    if os.path.isdir(path):
        shutil.copytree(path, target, dirs_exist_ok=True)
    else:
        shutil.copyfile(path, target)


def _entries(workspace: Any, name: str | None) -> list[dict[str, Any]]:
    """Return the registered versions, oldest first."""
    root = _folder(workspace)
    found = []
    for each in [name] if name else os.listdir(root):
        folder = os.path.join(root, each)
        versions = os.listdir(folder) if os.path.isdir(folder) else []
        found += [read_json(os.path.join(folder, text, "model.json")) for text in versions]
    known = [entry for entry in found if entry is not None]
    return sorted(known, key=lambda entry: (entry["created"], entry["version"]))


def _has(values: Mapping[str, str], wanted: Any) -> bool:
    """Return whether values match the filters of ``Model.list``: names, or names with values."""
    if not wanted:
        return True
    for each in [wanted] if isinstance(wanted, str) else list(wanted):
        if isinstance(each, str):
            if each not in values:
                return False
        elif values.get(each[0]) != each[1]:
            return False
    return True


def _folder(workspace: Any, *names: str) -> str:
    return workspace_folder(workspace, "models", *names)
