"""``farandole targets``: the places where runs are executed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from farandole.cli.parsing import Parser, one_of, say
from farandole.errors import SettingsError
from farandole.job.plugins import registry
from farandole.job.runs.home import RunsHome
from farandole.job.runs.spec import Resources
from farandole.jobs.commands.output import columns, facts_table, print_json
from farandole.jobs.commands.submit import pair
from farandole.jobs.targets import (
    load_target,
    names,
    node_counts,
    remove_target,
    save_target,
    target_spec,
)
from farandole.jobs.targets.contract import NodeCounts, TargetSpec

ACTIONS = ("list", "add", "show", "remove")


def parser() -> Parser:
    made = Parser(
        prog="farandole targets",
        example="farandole targets add lab --kind ssh --option hosts=h1:2,h2:2",
        description="List, define, check and remove targets.",
    )
    made.add_argument(
        "action",
        nargs="?",
        default="list",
        type=one_of(ACTIONS),
        choices=ACTIONS,
        metavar="|".join(ACTIONS),
        help="default: list",
    )
    made.add_argument("name", nargs="?", metavar="NAME", help="name of the target")
    made.add_argument("--kind", metavar="KIND", help="local, ssh, slurm, spark")
    made.add_argument(
        "--option",
        metavar="NAME=VALUE",
        action="append",
        type=pair,
        default=[],
        help="option of the kind, such as hosts, partition or master; values may be JSON",
    )
    made.add_argument(
        "--min-nodes", metavar="N", type=int, default=0, help="minimum number of nodes to keep"
    )
    made.add_argument("--max-nodes", metavar="N", type=int, default=0, help="0: no limit")
    made.add_argument(
        "--idle-seconds",
        metavar="SECONDS",
        type=float,
        default=1800.0,
        help="time after which an idle node is released (default: 1800 s)",
    )
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(list(arguments))
    home = RunsHome()
    if options.action == "list":
        return _list(home, options.json)
    if not options.name:
        raise SettingsError(
            f"the name of the target is missing: farandole targets {options.action} NAME"
        )
    if options.action == "add":
        return _add(home, options)
    if options.action == "remove":
        remove_target(home, options.name)
        return say(f"{options.name} is removed")
    return _show(home, options.name, options.json)


def _list(home: RunsHome, as_json: bool) -> int:
    specs = [target_spec(home, name) for name in names(home)]
    if as_json:
        return print_json([dataclasses.asdict(spec) for spec in specs])
    rows = [("target", "kind", "options")]
    rows += [(spec.name, spec.kind, _options(spec)) for spec in specs]
    return say(columns(rows))


def _add(home: RunsHome, options: Any) -> int:
    if not options.kind:
        known = ", ".join(registry.names("target"))
        raise SettingsError(f"--kind is missing: one of {known}")
    spec = TargetSpec(
        options.name,
        options.kind,
        options.min_nodes,
        options.max_nodes,
        options.idle_seconds,
        {name: _value(text) for name, text in options.option},
    )
    save_target(home, spec)
    return _show(home, options.name, options.json)


def _show(home: RunsHome, name: str, as_json: bool) -> int:
    """Print a target, and the reason if it does not work on this host."""
    spec = target_spec(home, name)
    target = load_target(home, name)
    try:
        target.check(Resources())
        obstacle = ""
    except SettingsError as error:
        obstacle = str(error)
    counts = None if obstacle else node_counts(home, name)
    capacity = target.capacity()
    if as_json:
        facts = capacity._asdict() if capacity is not None else None
        now = counts._asdict() if counts is not None else None
        return print_json(
            {**dataclasses.asdict(spec), "capacity": facts, "now": now, "obstacle": obstacle}
        )
    own = "a queue of its own"
    return say(
        facts_table(
            [
                ("target", spec.name),
                ("kind", spec.kind),
                ("options", _options(spec)),
                ("nodes", f"{spec.min_nodes} to {spec.max_nodes}" if spec.max_nodes else ""),
                ("now", _counted(counts)),
                ("cores", own if capacity is None else f"{capacity.cores:g}"),
                ("gpus", str(capacity.gpus) if capacity is not None and capacity.gpus else ""),
                ("works here", obstacle or "yes"),
            ]
        )
    )


def _counted(counts: NodeCounts | None) -> str:
    """Return the number of nodes by state, such as ``2 idle, 1 running``; empty if unknown."""
    found = {} if counts is None else counts._asdict()
    return ", ".join(f"{count} {state}" for state, count in found.items() if count)


def _options(spec: TargetSpec) -> str:
    return ", ".join(f"{name}={value}" for name, value in spec.options.items())


def _value(text: str) -> Any:
    """Return the value of an option: a JSON object or array, otherwise the text itself."""
    if text.startswith(("{", "[")):
        try:
            return json.loads(text)
        except ValueError as error:
            raise SettingsError(f"the option's value {text!r} is not JSON: {error}") from None
    return text
