"""``farandole submit``: put a run into the queue and return."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

from farandole.cli.parsing import Parser, say
from farandole.cli.run import add_setting, overrides, split
from farandole.errors import SettingsError
from farandole.job.config import Settings
from farandole.job.config.fields import settings_of
from farandole.job.runs.home import EXPERIMENT, RunsHome
from farandole.job.runs.spec import INPUT_MODES, POLICIES, EnvironmentSpec, InputSpec
from farandole.jobs.commands.output import follow_to_end, print_json
from farandole.jobs.details import details
from farandole.jobs.experiment import Experiment, ScriptRun

USAGE = "farandole submit [options] [--] python train.py [arguments]"
EXAMPLE = """farandole submit --nodes 2 --ranks-per-node 2 -- python train.py --epochs 3
         farandole submit --input data=s3://bucket/x.zip -- python train.py --data {data}"""
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
# Settings for which this command has its own options.
_OWN = ("grace_seconds", "track", "min_np", "max_np", "host_discovery_script", "slots_per_host")


def parser() -> Parser:
    made = Parser(
        prog="farandole submit",
        usage=USAGE,
        example=EXAMPLE,
        description="Put a run into the queue. It starts when its target has room for it.",
    )
    _add_request(made)
    _add_environment(made)
    _add_rules(made)
    groups: dict[str, Any] = {}
    for setting in settings_of(Settings):
        if setting.name not in _OWN:
            if setting.group not in groups:
                groups[setting.group] = made.add_argument_group(setting.group)
            add_setting(groups[setting.group], setting)
    return made


def _add_request(made: Parser) -> None:
    add = made.add_argument_group("program and resources").add_argument
    add("--experiment", metavar="NAME", help="group of runs (default: --name, else the folder's)")
    add("--name", metavar="NAME", default="", help="display name of the run")
    add("--source", metavar="DIR", default=".", help="folder of the program (default: this one)")
    add(
        "--snapshot-limit",
        metavar="SIZE",
        type=size,
        default=0,
        help="largest snapshot of the folder (default: 300 MB in 2,000 files)",
    )
    add("--target", metavar="NAME", default="local", help="where it runs (default: local)")
    add("--nodes", metavar="N", type=int, default=1, help="number of nodes (default: 1)")
    add(
        "--min-nodes",
        metavar="N",
        type=int,
        default=0,
        help="minimum number of nodes of an elastic run (default: fixed size)",
    )
    add(
        "--max-nodes",
        metavar="N",
        type=int,
        default=0,
        help="maximum number of nodes of an elastic run",
    )
    add(
        "--ranks-per-node",
        "-np",
        metavar="N",
        type=int,
        default=1,
        help="processes on each node (default: 1)",
    )
    add("--cores", metavar="X", type=float, default=1.0, help="cores per rank (default: 1)")
    add("--memory", metavar="SIZE", type=size, default=0, help="memory per rank, such as 4G")
    add("--gpus", metavar="N", type=int, default=0, help="GPUs per rank (default: 0)")
    add(
        "--input",
        metavar="NAME=PATH",
        action="append",
        type=named_input,
        default=[],
        help=f"input; its path replaces {{NAME}} in the command. NAME:MODE=PATH sets the mode:"
        f" {', '.join(INPUT_MODES)} (default: mount)",
    )


def _add_environment(made: Parser) -> None:
    add = made.add_argument_group("environment").add_argument
    add("--environment", metavar="FILE", default="", help="requirements, pyproject or conda file")
    add(
        "--policy",
        choices=POLICIES,
        metavar="|".join(POLICIES),
        default="current",
        help="run in this interpreter, build an environment, or require a matching interpreter",
    )
    add("--python", metavar="PATH", default="", help="interpreter of an existing environment")
    add(
        "--env",
        metavar="NAME=VALUE",
        action="append",
        type=pair,
        default=[],
        help="environment variable of the ranks",
    )


