"""The command ``farandole``: one module per subcommand, imported when the subcommand is used."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from farandole.cli.parsing import mute, say
from farandole.errors import (
    JobFailedError,
    RendezvousError,
    RunError,
    SettingsError,
    did_you_mean,
)
from farandole.job.plugins import registry

USAGE = "farandole run -np N [options] [--] python train.py [arguments]"
COMMANDS = {
    "run": "start a program on N processes",
    "predict": "predict with a trained model for the rows of Parquet files",
    "hosts": "check the hosts of a job and the network between them",
    "env": "show facts about this machine and its installed packages, for a bug report",
    "config": "list every setting: flag, variable, default, meaning",
    "timeline": "merge the timelines of several ranks",
    "bench": "run the benchmarks (from a clone of the project)",
    "submit": "put a run into the queue: on this machine, on hosts, on a cluster",
    "sweep": "run a script with many values of its parameters",
    "runs": "list runs",
    "show": "show a run: state, cause, files",
    "logs": "print or follow the output of a run",
    "compare": "show what differs between runs",
    "rerun": "submit a run again",
    "stop": "end runs",
    "targets": "list or define the places where runs are executed",
    "dashboard": "show all runs on a page in the browser",
    "report": "write runs to one HTML or Markdown file",
    "export": "write a run to an archive",
    "gc": "delete old runs",
    "completion": "complete this command in bash, zsh or fish",
}
_LINES = "\n".join(f"  {name:<12}{what}" for name, what in COMMANDS.items())
HELP = f"""usage: {USAGE}
       farandole COMMAND --help

Start the same program on N processes. Commands:

{_LINES}

  -h, --help      show this text; after a command, show the help of that command
  -v, --version   show the version

example: farandole run -np 2 python train.py --epochs 3"""


def module(command: str) -> Any:
    """Return the module of a command: ``parser()`` returns its options, ``main(arguments)``
    runs it and returns the exit status.
    """
    if command in registry.BUILT_IN["command"]:
        return registry.load("command", command)
    return importlib.import_module(f"{__name__}.{command}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if None in (sys.stdin, sys.stdout, sys.stderr):
        from farandole.job.launch.limits import open_standard_streams

        open_standard_streams()
    try:
        return _dispatch(arguments)
    except SettingsError as error:
        sys.stderr.write(f"farandole: {error}\n")
        return 2
    except JobFailedError as error:
        # The reader of the output has exited, as with `farandole run ... | head`. A rank that dies
        # of SIGPIPE is an ordinary failure.
        if error.exit_code == 128 + signal.SIGPIPE and error.rank < 0:
            mute()
        else:
            sys.stderr.write(f"farandole: {error}\n")
        return error.exit_code
    except (RendezvousError, RunError) as error:  # not all hosts reported in time; a bad folder
        sys.stderr.write(f"farandole: {error}\n")
        return 1
    except BrokenPipeError:  # the same for the command's own messages
        mute()
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _dispatch(arguments: list[str]) -> int:
    first = arguments[0] if arguments else "--help"
    if first in ("-v", "-V", "--version", "version"):
        import farandole

        return say(farandole.__version__)
    if first in ("-h", "--help", "help"):
        return (
            _dispatch([arguments[1], "--help"])
            if len(arguments) > 1 and first == "help"
            else say(HELP)
        )
    if first in COMMANDS:
        status: int = module(first).main(arguments[1:])
        return status
    raise SettingsError(_unknown(first, arguments))


def _unknown(first: str, arguments: Sequence[str]) -> str:
    near = did_you_mean(first, [*COMMANDS, "--help", "--version"])
    forgotten = (
        first.startswith("-")
        or first.endswith(".py")
        or os.path.basename(first).startswith("python")
    )
    if forgotten and not near:
        added = [] if first.startswith("-") else ["-np 2"] + ["python"] * first.endswith(".py")
        wanted = " ".join(["farandole run", *added, *arguments])
        return f"the command must come first: {wanted}"
    return (
        f"unknown command {first!r} (commands: {', '.join(COMMANDS)}){near}; see farandole --help"
    )
