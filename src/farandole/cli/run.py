"""``farandole run``: its options, and checks for common mistakes."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from farandole.base.host import cores
from farandole.cli import USAGE
from farandole.cli.parsing import Parser, say
from farandole.errors import SettingsError, counted, did_you_mean, nearest
from farandole.job.config import Settings
from farandole.job.config.fields import Setting, parse, settings_of
from farandole.job.plugins import registry

if TYPE_CHECKING:
    from farandole.job.launch.job import Job

EXAMPLE = """farandole run -np 2 python train.py --epochs 3
         farandole run -np auto --output-dir logs python train.py"""
# Names of the flag in torchrun, accelerate, Slurm and Horovod.
ELSEWHERE = {
    "--nproc": "-np",
    "--nproc-per-node": "-np",
    "--num-processes": "-np",
    "--ntasks": "-np",
    "--world-size": "-np",
    "-c": "-np",
    "-N": "-np",
    "--output-filename": "--output-dir",
    "--prefix-output-with-timestamp": "--prefix-timestamp",
    "--host": "--hosts",
    "-hostfile": "--hostfile",
    "--quiet": "--log-level",
    "--debug": "--log-level",
    "--version": "farandole --version",
}
_ATTACHED = r"(-np|-n)=?(\d\S*|auto)"
_PROC = ("-np", "-n", "--np", "--num-proc")

# An empty value would disable these options.
_NAMED = ("--hostfile", "--output-dir", "--config-file", "--launcher")
# options of mpirun, docker and srun
_ENV = ("-x", "-env", "-genv", "-genvlist", "--env", "--export")
LONG_DASHES = ("\u2013", "\u2014", "\u2212")
_SHELL = ("cd", "export", "source", "set", "ulimit", "alias", "eval")
# Python's options without a value.
_PLAIN = ("-u", "-O", "-OO", "-B", "-s", "-S", "-E", "-I", "-P", "-q", "-v")


def parser(launchers: Sequence[str] = ()) -> Parser:
    """Return the parser. Options for settings are generated from ``config``.

    ``launchers``: names for the help text; searching other distributions for names takes a while.
    """
    made = Parser(prog="farandole run", usage=USAGE, add_help=False, example=EXAMPLE)
    made.set_defaults(from_file={})  # see config_file
    _add_placement(made, launchers)
    _add_output(made)
    groups: dict[str, Any] = {}
    for setting in settings_of(Settings):
        if setting.group not in groups:
            groups[setting.group] = made.add_argument_group(setting.group)
        add_setting(groups[setting.group], setting)
    return made


def _add_placement(made: Parser, launchers: Sequence[str]) -> None:
    """Add the options for processes and hosts."""
    add = made.add_argument_group("processes and hosts").add_argument
    add(
        *_PROC,
        dest="np",
        metavar="N",
        help="number of processes; auto: chosen for this machine",
    )
    add(
        "-H",
        "--hosts",
        metavar="H:N,...",
        help="hosts, each with its number of slots (default: this machine)",
    )
    add(
        "--hostfile",
        metavar="FILE",
        help="read the hosts from a file with lines like: host slots=2",
    )
    add(
        "--launcher",
        metavar="NAME",
        help=f"how to start processes: {', '.join(['auto', *launchers])}",
    )
    add(
        "--config-file",
        metavar="FILE",
        help="YAML file of these options by name (np: 2); the command line has precedence",
    )


def _add_output(made: Parser) -> None:
    """Add the options for the ranks' output."""
    add = made.add_argument_group("output").add_argument
    add(
        "--output-dir",
        metavar="DIR",
        help="write the output of each rank to DIR/rank.<number>/stdout and stderr",
    )
    add(
        "--show-ranks",
        metavar="N,...",
        help="show the output of these ranks only (files and error reports cover all ranks)",
    )
    add(
        "--prefix-timestamp",
        action="store_true",
        default=None,
        help="prefix each line with the time",
    )
    add(
        "-v",
        "--verbose",
        action="store_true",
        default=None,
        help="log where each rank starts",
    )
    add("-h", "--help", action="store_true", help="show this text")


def full_parser() -> Parser:
    return parser(registry.names("launcher"))


