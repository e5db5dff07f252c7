"""The registered datasets of a workspace: names, versions, and definitions by id."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from azureml.data._files import DatasetDefinition
from azureml.data._storage import checked_name, json_names, workspace_folder
from azureml.exceptions import UserErrorException
from farandole.job.runs.folder import read_json, write_json
from farandole.job.runs.home import RunsHome
from farandole.job.runs.states import RunState

Entry = dict[str, Any]
_WORKSPACE_VARIABLE = "AZUREML_ARM_WORKSPACE_NAME"  # in each run of the SDK


class Registration(NamedTuple):
    """A dataset to register."""

    id: str
    definition: DatasetDefinition
    description: str | None
    tags: Mapping[str, str]


def register(workspace: Any, name: str, given: Registration, *, create_new_version: bool) -> Entry:
    """Store a dataset under a name and return its entry.

    A definition already registered under the name keeps its entry. Raises UserErrorException for an
    invalid name, or if the name has another definition and ``create_new_version`` is False.
    """
    path = os.path.join(_folder(workspace), f"{checked_name(name, 'dataset')}.json")
    versions: list[Entry] = (read_json(path) or {}).get("versions", [])
    definition = given.definition.to_json()
    same = [
        each
        for each in versions
        if DatasetDefinition.from_json(each["definition"]) == given.definition
    ]
    if same:
        return same[-1]
    if versions and not create_new_version:
        raise UserErrorException(
            f"there is already a dataset {name!r}, version {len(versions)}, in the workspace"
            f" {workspace.name!r}, with another definition; pass create_new_version=True, or choose"
            " another name"
        )
    entry: Entry = {
        "name": name,
        "version": len(versions) + 1,
        "id": given.id,
        "description": given.description,
        "tags": dict(given.tags),
        "created": time.time(),
        "definition": definition,
        "path": path,
    }
    write_json(path, {"versions": [*versions, entry]})
    save(given.id, given.definition)
    return entry


def named(workspace: Any, name: str, version: int | str = "latest") -> Entry:
    """Return the entry of a registered dataset.

    Raises UserErrorException if there is none with this name and version.
    """
    settle(workspace)
    found = read_json(os.path.join(_folder(workspace), f"{name}.json"))
    if found is None:
        known = ", ".join(json_names(_folder(workspace))) or "none"
        raise UserErrorException(
            f"there is no dataset {name!r} in the workspace {workspace.name!r} (registered:"
            f" {known}); register one with dataset.register(workspace, {name!r})"
        )
    versions: list[Entry] = found["versions"]
    if version == "latest":
        return versions[-1]
    for each in versions:
        if str(each["version"]) == str(version):
            return each
    raise UserErrorException(
        f"the dataset {name!r} has the versions 1 to {len(versions)}, not {version!r}"
    )


def names(workspace: Any) -> list[str]:
    """Return the names of all registered datasets of a workspace."""
    settle(workspace)
    return json_names(_folder(workspace))


def save(dataset_id: str, definition: DatasetDefinition) -> None:
    """Store a definition under the id of its dataset."""
    write_json(os.path.join(_shared("by_id"), f"{dataset_id}.json"), definition.to_json())


def by_id(dataset_id: str) -> DatasetDefinition:
    """Return the definition of a dataset by the dataset's id.

    Raises UserErrorException if there is none.
    """
    path = os.path.join(_shared("by_id"), f"{os.path.basename(dataset_id)}.json")
    found = read_json(path)
    if found is None:
        raise UserErrorException(
            f"there is no dataset with the id {dataset_id!r} in {RunsHome().path}; register it, or"
            " pass it to a run"
        )
    return DatasetDefinition.from_json(found)


def add_tags(entry: Entry, tags: Mapping[str, str]) -> dict[str, str]:
    return _set_tags(entry, {**(entry.get("tags") or {}), **tags})


def remove_tags(entry: Entry, names: Sequence[str]) -> dict[str, str]:
    kept = {name: text for name, text in (entry.get("tags") or {}).items() if name not in names}
    return _set_tags(entry, kept)


def _set_tags(entry: Entry, tags: dict[str, str]) -> dict[str, str]:
    _require_registered(entry)
    versions = (read_json(entry["path"]) or {}).get("versions", [])
    for each in versions:
        if each["version"] == entry["version"]:
            each["tags"] = tags
    write_json(entry["path"], {"versions": versions})
    return tags


def unregister(entry: Entry) -> None:
    """Remove the name of a registered dataset with all its versions."""
    _require_registered(entry)
    if os.path.exists(entry["path"]):
        os.unlink(entry["path"])


def _require_registered(entry: Entry) -> None:
    if not entry:
        raise UserErrorException("the dataset is not registered; call register() first")


# --- outputs that become datasets when their run completes


def expect(run_id: str, name: str, registration: Mapping[str, Any]) -> None:
    """Register the output ``name`` of a run as a dataset once the run has completed."""
    path = os.path.join(_shared("expected"), f"{run_id}.{name}.json")
    write_json(path, {"run_id": run_id, **registration})


def settle(workspace: Any) -> None:
    """Register the expected outputs of a workspace's completed runs; forget other ended runs."""
    folder = _shared("expected")
    for name in json_names(folder):
        path = os.path.join(folder, f"{name}.json")
        expected = read_json(path)
        run = None if expected is None else RunsHome().find(expected["run_id"])
        if expected is None or run is None:
            continue
        end = run.end()
        if end is None or run.spec().variables.get(_WORKSPACE_VARIABLE) != workspace.name:
            continue
        if end["state"] == RunState.COMPLETED.value:
            definition = DatasetDefinition.from_json(expected["definition"])
            given = Registration(
                expected["id"], definition, expected["description"], expected["tags"]
            )
            register(workspace, expected["name"], given, create_new_version=True)
        if os.path.exists(path):
            os.unlink(path)


def _folder(workspace: Any) -> str:
    return workspace_folder(workspace, "datasets")


def _shared(name: str) -> str:
    """Return a folder for the datasets of all workspaces."""
    return RunsHome().folder(os.path.join("azureml", ".shared", name))
