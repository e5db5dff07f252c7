"""``farandole sweep``: run a script with many values of its parameters."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from farandole.cli.parsing import Parser, one_of, say
from farandole.cli.run import split
from farandole.errors import SettingsError
from farandole.job.runs.folder import RunFolder
from farandole.jobs.commands.output import follow_to_end
from farandole.jobs.commands.submit import experiment_of, pair, request
from farandole.jobs.commands.submit import parser as submit_parser
from farandole.jobs.experiment import Experiment
from farandole.jobs.sweeps.policies import POLICIES, Policy, make_policy
from farandole.jobs.sweeps.space import Distribution, parse_distribution
from farandole.jobs.sweeps.sweep import Sweep

USAGE = "farandole sweep --param NAME=VALUES ... --metric NAME [options] [--] python train.py"
EXAMPLE = """farandole sweep --param lr=loguniform(1e-4,0.1) --param batch=16,32 \\
             --count 20 --concurrent 4 --metric val_loss --stop-policy bandit:slack_factor=0.1 \\
             -- python train.py"""
_POLICY = {"bandit": "slack_factor", "truncation": "percentage"}


def parser() -> Parser:
    made = submit_parser()
    made.prog, made.usage = "farandole sweep", USAGE
    made.description = (
        "Run a script with many values of its parameters. The options of submit are also accepted."
    )
    made.epilog = f"example: {EXAMPLE}"
    add = made.add_argument_group("sweep").add_argument
    add(
        "--param",
        metavar="NAME=VALUES",
        action="append",
        type=parameter,
        default=[],
        help="16,32,64 or uniform(0,1), loguniform(1e-4,0.1), quniform(0,1,0.1), randint(10),"
        " normal(0,1); reaches the script as --NAME VALUE, or in place of {NAME}",
    )
    add("--metric", metavar="NAME", help="the metric that decides which run is best")
    add(
        "--goal",
        type=one_of(("minimize", "maximize")),
        choices=("minimize", "maximize"),
        default="minimize",
        metavar="minimize|maximize",
        help="default: minimize",
    )
    add(
        "--search",
        type=one_of(("random", "grid")),
        choices=("random", "grid"),
        default="random",
        metavar="random|grid",
        help="default: random",
    )
    add("--count", metavar="N", type=int, default=0, help="number of runs; 0: all of a grid")
    add("--concurrent", metavar="N", type=int, default=1, help="simultaneous runs (default: 1)")
    add(
        "--stop-policy",
        metavar="NAME:ARGUMENTS",
        type=policy,
        dest="stop_policy",
        default=make_policy("none", {}),
        help="end unpromising runs: bandit:slack_factor=0.1, median, truncation:percentage=20",
    )
    add("--seed", metavar="N", type=int, default=0, help="seed of the random search (default: 0)")
    return made


def main(arguments: Sequence[str]) -> int:
    made = parser()
    flags, command = split(made, arguments)
    options = made.parse_args(flags)
    if not command:
        raise SettingsError(f"the command to run is missing. Usage: {USAGE}")
    if not options.metric:
        raise SettingsError("--metric is missing: the name of the metric that the script logs")
    sweep = Sweep(
        request(options, command),
        dict(options.param),
        options.metric,
        options.goal,
        options.search,
        options.count,
        options.concurrent,
        options.stop_policy,
        options.seed,
    )
    run = Experiment(experiment_of(options)).submit(sweep)
    say(run.id)
    if options.follow:
        return follow_to_end(RunFolder(run.folder))
    sys.stderr.write(f"farandole: follow it with: farandole logs -f {run.id}\n")
    return 0


def parameter(text: str) -> tuple[str, Distribution]:
    """Return the name and the distribution of ``NAME=VALUES``."""
    name, values = pair(text)
    try:
        return name, parse_distribution(values)
    except SettingsError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def policy(text: str) -> Policy:
    """Return the policy of ``NAME`` or ``NAME:ARGUMENT=NUMBER,...``."""
    kind, _, rest = text.partition(":")
    arguments: dict[str, Any] = {}
    for word in filter(None, rest.split(",")):
        name, equals, value = word.partition("=")
        if not equals:
            name, value = _POLICY.get(kind, name), name
        try:
            arguments[name] = (
                int(value) if name.endswith(("interval", "evaluation")) else float(value)
            )
        except ValueError:
            raise argparse.ArgumentTypeError(f"{word!r} must be NAME=NUMBER") from None
    try:
        return make_policy(kind, arguments)
    except SettingsError as error:
        raise argparse.ArgumentTypeError(f"{error} ({', '.join(POLICIES)})") from None