def add_setting(group: Any, setting: Setting) -> None:
    """Add the setting's flag to a parser or one of its groups."""
    if setting.kind is bool:
        group.add_argument(
            setting.flag, dest=_dest(setting), action="store_true", default=None, help=setting.doc
        )
        return
    default = (
        f" (default: {' '.join([setting.shown(setting.default), setting.unit]).rstrip()})"
        if setting.default != ""
        else ""
    )
    group.add_argument(
        setting.flag,
        dest=_dest(setting),
        metavar=_metavar(setting),
        help=f"{setting.doc}{default}".replace("%", "%%"),
    )


def _dest(setting: Setting) -> str:
    return f"setting_{setting.name}"


def _metavar(setting: Setting) -> str:
    if setting.choices:
        return "LEVEL" if len(setting.choices) > 3 else "|".join(setting.choices)
    if setting.scale != 1.0:
        return "MIB"
    unit = {"s": "SECONDS", "ms": "MS"}.get(setting.unit)
    text = "FILE" if "file" in setting.doc else "TEXT"
    return unit or {int: "N", float: "X", str: text}[setting.kind]


def main(arguments: Sequence[str]) -> int:
    made = parser()
    flags, command = split(made, arguments)
    options = made.parse_args(flags)
    if options.help:
        return say(full_parser().format_help().rstrip())
    if options.config_file:
        from farandole.cli import config_file

        config_file.fill(options, made, options.config_file)
    if options.np is None and not _is_elastic(options):
        raise SettingsError(_without_np(command))
    if not command:
        raise SettingsError(f"the command to run is missing. Usage: {USAGE}")
    from farandole.job.launch import driver
    from farandole.job.launch.config_file import naming

    check_input(command)
    with naming(options.from_file.values()):
        found = job(options, command)
        if found.launcher.name == "local":  # type: ignore[union-attr]
            check_command(command)
        driver.run(found)
    return 0


def job(options: argparse.Namespace, command: Sequence[str]) -> Job:
    """Return the job for the options."""
    from farandole.job.launch.config_file import within
    from farandole.job.launch.contract import JobRequest
    from farandole.job.launch.display import Display
    from farandole.job.launch.elastic_plan import MOST_RANKS, plan_of
    from farandole.job.launch.job import Job, ranks_of, settings_for
    from farandole.job.launch.plan import parse_hosts, read_hostfile

    if options.hosts and options.hostfile:
        raise SettingsError("--hosts and --hostfile are mutually exclusive: use only one of them")
    if options.hostfile:
        options.hosts = read_hostfile(options.hostfile)
    if "hosts" in options.from_file:
        with within(options.from_file["hosts"]):
            parse_hosts(options.hosts)
    wanted = options.launcher or "auto"
    request = JobRequest(0, hosts=options.hosts)
    with within(options.from_file.get("launcher")):
        launcher = (
            registry.best("launcher", request)
            if wanted == "auto"
            else registry.load("launcher", wanted)()
        )
    given = overrides(vars(options))
    settings = settings_for({}, given)
    np = _number(options, launcher.name) if options.np is not None else None
    elastic = plan_of(np, settings, options.hosts)
    most = np or 0
    if elastic is not None:
        np, most = elastic.options.np, elastic.options.max_np or MOST_RANKS
    assert np is not None
    _check_exchange(settings)
    _report_idle(given, settings)
    return Job(
        np=np,
        command=command,
        settings=settings,
        hosts=options.hosts,
        launcher=launcher,
        display=Display(
            output_dir=options.output_dir,
            prefix_timestamp=bool(options.prefix_timestamp),
            show_ranks=None if options.show_ranks is None else ranks_of(options.show_ranks, most),
            verbose=bool(options.verbose),
        ),
        elastic=elastic,
    )


def _is_elastic(options: argparse.Namespace) -> bool:
    """Return whether flags or variables request an elastic job, for which the initial number of
    processes is optional.
    """
    from farandole.job.launch.elastic_plan import is_elastic
    from farandole.job.launch.job import settings_for

    return is_elastic(settings_for({}, overrides(vars(options))))


def _check_exchange(settings: Settings) -> None:
    """Raise SettingsError for an invalid strategy or codec before the job starts, not on every
    rank.
    """
    codec = registry.make("codec", settings.codec) if settings.codec else None
    if settings.strategy == Settings().strategy:
        return
    from farandole.strategies.specs import strategy_of

    try:
        chosen = strategy_of(settings.strategy)
    except ValueError as error:
        raise SettingsError(f"--strategy {settings.strategy}: {error}") from None
    if codec is None or isinstance(chosen, str):
        return
    if why := chosen.reference.objection(chosen, codec):
        raise SettingsError(f"--codec {settings.codec} {why}")


