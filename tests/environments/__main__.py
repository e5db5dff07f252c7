"""Run every test, three environments at a time: ``python -m tests.environments [NAME ...]``.

``main`` is this interpreter, for all tests that need no other environment. ``NAME.txt`` in this
folder pins the packages of another environment; its line ``# tests:`` lists the tests. ``PARTS`` of
an environment run separately, because tests mostly wait. An environment is built once for each
content of its pins, in FARANDOLE_ENVIRONMENTS (by default a folder in the user's cache), so that
clones share it. Farandole itself is imported from this checkout.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.conftest import FOLDERS

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
# Packages of every environment: Farandole's dependencies, and pytest.
COMMON = ("cloudpickle>=2.2", "psutil>=5.9", "rich>=13", "pytest>=8", "pytest-timeout>=2.3")
DEFAULT_HOME = (
    Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "farandole" / "environments"
)
QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "",
    "JAX_PLATFORMS": "cpu",
    "PYTHONWARNINGS": "ignore",
}


MAIN, JOBS = "main", "jobs"
# Half of main's time. Tests of Slurm are here only: two clusters would compete for the cores.
JOB_TESTS = (
    "tests/cli",
    "tests/compat",
    "tests/job",
    "tests/jobs",
    "tests/test_bench.py",
    "tests/test_docs.py",
    "tests/test_examples.py",
    "tests/test_run.py",
)
SPARK_TESTS = (
    "tests/spark",
    "tests/data/parquet",
    "tests/data/test_docs.py",
    "tests/estimators",
    "tests/inference",
    "tests/torch/libraries",
)


class Part(NamedTuple):
    """Tests of an environment that run separately, with the same interpreter."""

    environment: str
    tests: tuple[str, ...]


PARTS = {JOBS: Part(MAIN, JOB_TESTS), "spark": Part("frameworks", SPARK_TESTS)}
# Tests wait for processes more than they compute: three environments at once take little longer
# than one.
AT_ONCE = 3
# Failures with their cause in the closing summary, and the lines there of an error, or of what a
# test printed.
SHOWN, MOST = 10, 20
SLOWEST = 50  # tests whose times are printed at the end
# reasons of skips that CI accepts: hardware, data that no package brings, and cases of a kit that a
# framework does not have
ALLOWED = re.compile(r"GPU|NCCL|FARANDOLE_DATA|does not apply")


class Outcome(NamedTuple):
    """The result of an environment: pytest's exit code; the end of its output (skips, failures with
    reasons, counts); the lines of skips; and the slowest tests.
    """

    code: int
    closing: list[str]
    skipped: list[str]
    times: list[tuple[float, str]]


def names() -> list[str]:
    """Return the names in the order of their start, longest first: the largest environment is built
    while ``main`` runs.
    """
    largest, *others = sorted(HERE.glob("*.txt"), key=lambda path: (-len(pins(path)), path.stem))
    first = [largest.stem, MAIN]
    return [*first, *sorted(PARTS, reverse=True), *(path.stem for path in others)]


def environment_of(name: str) -> str:
    """Return the environment of a part; of any other name, the name."""
    return PARTS[name].environment if name in PARTS else name


def pins(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if not line.startswith("#")]


def arguments(name: str) -> list[str]:
    """Return the pytest arguments that select the tests."""
    apart = [path for part in PARTS.values() if part.environment == name for path in part.tests]
    if name == MAIN:
        return [f"--ignore={path}" for path in apart]
    return [path for path in paths(name) if path not in apart]


def paths(name: str) -> list[str]:
    """Return the existing test paths of a part, or of an environment with its parts; for ``main``,
    all that can be imported.
    """
    if name == MAIN:
        return []
    if name in PARTS:
        return list(PARTS[name].tests)
    found = re.search(r"^# tests: (.+)$", (HERE / f"{name}.txt").read_text(), re.M)
    assert found, f"{name}.txt has no line '# tests: ...'"
    return [path for path in found[1].split() if (ROOT / path.partition("::")[0]).exists()]


def python_of(name: str) -> Path:
    """Return the interpreter of an environment, which is built if it does not exist."""
    name = environment_of(name)
    if name == MAIN:
        return Path(sys.executable)
    home = Path(os.environ.get("FARANDOLE_ENVIRONMENTS") or DEFAULT_HOME)
    content = (pins(HERE / f"{name}.txt"), COMMON, sys.version_info[:2])
    key = hashlib.sha256(repr(content).encode()).hexdigest()[:12]
    folder = home / f"{name}-{key}"
    done, python = folder / ".complete", folder / "bin" / "python"
    home.mkdir(parents=True, exist_ok=True)
    with (home / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            for old in home.glob(f"{name}-*"):
                shutil.rmtree(old, ignore_errors=True)
            say(name, "Building the environment (once; a large download) ...")
            begin = time.monotonic()
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            pip = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
            subprocess.run([*pip, "-r", HERE / f"{name}.txt", *COMMON], check=True)
            done.touch()
            say(name, f"... built in {time.monotonic() - begin:.0f} s")
    return python


def slowest(lines: Sequence[str]) -> list[tuple[float, str]]:
    """Return the seconds and phases of the tests that pytest's ``--durations`` lists."""
    found = [re.fullmatch(r"([\d.]+)s (call|setup|teardown) +(.+)", line) for line in lines]
    return [(float(each[1]), f"{each[3]} ({each[2]})") for each in found if each]


