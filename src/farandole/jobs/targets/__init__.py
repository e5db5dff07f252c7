"""Targets: the places where runs are executed, one module per kind.

A user-defined target is a file ``targets/<name>.json`` below the home. The registered kinds, such
as ``local``, are also targets of the same name, without a file.
"""

from __future__ import annotations

import dataclasses
import os
import re
from typing import Any

from farandole.errors import SettingsError, did_you_mean
from farandole.job.plugins import registry
from farandole.job.runs.folder import read_json, write_json
from farandole.job.runs.home import RunsHome
from farandole.jobs import attempts, spool
from farandole.jobs.targets.contract import NodeCounts, RunTarget, TargetSpec, Ticket

_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}"


def load_target(home: RunsHome, name: str) -> RunTarget:
    """Return the target ``name``. Raises SettingsError if there is none."""
    spec = target_spec(home, name)
    made: RunTarget = registry.load("target", spec.kind)(spec)
    return made


def target_spec(home: RunsHome, name: str) -> TargetSpec:
    """Return the definition of a target. Raises SettingsError if there is none."""
    data = read_json(_path(home, name)) if re.fullmatch(_NAME, name) else None
    if data is not None:
        known = {each.name for each in dataclasses.fields(TargetSpec)}
        return TargetSpec(**{key: value for key, value in data.items() if key in known})
    kinds = registry.names("target")
    if name in kinds:
        return TargetSpec(name, name)
    known_names = names(home)
    raise SettingsError(
        f"there is no target {name!r} (targets: {', '.join(known_names)})"
        f"{did_you_mean(name, known_names)}; define one with: farandole targets add"
    )


def save_target(home: RunsHome, spec: TargetSpec) -> None:
    """Store a target's definition. Raises SettingsError if its name or options are invalid."""
    if not re.fullmatch(_NAME, spec.name):
        raise SettingsError(
            f"the target's name {spec.name!r} must have 1 to 100 letters, digits, '_', '-' or '.',"
            " and begin with a letter or a digit"
        )
    registry.load("target", spec.kind)(spec)
    data: dict[str, Any] = dataclasses.asdict(spec)
    home.folder("targets")
    write_json(_path(home, spec.name), data)


def remove_target(home: RunsHome, name: str) -> None:
    """Delete the definition of a target. Raises SettingsError if there is none."""
    try:
        os.unlink(_path(home, name))
    except FileNotFoundError:
        target_spec(home, name)
        raise SettingsError(f"the target {name!r} is built in and cannot be removed") from None


def names(home: RunsHome) -> list[str]:
    """Return the names of all targets: the built-in kinds, then the user's."""
    try:
        files = sorted(os.listdir(os.path.join(home.path, "targets")))
    except FileNotFoundError:
        files = []
    defined = [name[: -len(".json")] for name in files if name.endswith(".json")]
    return [*registry.names("target"), *defined]


def node_counts(home: RunsHome, name: str) -> NodeCounts | None:
    """Return the number of a target's nodes by state; None if unknown to the target.

    Raises SettingsError if there is no such target, and RunError if its cluster does not respond.
    """
    tickets = []
    for folder in spool.entries(home):
        if folder.exists() and folder.end() is None and folder.spec().target == name:
            ticket = attempts.ticket_of(folder, attempts.number(folder))
            if ticket is not None:
                tickets.append(Ticket(name, ticket["data"]))
    return load_target(home, name).nodes(tickets)


def _path(home: RunsHome, name: str) -> str:
    return os.path.join(home.path, "targets", f"{name}.json")