def _add_rules(made: Parser) -> None:
    add = made.add_argument_group("queue and end").add_argument
    add("--priority", metavar="N", type=int, default=0, help="runs with higher numbers start first")
    add("--after", metavar="RUN", action="append", default=[], help="run that must complete first")
    add("--retries", metavar="N", type=int, default=0, help="further attempts after a failure")
    add(
        "--time-limit",
        metavar="TIME",
        type=duration,
        default=0.0,
        help="time limit of the run, such as 90m or 2h",
    )
    add(
        "--grace-seconds",
        metavar="SECONDS",
        type=float,
        default=30.0,
        help="time to save state after a request to stop (default: 30 s)",
    )
    add("--tag", metavar="NAME=TEXT", action="append", type=pair, default=[], help="tag")
    add("-f", "--follow", action="store_true", help="show the output until the run ends")
    add("--json", action="store_true", help="print the facts about the run as JSON")


def main(arguments: Sequence[str]) -> int:
    made = parser()
    flags, command = split(made, arguments)
    options = made.parse_args(flags)
    if not command:
        raise SettingsError(f"the command to run is missing. Usage: {USAGE}")
    run = Experiment(experiment_of(options)).submit(request(options, command))
    home = RunsHome()
    folder = home.find(run.id)
    assert folder is not None
    if options.json:
        print_json(details(folder))
    else:
        say(f"{run.id}")
        for text in details(folder)["messages"]:
            sys.stderr.write(f"farandole: {text}\n")
        sys.stderr.write(f"farandole: follow it with: farandole logs -f {run.id}\n")
    return follow_to_end(folder) if options.follow else 0


def request(options: argparse.Namespace, command: Sequence[str]) -> ScriptRun:
    return ScriptRun(
        source_directory=options.source,
        snapshot_limit=options.snapshot_limit,
        command=list(command),
        nodes=options.nodes,
        ranks_per_node=options.ranks_per_node,
        min_nodes=options.min_nodes,
        max_nodes=options.max_nodes,
        target=options.target,
        environment=EnvironmentSpec(
            policy=options.policy, file=options.environment, python=options.python
        ),
        inputs={spec.name: spec for spec in options.input},
        cores=options.cores,
        memory=options.memory,
        gpus=options.gpus,
        name=options.name,
        settings=overrides(vars(options)),
        variables=dict(options.env),
        tags=dict(options.tag),
        retries=options.retries,
        time_limit=options.time_limit,
        grace_seconds=options.grace_seconds,
        priority=options.priority,
        after=[run_id(each) for each in options.after],
    )


def run_id(text: str) -> str:
    """Return the id of the run that ``text`` refers to."""
    from farandole.jobs.references import find_run

    return find_run(RunsHome(), text).run_id


def experiment_of(options: argparse.Namespace) -> str:
    """Return the experiment from the options, or a default derived from them."""
    return options.experiment or _experiment(options.name or options.source)


def _experiment(text: str) -> str:
    """Return the name of an experiment, derived from a display name or a folder."""
    found = re.sub(r"[^A-Za-z0-9_.-]+", "-", os.path.basename(os.path.abspath(text))).strip("-.")
    return found[:100] if re.fullmatch(EXPERIMENT, found[:100]) else "default"


def size(text: str) -> int:
    """Return the number of bytes for a size such as ``4G``."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgt]?)(?:i?b)?", text.strip().lower())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; use a form such as 512M or 4G")
    return int(float(found[1]) * _UNITS[found[2]])


def duration(text: str) -> float:
    """Return the seconds for a duration such as ``90m``, ``2h`` or ``30``."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text.strip().lower())
    if found is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a duration; use a form such as 90s, 20m, 2h or 1d"
        )
    return float(found[1]) * _SECONDS[found[2]]


def pair(text: str) -> tuple[str, str]:
    """Return the name and the value of ``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} must have the form NAME=VALUE")
    return name, value


def named_input(text: str) -> InputSpec:
    """Return the input of ``NAME=PATH`` or ``NAME:MODE=PATH``."""
    name, path = pair(text)
    name, _, mode = name.partition(":")
    if not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{name!r} must be a name of letters, digits and '_'")
    if mode and mode not in INPUT_MODES:
        raise argparse.ArgumentTypeError(f"{mode!r} must be one of {', '.join(INPUT_MODES)}")
    return InputSpec(name, path, mode or "mount")
