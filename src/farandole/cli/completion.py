"""``farandole completion``: a shell script generated from the parsers of the commands."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from farandole import cli
from farandole.cli.parsing import Parser, one_of, say
from farandole.errors import SettingsError
from farandole.job.config import Settings
from farandole.job.config.fields import settings_of
from farandole.job.plugins import registry

SHELLS = ("bash", "zsh", "fish")
RUNS = "farandole runs --ids 2>/dev/null"  # prints the ids of all runs
FILES = ("FILE", "DIR", "OUT", "FILE.png")  # metavars of options that take a file


class Option(NamedTuple):
    names: tuple[str, ...]  # none for a positional argument
    takes_value: bool
    values: tuple[str, ...]
    files: bool
    doc: str
    runs: bool = False  # the value is the id of a run


def parser() -> Parser:
    made = Parser(
        prog="farandole completion",
        example="source <(farandole completion bash)",
        description=(
            "Print a script that makes the shell complete commands, options and values. In bash"
            " and zsh, add the line below, with the name of your shell, to ~/.bashrc or ~/.zshrc."
            " In fish, run: farandole completion fish > ~/.config/fish/completions/farandole.fish"
        ),
    )
    made.add_argument(
        "shell", type=one_of(SHELLS), choices=SHELLS, metavar="|".join(SHELLS), help="which shell"
    )
    return made


def main(arguments: Sequence[str]) -> int:
    shell = parser().parse_args(list(arguments)).shell
    commands = {name: _options(name) for name in cli.COMMANDS}
    return say(_fish(commands) if shell == "fish" else _bash(commands, zsh=shell == "zsh"))


def _options(command: str) -> list[Option]:
    """Return the options of a command; for the benchmarks, none if they are not installed."""
    module = cli.module(command)
    try:
        made: argparse.ArgumentParser = getattr(module, "full_parser", module.parser)()
    except SettingsError:
        return []
    return [_option(action) for action in made._actions]


def _option(action: argparse.Action) -> Option:
    values = tuple(map(str, action.choices or ())) or next(
        (
            setting.choices
            for setting in settings_of(Settings)
            if setting.flag in action.option_strings
        ),
        (),
    )
    if action.dest == "setting_transport":
        values = ("auto", *registry.names("wire"))
    if action.dest == "launcher" and not values:
        values = ("auto", *registry.names("launcher"))
    if action.dest == "np":
        values = ("auto",)
    takes_value, doc = action.nargs != 0, (action.help or "").replace("%%", "%")
    return Option(
        tuple(action.option_strings),
        takes_value,
        values,
        action.metavar in FILES,
        doc,
        action.metavar == "RUN",
    )


_BASH = r"""# farandole: completion for {shell}; {install}
_farandole() {{
    local word command="" previous="" current="" count=0 skip=0 started=0
    COMPREPLY=()
    for word in "${{COMP_WORDS[@]}}"; do
        if [ "$count" -eq "$COMP_CWORD" ]; then current="$word"; break; fi
        count=$((count + 1))
        if [ "$count" -eq 1 ] || [ "$started" -eq 1 ]; then continue; fi
        if [ -z "$command" ]; then command="$word"; continue; fi
        if [ "$word" = "=" ]; then skip=1; continue; fi
        if [ "$skip" -eq 1 ]; then skip=0; previous=""; continue; fi
        previous="$word"
        if [ "$command" = run ]; then
            case "$word" in
                {valued}) skip=1 ;;
                --) started=1 ;;
                -*) ;;
                *) started=1 ;;
            esac
        fi
    done
    if [ "$current" = "=" ]; then current=""; fi
    if [ "$started" -eq 1 ]; then
        COMPREPLY=($(compgen -f -- "$current"))
        return
    fi
    if [ -z "$command" ]; then
        COMPREPLY=($(compgen -W {commands} -- "$current"))
        return
    fi
    case "$command $previous" in
{values}
    esac
    case "$command $current" in
{options}
    esac
    case "$command" in
        run) COMPREPLY=($(compgen -c -- "$current")) ;;
{arguments}
        *) COMPREPLY=($(compgen -f -- "$current")) ;;
    esac
}}
complete -o filenames -F _farandole farandole"""


def _bash(commands: dict[str, list[Option]], *, zsh: bool) -> str:
    """Return the script for bash; zsh runs the same script through its bashcompinit."""
    values, options, arguments = [], [], []
    for command, known in commands.items():
        names = [name for option in known for name in option.names]
        options.append(_case(f"{command} -", _words(names), more="*"))
        for option in known:
            if option.names and option.takes_value:
                reply = _reply(option)
                patterns = "|".join(f'"{command} {name}"' for name in option.names)
                values.append(
                    f'        {patterns}) COMPREPLY=($({reply} -- "$current")); return ;;'
                )
            elif option.runs:
                arguments.append(_case(command, f'COMPREPLY=($({_reply(option)} -- "$current"))'))
            elif option.values and not option.names:
                arguments.append(_case(command, _words(option.values)))
    script = _BASH.format(
        shell="zsh" if zsh else "bash",
        install=f"source <(farandole completion {'zsh' if zsh else 'bash'})",
        valued="|".join(
            name for option in commands["run"] if option.takes_value for name in option.names
        ),
        commands=shlex.quote(" ".join([*commands, "--help", "--version"])),
        values="\n".join(values),
        options="\n".join(options),
        arguments="\n".join(arguments),
    )
    return (
        f"autoload -U +X compinit bashcompinit && compinit -C && bashcompinit\n{script}"
        if zsh
        else script
    )


def _reply(option: Option) -> str:
    """Return the bash command that prints the values of an option."""
    if option.runs:
        return f'compgen -W "$({RUNS})"'
    if option.files:
        return "compgen -f"
    return f"compgen -W {shlex.quote(' '.join(option.values))}"


def _words(names: Sequence[str]) -> str:
    return f'COMPREPLY=($(compgen -W {shlex.quote(" ".join(names))} -- "$current"))'


def _case(pattern: str, action: str, more: str = "") -> str:
    return f'        "{pattern}"{more}) {action}{"; return" if more else ""} ;;'


def _fish(commands: dict[str, list[Option]]) -> str:
    lines = ["# farandole: completion for fish; > ~/.config/fish/completions/farandole.fish"]
    for command, what in cli.COMMANDS.items():
        lines.append(
            f"complete -c farandole -f -n __fish_use_subcommand -a {command} -d {_quoted(what)}"
        )
    for command, known in commands.items():
        where = f"complete -c farandole -n {_quoted(f'__fish_seen_subcommand_from {command}')}"
        for option in known:
            words = f" -a {_quoted(' '.join(option.values))}" if option.values else ""
            words = f" -a {_quoted(f'({RUNS})')}" if option.runs else words
            value = f" {'-r' if option.files else '-x'}{words}" if option.takes_value else ""
            named = (
                "".join(f" {_spelling(name)}" for name in option.names) if option.names else " -f"
            )
            if option.names or words:
                lines.append(
                    f"{where}{named}{value if option.names else words} -d {_quoted(option.doc)}"
                )
    return "\n".join(lines)


def _spelling(name: str) -> str:
    if name.startswith("--"):
        return f"-l {name[2:]}"
    # -np has one dash and several letters.
    return f"-s {name[1:]}" if len(name) == 2 else f"-o {name[1:]}"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