def by_interpreter(results: Mapping[str, Outcome]) -> dict[str, list[str]]:
    """Return the lines of skips by environment. Skips of a part count for its environment: a skip
    in a file that several tests share, such as a kit, belongs to the interpreter of both.
    """
    skipped: dict[str, list[str]] = {}
    for name, each in results.items():
        skipped.setdefault(environment_of(name), []).extend(each.skipped)
    return skipped


def hidden(skipped: dict[str, list[str]]) -> list[str]:
    """Return the skips of tests that no environment runs, as ``environment: line``, except those
    named in ``ALLOWED``.

    ``skipped``: pytest's lines ``SKIPPED [1] path:line: reason`` by environment.
    """
    places = {name: set(map(_place, lines)) for name, lines in skipped.items()}
    return [
        f"{name}: {line}"
        for name, lines in skipped.items()
        for line in lines
        if not ALLOWED.search(line)
        and all(
            _place(line) in places[other] for other in skipped if covers(other, _place(line)[0])
        )
    ]


def _place(line: str) -> tuple[str, str, str]:
    """Return the path, line number and reason of a skip; a skip of a whole module has no number. A
    line that skips for several reasons skips different cases in different environments.
    """
    found = re.match(r"SKIPPED \[\d+\] ([^:]+)(?::(\d+))?: *(.*)", line)
    return (found[1], found[2] or "", found[3]) if found else (line, "", "")


def covers(name: str, path: str) -> bool:
    """Return whether an environment collects the tests of a file."""
    if name == MAIN:
        left_out = [folder for folders in FOLDERS.values() for folder in folders.split()]
        return not any(path.startswith(f"tests/{folder}") for folder in left_out)
    return any(path.startswith(each.partition("::")[0].rstrip("/")) for each in paths(name))


def run(name: str) -> Outcome:
    """Run the tests of an environment."""
    source = os.pathsep.join([str(ROOT / "src"), str(ROOT / "compat" / "src")])
    own = (
        {}
        if environment_of(name) == MAIN
        else {**QUIET, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    )
    options = ["-p", "no:cacheprovider", f"--durations={SLOWEST}", "--durations-min=1"]
    command = [str(python_of(name)), "-m", "pytest", *options, *arguments(name)]
    say(name, f"pytest {' '.join(arguments(name))}")
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **own},
        text=True,
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    lines = []
    for line in process.stdout or ():
        lines.append(line.rstrip())
        say(name, lines[-1])
    code = process.wait()
    closing = [line for line in lines if line.startswith(("FAILED", "ERROR "))]
    counts = [line for line in lines if re.search(r"\d+ (passed|failed|skipped|error)", line)][-1:]
    skipped = [line for line in lines if line.startswith("SKIPPED")]
    closing = [
        *skipped,
        *causes(lines),
        *closing,
        *(counts or lines[-MOST:] or ["no tests ran"]),
    ]
    return Outcome(code, closing, skipped, slowest(lines))


def causes(lines: Sequence[str]) -> list[str]:
    """Return pytest's report of the first failed tests, and the end of their output."""
    found: list[str] = []
    for title, report in list(reports(lines))[:SHOWN]:
        printed = next(
            (at for at, line in enumerate(report) if re.match(r"-+ Captured .+ -+$", line)),
            len(report),
        )
        errors = [line for line in report[:printed] if re.match(r"E  |\S+:\d+: ", line)]
        found += [f"{title}:", *ends(errors), *report[printed:][-MOST:]]
    return found


def reports(lines: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Return title and lines of each failure in pytest's output."""
    begin = next(
        (index for index, line in enumerate(lines) if re.match(r"=+ (FAILURES|ERRORS) =+$", line)),
        len(lines),
    )
    title, report = "", []
    for line in lines[begin:]:
        next_title = re.match(r"_{3,} (.+) _{3,}$", line)
        if next_title or re.match(r"=+ .+ =+$", line):
            if title:
                yield title, report
            title, report = next_title[1] if next_title else "", []
        else:
            report.append(line)


def ends(lines: Sequence[str]) -> list[str]:
    """Return the first and the last lines of a long list."""
    return [*lines] if len(lines) <= MOST else [*lines[: MOST // 2], "...", *lines[-MOST // 2 :]]


def say(name: str, line: str) -> None:
    """Print a line with the name of its environment."""
    print(f"{name:<10} {line}", flush=True)


def main(wanted: Sequence[str]) -> int:
    unknown = set(wanted) - set(names())
    if unknown:
        print(
            f"no such environment: {', '.join(sorted(unknown))}; there are {', '.join(names())}",
            file=sys.stderr,
        )
        return 2
    chosen = wanted or names()
    with ThreadPoolExecutor(AT_ONCE) as lanes:
        results = dict(zip(chosen, lanes.map(run, chosen), strict=True))
    times = sorted((each for result in results.values() for each in result.times), reverse=True)
    print(f"\nthe {SLOWEST} slowest tests:")
    print("\n".join(f"  {seconds:6.1f} s  {test}" for seconds, test in times[:SLOWEST]))
    # failures are printed last
    for name, (code, closing, *_) in sorted(results.items(), key=lambda item: item[1].code != 0):
        print(f"\n{name}: {'passed' if code == 0 else f'FAILED (pytest exited with {code})'}")
        print("\n".join(f"  {line}" for line in closing))
    unseen = [] if wanted else hidden(by_interpreter(results))
    if unseen and os.environ.get("CI"):
        print("\nFAILED: these tests run in no environment (make system-packages may help):")
        print("\n".join(f"  {line}" for line in unseen))
        return 1
    return int(any(each.code for each in results.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
