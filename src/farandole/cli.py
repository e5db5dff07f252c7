"""The command ``farandole``: run, bench, config."""

from __future__ import annotations

import argparse
import difflib
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from farandole.config import Knob, knobs, parse
from farandole.errors import JobFailedError, SettingsError

USAGE = "farandole run -np N [options] [--] python train.py [arguments]"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(message)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    commands = {"run": _run, "bench": _bench, "config": _config, "timeline": _timeline}
    first = arguments[0] if arguments else "--help"
    try:
        if first in ("-v", "--version"):
            import farandole

            return _say(farandole.__version__)
        if first in ("-h", "--help"):
            return _say(_HELP)
        if first not in commands:
            raise SettingsError(f"there is no command {first!r}{_near(first, commands)}; see farandole --help")
        return commands[first](arguments[1:])
    except SettingsError as error:
        sys.stderr.write(f"farandole: {error}\n")
        return 2
    except JobFailedError as error:
        if error.exit_code == 128 + signal.SIGPIPE:  # nobody reads any more: `farandole run ... | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nor complains when Python flushes stdout at exit
        else:
            sys.stderr.write(f"farandole: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


_HELP = f"""usage: {USAGE}
       farandole bench ...      measure (from a clone of the project)
       farandole timeline merge FILES... -o OUT   the timelines of several ranks as one
       farandole config         every setting: flag, variable, default, meaning
       farandole --version

Start the same program on N processes. `farandole run --help` lists the options."""


def run_parser() -> argparse.ArgumentParser:
    """The options of ``farandole run``; those that are settings are made from ``config``."""
    parser = _Parser(prog="farandole run", usage=USAGE, allow_abbrev=False, add_help=False)
    add = parser.add_argument
    add("-np", "--num-proc", dest="np", metavar="N", help="number of processes")
    add("-H", "--hosts", metavar="H:N,...", help="where they run, with the number of places (default: this machine)")
    add("--launcher", default="auto", metavar="NAME", help="what starts them (default: auto)")
    add("--output-dir", metavar="DIR", help="keep the output of each rank in DIR/rank.<number>/stdout and stderr")
    add("--prefix-timestamp", action="store_true", help="put the time in front of each line")
    add("--verbose", action="store_true", help="say what is started where")
    add("-h", "--help", action="store_true", help="show this text")
    group = parser.add_argument_group("settings")
    for each in knobs():
        if each.flag and each.kind is bool:
            group.add_argument(each.flag, dest=_dest(each), action="store_true", default=None, help=each.doc)
        elif each.flag:
            group.add_argument(each.flag, dest=_dest(each), metavar=_metavar(each), help=each.doc.replace("%", "%%"))
    return parser


def _run(arguments: Sequence[str]) -> int:
    parser = run_parser()
    flags, command = split(parser, arguments)
    options = parser.parse_args(flags)
    if options.help:
        return _say(parser.format_help().rstrip())
    if options.np is None:
        raise SettingsError(f"-np is missing: how many processes? Usage: {USAGE}")
    if not command:
        raise SettingsError(f"the command to run is missing. Usage: {USAGE}")
    from farandole.launch import driver
    from farandole.launch.job import Job, settings_for
    from farandole.launch.plan import check_np

    job = Job(
        np=check_np(int(options.np) if options.np.lstrip("-").isdigit() else options.np), command=command,
        settings=settings_for({}, _overrides(options)), hosts=options.hosts, launcher=options.launcher,
        output_dir=options.output_dir, prefix_timestamp=options.prefix_timestamp, verbose=options.verbose,
    )  # fmt: skip
    driver.run(job)
    return 0


def split(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our flags, and the user's command, which begins at ``--`` or at the first word that is no flag of ours."""
    takes_value = {name: action.nargs != 0 for action in parser._actions for name in action.option_strings}
    index = 0
    while index < len(arguments):
        word = arguments[index]
        if word == "--":
            return list(arguments[:index]), list(arguments[index + 1 :])
        if not word.startswith("-"):
            break
        name = word.split("=", 1)[0]
        if name not in takes_value:
            raise SettingsError(f"there is no flag {name!r}{_near(name, takes_value)}; see farandole run --help")
        index += 2 if takes_value[name] and "=" not in word else 1
    return list(arguments[:index]), list(arguments[index:])


def _overrides(options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in knobs():
        text = getattr(options, _dest(each), None) if each.flag else None
        if text is None:
            continue
        if each.scale != 1.0 and each.kind is int:
            number = parse(each._replace(kind=float), each.flag, text)
            found[each.name] = int(number * each.scale)
        else:
            found[each.name] = text if each.kind is bool else parse(each, each.flag, text)
    return found


def _dest(each: Knob) -> str:
    return f"setting_{each.name}"


def _metavar(each: Knob) -> str:
    return {int: "N", float: "X", str: "NAME"}.get(each.kind, "VALUE")


def _config(arguments: Sequence[str]) -> int:
    """One line per setting that a user may set."""
    if arguments:
        raise SettingsError(f"farandole config takes no arguments, not {' '.join(arguments)!r}")
    rows = [("flag", "variable", "default", "meaning")]
    for each in knobs():
        if each.flag:
            also = f" ({each.horovod})" if each.horovod else ""
            default = f"{each.default / each.scale:g}" if each.scale != 1.0 else str(each.default)
            rows.append((each.flag, each.variable + also, default, each.doc))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]) for row in rows
    ]
    return _say("\n".join(lines))


def _timeline(arguments: Sequence[str]) -> int:
    """Merge the timelines that ranks wrote."""
    parser = _Parser(prog="farandole timeline merge", allow_abbrev=False)
    parser.add_argument("files", nargs="+", metavar="FILE", help="what the ranks wrote: FILE, FILE.rank1, ...")
    parser.add_argument("-o", "--output", required=True, metavar="OUT", help="where the merged timeline goes")
    if not arguments or arguments[0] != "merge":
        raise SettingsError("usage: farandole timeline merge FILES... -o OUT")
    options = parser.parse_args(arguments[1:])
    from farandole.observe import timeline

    merged = timeline.merge([timeline.read(path) for path in options.files])
    timeline.write(options.output, merged)
    return _say(f"{len(options.files)} timelines, {len(merged)} events: {options.output}")


def _bench(arguments: Sequence[str]) -> int:
    """The benchmarks live next to ``src`` in a clone, not in the wheel."""
    here = os.path.dirname(os.path.abspath(__file__))
    for root in (os.path.dirname(os.path.dirname(here)), os.getcwd()):
        if os.path.isfile(os.path.join(root, "benchmarks", "__main__.py")):
            sys.path.insert(0, root)
            break
    try:
        from benchmarks.__main__ import main as bench
    except ImportError as error:
        raise SettingsError(
            f"the benchmarks cannot be imported ({error}): they are part of a clone, not of the installed package. "
            "In a clone of the project: pip install -e '.[bench]' && farandole bench"
        ) from error
    return int(bench(list(arguments)) or 0)


def _near(word: str, known: Any) -> str:
    near = difflib.get_close_matches(word, list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _say(text: str) -> int:
    sys.stdout.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
