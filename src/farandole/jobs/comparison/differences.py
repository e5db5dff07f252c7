"""The differences between runs, in their requests and in their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from farandole.job.runs.folder import RunFolder
from farandole.jobs.details import details, readable_duration

# Facts that are not compared, because they differ between any two runs.
_OWN = (
    "run_id",
    "folder",
    "submitted",
    "started",
    "ended",
    "messages",
    "artifacts",
    "submission",
    "memberships",
    "rank_seconds",
)


def differences(folders: Sequence[RunFolder]) -> dict[str, list[Any]]:
    """Return the differing facts by name, with one value per run; None if a run lacks the fact.

    Raises RunError if the folder of a run is damaged.
    """
    facts = [flattened(folder) for folder in folders]
    names = dict.fromkeys(name for each in facts for name in each)
    rows = {name: [each.get(name) for each in facts] for name in names}
    return {name: values for name, values in rows.items() if any(v != values[0] for v in values)}


def flattened(folder: RunFolder) -> dict[str, Any]:
    """Return a run's facts under dotted names, with its rank-hours and last metrics."""
    from farandole.jobs.metrics import last_values

    found = details(folder)
    facts = flat({name: value for name, value in found.items() if name not in _OWN})
    submission = found["submission"]
    facts |= flat({"git": submission.get("git", {}), "versions": submission.get("versions", {})})
    facts["snapshot"] = submission.get("snapshot", "")[:12]
    if found["seconds"] is not None:
        facts["seconds"] = readable_duration(found["seconds"])
        facts["rank-hours"] = f"{found['rank_seconds'] / 3600:.4f}"
    facts |= {f"metric.{name}": value for name, value in last_values(folder).items()}
    return facts


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one flat dict, with names like ``resources.nodes``."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = " ".join(map(str, value)) if name == "command" else value
    return found