def _report_idle(given: Mapping[str, Any], settings: Settings) -> None:
    """Report command-line flags that have no effect without another flag."""
    flags = {each.name: (each.group, each.flag) for each in settings_of(Settings)}
    for name in ("timeline", "autotune"):
        group, needed = flags[name]
        idle = [
            flag
            for other, (its_group, flag) in flags.items()
            if its_group == group and other in given
        ]
        if idle and not getattr(settings, name):
            do = "does" if len(idle) == 1 else "do"
            sys.stderr.write(f"farandole: {', '.join(idle)} {do} nothing without {needed}\n")


def _number(options: argparse.Namespace, launcher: str) -> int:
    """Return the number of processes. For ``auto``, the number is printed."""
    from farandole.job.launch.plan import check_np, parse_hosts

    if options.np != "auto":
        if not re.fullmatch(r"-?\d+", options.np):
            raise SettingsError(f"-np {options.np!r} must be a whole number >= 1, or auto")
        return check_np(int(options.np))
    if launcher != "local" and options.hosts is None:
        raise SettingsError(
            f"-np auto counts this machine's cores only; with launcher {launcher!r}, pass a number:"
            " -np 4"
        )
    from farandole.cli import machine

    if options.hosts is not None:
        places = sum(count for _, count in parse_hosts(options.hosts))
        chosen = machine.Choice(places, "the slots of --hosts")
    else:
        chosen = machine.ranks(cores(), machine.visible_gpus(os.environ), machine.free_memory())
    sys.stderr.write(f"farandole: -np auto: {counted(chosen.np, 'rank')} ({chosen.why})\n")
    return check_np(chosen.np)


