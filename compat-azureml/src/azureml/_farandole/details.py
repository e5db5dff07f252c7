"""``get_details()`` of a run."""

from __future__ import annotations

import datetime
import uuid
from typing import Any

from azureml._farandole.definition import FILE, INTERACTIVE, definition_of_spec
from azureml._farandole.files import RunFiles
from azureml._farandole.status import status_of
from azureml._farandole.stored import RunChanges
from farandole.job.runs.folder import RunFolder, read_json
from farandole.job.runs.states import RunState
from farandole.jobs.details import state_times


def details(folder: RunFolder) -> dict[str, Any]:
    """Return all facts about a run with the keys of Azure's service."""
    spec, submitted, end = folder.spec(), folder.submitted(), folder.end()
    facts = read_json(folder.file(FILE)) or {}
    interactive = INTERACTIVE in facts
    started = state_times(folder).get(RunState.RUNNING)
    found: dict[str, Any] = {
        "runId": folder.run_id,
        "target": "sdk" if interactive else spec.target,
        "status": status_of(folder),
    }
    if started is not None:
        found["startTimeUtc"] = iso(started)
    if end is not None:
        found["endTimeUtc"] = iso(end["time"])
    found["services"] = {}
    if notes := warnings(folder):
        found["warnings"] = [{"source": "Farandole", "message": text} for text in notes]
    if end is not None and end["state"] == RunState.FAILED.value:
        found["error"] = error(end)
    found["properties"] = properties(folder, started=started is not None, interactive=interactive)
    found["inputDatasets"] = facts.get("inputDatasets", [])
    found["outputDatasets"] = facts.get("outputDatasets", [])
    if not interactive:
        found["runDefinition"] = facts.get("runDefinition") or definition_of_spec(spec)
    found["logFiles"] = RunFiles(folder).log_urls()
    found["submittedBy"] = submitted["user"]
    return found


def properties(folder: RunFolder, *, started: bool, interactive: bool) -> dict[str, str]:
    """Return the properties of a run: first those that Azure's service sets, then the program's."""
    spec, submitted = folder.spec(), folder.submitted()
    found = {}
    if not interactive:
        found["_azureml.ComputeTargetType"] = _target_type(spec.target)
    if submitted.get("snapshot"):
        found["ContentSnapshotId"] = snapshot_id(submitted["snapshot"])
    git = submitted.get("git")
    if git:
        found |= {
            "azureml.git.repository_uri": git["remote"],
            "mlflow.source.git.repoURL": git["remote"],
            "azureml.git.branch": git["branch"],
            "mlflow.source.git.branch": git["branch"],
            "azureml.git.commit": git["commit"],
            "mlflow.source.git.commit": git["commit"],
            "azureml.git.dirty": str(git["dirty"]),
        }
    if started and not interactive:
        found["ProcessInfoFile"] = "azureml-logs/process_info.json"
        found["ProcessStatusFile"] = "azureml-logs/process_status.json"
    return {**found, **RunChanges(folder).get("properties", {})}


def _target_type(name: str) -> str:
    """Return the type of a target; ``amlcompute`` for a deleted target."""
    from azureml.core.compute_target import ComputeTarget
    from azureml.core.workspace import Workspace
    from azureml.exceptions import ComputeTargetException

    if name == "local":
        return "local"
    try:
        return ComputeTarget(Workspace(), name).type.lower()
    except ComputeTargetException:
        return "amlcompute"


def error(end: dict[str, Any]) -> dict[str, Any]:
    """Return the failure of a run with the keys of Azure's service."""
    return {
        "error": {
            "code": "UserError",
            "severity": None,
            "message": end["cause"],
            "messageFormat": "{Message}",
            "messageParameters": {},
            "referenceCode": None,
            "detailsUri": None,
            "target": None,
            "details": [],
            "innerError": None,
            "debugInfo": None,
            "additionalInfo": None,
        },
        "correlation": None,
        "environment": "local",
        "location": "local",
        "time": iso(end["time"]),
        "componentName": "farandole",
    }


def warnings(folder: RunFolder) -> list[str]:
    """Return the messages for the user about a run."""
    kinds = ("note", "warning")
    return [
        event["text"] for event in folder.events() if event["event"] in kinds and "text" in event
    ]


def snapshot_id(digest: str) -> str:
    """Return the id of a snapshot: a uuid of the digest of its files."""
    return (
        str(uuid.UUID(digest[:32]))
        if len(digest) >= 32
        else str(uuid.uuid5(uuid.NAMESPACE_OID, digest))
    )


def iso(seconds: float) -> str:
    """Return a time in ISO 8601, in UTC with a Z."""
    found = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    return found.isoformat(timespec="microseconds").replace("+00:00", "Z")
