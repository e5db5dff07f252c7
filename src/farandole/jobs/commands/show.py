"""``farandole show``: all facts about one run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from farandole.cli.parsing import Parser, say
from farandole.errors import counted
from farandole.job.runs.home import RunsHome
from farandole.jobs.commands.output import facts_table, print_json
from farandole.jobs.details import details, readable_duration, readable_size, readable_time
from farandole.jobs.references import find_run
from farandole.jobs.summary import summary

_MOST_ARTIFACTS = 10
_MOST_MEMBERSHIPS = 5


def parser() -> Parser:
    made = Parser(
        prog="farandole show",
        example="farandole show last",
        description="Show a run: its state, its cause of failure, its files, and what to do next.",
    )
    made.add_argument("run", metavar="RUN", nargs="?", default="last", help="id, name or last")
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(list(arguments))
    folder = find_run(RunsHome(), options.run)
    found = {**details(folder), **summary(folder)}
    return print_json(found) if options.json else say(described(found))


def described(found: dict[str, Any]) -> str:
    """Return the facts about a run as text for a terminal."""
    git = found["submission"].get("git")
    commit = f"{git['commit'][:12]}{' with changes' if git['dirty'] else ''}" if git else ""
    return facts_table(
        [
            ("run", found["run_id"]),
            ("name", found["name"]),
            ("state", found["state"]),
            ("cause", found["cause"]),
            ("command", " ".join(found["command"]) or "a function"),
            ("target", f"{found['target']}: {_places(found)}"),
            ("ranks", _memberships(found["memberships"])),
            ("submitted", readable_time(found["submitted"])),
            ("started", readable_time(found["started"])),
            ("duration", readable_duration(found["seconds"])),
            ("attempts", str(found["attempts"]) if found["attempts"] > 1 else ""),
            ("settings", _pairs(found["settings"])),
            ("parameters", _pairs({**found["parameters"], **found["logged_parameters"]})),
            ("metrics", _numbers(found["metrics"])),
            ("measured", _numbers(found["automatic"])),
            ("findings", "\n".join(found["findings"])),
            ("tags", _pairs(found["tags"])),
            ("git", commit),
            ("notes", "\n".join(found["messages"])),
            ("outputs", _artifacts(found["artifacts"])),
            ("tensorboard", "\n".join(f"tensorboard --logdir {at}" for at in found["tensorboard"])),
            ("folder", found["folder"]),
        ]
    )


def _places(found: dict[str, Any]) -> str:
    places = f"{counted(found['ranks'], 'rank')} on {counted(found['nodes'], 'node')}"
    resources = found["resources"]
    if not resources["max_nodes"]:
        return places
    return f"{places} (elastic: {resources['min_nodes']} to {resources['max_nodes']} nodes)"


def _memberships(memberships: list[dict[str, Any]]) -> str:
    """Return the latest memberships of an elastic run, one per line; empty if the ranks have not
    changed.
    """
    if len(memberships) < 2:
        return ""
    lines = [
        f"{each['ranks']} since {readable_time(each['time'])} (processes"
        f" {', '.join(map(str, each['processes']))})"
        for each in memberships
    ]
    if len(lines) > _MOST_MEMBERSHIPS:
        lines = [f"{len(lines) - _MOST_MEMBERSHIPS} earlier", *lines[-_MOST_MEMBERSHIPS:]]
    return "\n".join(lines)


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" if value != "" else name for name, value in values.items())


def _numbers(values: dict[str, float]) -> str:
    """Return the last values of metrics, one per line; bytes in a readable unit."""
    return "\n".join(
        f"{name.replace('_bytes', '')}  {readable_size(int(value))}"
        if "_bytes" in name
        else f"{name}  {value:.4g}"
        for name, value in sorted(values.items())
    )


def _artifacts(artifacts: list[dict[str, Any]]) -> str:
    lines = [f"{each['path']}  {readable_size(each['bytes'])}" for each in artifacts]
    if len(lines) > _MOST_ARTIFACTS:
        lines[_MOST_ARTIFACTS:] = [f"and {len(lines) - _MOST_ARTIFACTS} more"]
    return "\n".join(lines)