def split(made: argparse.ArgumentParser, arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split Farandole's flags from the user's command, which begins at ``--`` or at the first
    word that is not one of these flags.
    """
    takes_value = {
        name: action.nargs != 0 for action in made._actions for name in action.option_strings
    }
    rest, flags = list(arguments), list[str]()
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        attached = re.fullmatch(_ATTACHED, word)
        if attached:  # -np2, -n=2
            flags += [attached[1], attached[2]]
            continue
        name, equals, _ = word.partition("=")
        if name not in takes_value:
            raise SettingsError(
                f"unknown option {name!r}{_near(name, takes_value)}; see {made.prog} --help"
            )
        flags.append(word)
        if takes_value[name] and not equals:
            if not rest or rest[0] == "--" or rest[0].split("=")[0] in takes_value:
                raise SettingsError(f"{name} needs a value; see {made.prog} --help")
            flags.append(rest.pop(0))
        if name in _NAMED and flags[-1] in ("", f"{name}="):
            raise SettingsError(f"the value of {name} is empty: an unset shell variable?")
        if flags[-1] == f"{name}=--":  # argparse would return a list for it
            raise SettingsError(f"{name} needs a value; see {made.prog} --help")
    return flags, rest


def _near(name: str, known: Mapping[str, bool]) -> str:
    if name in _ENV and "--env" in known:
        return "; did you mean '--env'?"
    if name in _ENV:
        return "; every rank inherits the variables of this shell: NAME=value farandole run ..."
    dashed = name.replace("_", "-")
    found = ELSEWHERE.get(dashed)
    if found is None or (found not in known and "--hosts" not in known):
        found = dashed if dashed in known else nearest(dashed, known)
    return f"; did you mean {found!r}?" if found else ""


def overrides(options: Mapping[str, str | bool | None]) -> dict[str, Any]:
    """Return the settings given as options, by name."""
    found: dict[str, Any] = {}
    for setting in settings_of(Settings):
        given = options.get(_dest(setting))
        if given is not None:
            found[setting.name] = (
                given if isinstance(given, bool) else parse(setting, setting.flag, given)
            )
    return found


def _without_np(command: Sequence[str]) -> str:
    if command and command[0][0] in LONG_DASHES:
        return f"{command[0]!r} begins with a long dash; options begin with - or --"
    if command and (command[0].isdigit() or command[0] == "auto"):
        return f"-np is missing before {command[0]}: farandole run -np {' '.join(command)}"
    for place, word in enumerate(command):
        name, equals, value = word.partition("=")
        attached = re.fullmatch(_ATTACHED, word)
        if name in _PROC or attached:
            after = 1 if equals or attached else 2
            number = (
                value
                if equals
                else attached[2]
                if attached
                else " ".join(command[place + 1 : place + 2])
            )
            rest = [*command[:place], *command[place + after :]]
            return (
                f"{name} comes after the command, so it is an argument of {command[0]!r}. Put"
                f" options of farandole before the command: farandole run -np {number}"
                f" {' '.join(rest)}"
            )
    bare = command and command[0].endswith(".py") and not _runs(command[0])
    shown = " ".join(["python", *command] if bare else command) or "python train.py"
    return f"-np (the number of processes) is missing. Example: farandole run -np 2 {shown}"


def _runs(path: str) -> bool:
    # Like shutil.which, but shutil imports three compression modules.
    return os.path.isfile(path) and os.access(path, os.X_OK)


def check_command(command: Sequence[str]) -> None:
    """Raise SettingsError for a missing program or Python script, before anything is started."""
    program = command[0]
    folders = [""] if os.path.dirname(program) else os.get_exec_path()
    if not any(_runs(os.path.join(folder, program)) for folder in folders):
        raise SettingsError(_not_found(program, command[1:]))
    check_script(command, os.getcwd())


def check_script(command: Sequence[str], folder: str) -> None:
    """Raise SettingsError for a Python script that does not exist below ``folder``."""
    if not re.fullmatch(r"python[\d.]*", os.path.basename(command[0])):
        return
    script = next((word for word in command[1:] if word not in _PLAIN), "")
    if script.endswith(".py") and not os.path.exists(os.path.join(folder, script)):
        there = [
            name
            for name in _listed(os.path.join(folder, os.path.dirname(script)))
            if name.endswith(".py")
        ]
        near = did_you_mean(os.path.basename(script), there)
        place = os.path.dirname(script) if os.path.isabs(script) else folder
        raise SettingsError(f"the file {script!r} does not exist in {place}{near}")


def check_input(command: Sequence[str]) -> None:
    """Raise SettingsError for a Python that would read its program from an empty input.

    Ranks have no standard input, so such a program would silently do nothing.
    """
    if re.fullmatch(r"python[\d.]*", os.path.basename(command[0])):
        rest = [word for word in command[1:] if word not in _PLAIN]
        if not rest or re.fullmatch(r"-|/dev/stdin|/(dev|proc/self)/fd/\d+", rest[0]):
            place = rest[0] if rest and rest[0] != "-" else "standard input"
            raise SettingsError(
                f"{' '.join(command)!r} would read its program from {place}, but the standard"
                " input of ranks is empty and they inherit no open files. Write the program to a"
                " file, or pass it with python -c"
            )


def _not_found(program: str, rest: Sequence[str]) -> str:
    line = " ".join([program, *rest])
    if not program:
        return "the first word of the command is empty: an unset shell variable?"
    if os.path.isdir(program):
        return f"{program!r} is a folder, not a program"
    if " " in program:
        return (
            f"the program {program!r} does not exist; write the command without quotes: farandole"
            f" run -np N {line}"
        )
    if program.endswith(".py"):
        return f"a script needs its interpreter: farandole run -np N python {line}"
    if os.path.isfile(program):
        path = program if os.path.dirname(program) else f"./{program}"
        if os.access(program, os.X_OK):
            return (
                f"the program {program!r} is in this folder, which is not on the PATH: write {path}"
            )
        return (
            f"{program!r} is not executable; run chmod +x {program}, or write its interpreter"
            " before it"
        )
    if program in _SHELL:
        return f"{program!r} is a shell builtin, not a program: farandole run -np N bash -c '...'"
    if re.match(r"[A-Za-z_]\w*=", program):
        return (
            f"set a variable before farandole, and every rank inherits it: {program} farandole"
            " run ..."
        )
    if program[0] in LONG_DASHES:
        return f"{program!r} begins with a long dash; options begin with - or --"
    if program in ("True", "False"):
        return f"the program {program!r} does not exist: options like --verbose take no value"
    on_path = {name for folder in os.get_exec_path() for name in _listed(folder)}
    return f"the program {program!r} does not exist{did_you_mean(program, sorted(on_path))}"


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
