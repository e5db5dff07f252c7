"""Short runs in a queue whose supervisor, runners and ranks are killed: ``python -m
benchmarks.jobs.chaos --runs 1000``.

Checks at the end that each attempt started at most once, that attempts of a run never overlapped,
that all runs ended and began in the order of submission, and that no process or file is left.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from farandole.job.runs.folder import RUN_ID_VARIABLE, RunFolder
from farandole.job.runs.home import HOME_VARIABLE, RunsHome
from farandole.job.runs.spec import RunSpec
from farandole.job.runs.states import RunState
from farandole.jobs import attempts, submission
from farandole.jobs.submission import Submission, submit
from farandole.jobs.supervisor.index import Index
from farandole.jobs.supervisor.wake import ensure_running, running_pid

KINDS = ("supervisor", "runner", "rank")
# A rank appends its start and its end to a file shared by all runs.
_PROGRAM = """
import os, sys, time
def say(what):
    text = f"{what} {os.environ['FARANDOLE_RUN_ID']} {os.environ['FARANDOLE_RUN_ATTEMPT']}"
    file = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{text} {os.getpid()} {time.monotonic()}\\n".encode())
say("begin")
time.sleep(0.05)
say("end")
"""


class Start(NamedTuple):
    """A start of a rank, with the times in seconds of the monotonic clock; ``end`` is None for a
    killed one.
    """

    run_id: str
    attempt: int
    begin: float
    end: float | None


class Outcome(NamedTuple):
    """The result of a trial. ``faults`` are sentences; none for a perfect one."""

    runs: int
    seconds: float
    kills: dict[str, int]
    attempts: int
    states: dict[str, int]
    faults: list[str]


def trial(runs: int, interval: float, seed: int, place: Path, seconds: float = 3600.0) -> Outcome:
    """Queue ``runs`` short runs, kill processes about every ``interval`` seconds until all have
    ended, and return the outcome.

    ``place`` is an empty folder for the home. A run that takes longer than ``seconds`` is a
    fault.
    """
    with _environment(place):
        home = RunsHome()
        source = place / "source"
        source.mkdir()
        (source / "train.py").write_text(_PROGRAM)
        log = place / "starts"
        spec = RunSpec("chaos", ("python", "train.py", str(log)), retries=20, grace_seconds=1.0)
        began = time.monotonic()
        with _without_supervisor():
            folders = [submit(Submission(spec, str(source)), home) for _ in range(runs)]
        kills = _disturb(home, folders, interval, random.Random(seed), began + seconds)
        took = time.monotonic() - began
        _await_quiet(home)
        starts = parsed(log.read_text() if log.exists() else "")
        faults = [
            *_ends(folders),
            *faults_of_starts(starts),
            *_order(folders, starts),
            *_leftovers(home, folders),
        ]
        _end(running_pid(home))
        return Outcome(
            runs,
            took,
            kills,
            sum(len(attempts.history(folder)) for folder in folders),
            dict(Counter(folder.state().value for folder in folders)),
            faults,
        )


@contextlib.contextmanager
def _environment(place: Path) -> Iterator[None]:
    """Let this process and its supervisors use a home under ``place``."""
    wanted = {HOME_VARIABLE: str(place / "home"), "XDG_STATE_HOME": str(place / "state")}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _without_supervisor() -> Iterator[None]:
    """Queue runs within the context without starting a supervisor."""
    original = submission.ensure_running
    submission.ensure_running = lambda home: None
    try:
        yield
    finally:
        submission.ensure_running = original


def _disturb(
    home: RunsHome,
    folders: Sequence[RunFolder],
    interval: float,
    draw: random.Random,
    deadline: float,
) -> dict[str, int]:
    """Kill processes until all runs have ended; return the number of kills by kind."""
    kills, struck = dict.fromkeys(KINDS, 0), set[str]()
    waiting = list(folders)
    shown = time.monotonic()
    while waiting and time.monotonic() < deadline:
        ensure_running(home)
        time.sleep(draw.uniform(0.1, 2.0) * interval)
        waiting = [folder for folder in waiting if folder.end() is None]
        kind = draw.choice(KINDS)
        if victim := _victim(home, waiting, kind, draw, struck):
            kills[kind] += _end(victim)
        if time.monotonic() - shown > 30:
            shown = time.monotonic()
            _say(f"{len(folders) - len(waiting)} of {len(folders)} runs have ended; kills: {kills}")
    return kills


def _victim(
    home: RunsHome, waiting: Sequence[RunFolder], kind: str, draw: random.Random, struck: set[str]
) -> int | None:
    if kind == "supervisor":
        return running_pid(home)
    runners = {}
    for folder in waiting[:50]:
        with contextlib.suppress(OSError):
            claimant = attempts.claimant(folder, attempts.number(folder))
            if claimant is not None and claimant.alive():
                runners[claimant.pid] = folder
    if not runners or kind == "runner":
        return draw.choice(list(runners)) if runners else None
    # A run whose rank is killed twice is not retried: this is the same failure twice without
    # progress.
    ranks = [
        (pid, run) for pid, run in of_runs(home) if pid not in runners and run and run not in struck
    ]
    if not ranks:
        return None
    pid, run = draw.choice(ranks)
    struck.add(run)
    return pid


def of_runs(home: RunsHome) -> list[tuple[int, str]]:
    """Return the processes of this home, with the id of their run, which is empty for others."""
    found = []
    mark = f"{HOME_VARIABLE}={home.path}".encode()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            variables = Path("/proc", name, "environ").read_bytes().split(b"\0")
            if mark in variables:
                prefix = f"{RUN_ID_VARIABLE}=".encode()
                ids = [each[len(prefix) :] for each in variables if each.startswith(prefix)]
                found.append((int(name), ids[0].decode() if ids else ""))
    return found


def _end(pid: int | None) -> bool:
    """Kill a process; return whether there was one."""
    with contextlib.suppress(ProcessLookupError):
        if pid:
            os.kill(pid, signal.SIGKILL)
            return True
    return False


def _await_quiet(home: RunsHome) -> None:
    """Wait at most 30 seconds until only the supervisor is left and has polled once more."""
    deadline = time.monotonic() + 30
    ensure_running(home)
    while time.monotonic() < deadline:
        others = [pid for pid, _ in of_runs(home) if pid != running_pid(home)]
        if not others and not os.listdir(os.path.join(home.path, "queue")):
            return
        time.sleep(0.1)


def parsed(text: str) -> list[Start]:
    """Return the starts in the ranks' file, in order. Pure."""
    begun: dict[tuple[str, str], list[Any]] = {}
    found: list[list[Any]] = []
    for line in text.splitlines():
        what, run_id, attempt, pid, when = line.split(" ")
        if what == "begin":
            found.append([run_id, int(attempt), float(when), None])
            begun[run_id, pid] = found[-1]
        else:
            begun[run_id, pid][3] = float(when)
    return [Start(*each) for each in found]


def _ends(folders: Sequence[RunFolder]) -> Iterator[str]:
    for folder in folders:
        if folder.state() is not RunState.COMPLETED:
            end = folder.end() or {}
            yield f"{folder.run_id} is {folder.state().value}: {end.get('cause', '')[-200:]}"


def faults_of_starts(starts: Sequence[Start]) -> Iterator[str]:
    """Yield the attempts that started twice, and overlapping attempts of a run. Pure."""
    by_run: dict[str, list[Start]] = {}
    for start in starts:
        by_run.setdefault(start.run_id, []).append(start)
    for (run_id, attempt), times in Counter((each[0], each[1]) for each in starts).items():
        if times > 1:
            yield f"{run_id}: attempt {attempt} started {times} times"
    for run_id, found in by_run.items():
        for before, after in itertools.pairwise(found):
            if before.end is not None and before.end > after.begin:
                yield f"{run_id}: attempts {before.attempt} and {after.attempt} overlap"


def _order(folders: Sequence[RunFolder], starts: Sequence[Start]) -> Iterator[str]:
    """Yield the runs without a finished start, and the number of those that began out of order."""
    finished = {each.run_id for each in starts if each.end is not None}
    for folder in folders:
        if folder.run_id not in finished:
            yield f"{folder.run_id} ended as {folder.state().value} without a finished start"
    claims = []
    for folder in folders:
        with contextlib.suppress(OSError, ValueError):
            claims.append(json.loads(Path(folder.file("claim-1.json")).read_text())["time"])
    late = sum(1 for place, when in enumerate(claims) if min(claims[place:]) < when - 5.0)
    if late:
        yield f"{late} runs were claimed more than 5 s after a run submitted later"


def _leftovers(home: RunsHome, folders: Sequence[RunFolder]) -> Iterator[str]:
    for pid, run_id in of_runs(home):
        if pid != running_pid(home):
            yield f"process {pid} of run {run_id or '(none)'} is left"
    for name in ("queue", "variables"):
        if left := os.listdir(os.path.join(home.path, name)):
            yield f"{len(left)} files are left in {name}: {left[0]}"
    for where, names, files in os.walk(home.path):
        if left := [name for name in files if name.endswith(".tmp")]:
            yield f"{len(left)} temporary files are left in {where}: {left[0]}"
        if "work" in names and where.startswith(home.runs):
            yield f"{where}/work is left"
    index = Index(home)
    try:
        index.refresh()
        rows = {row.run_id: row.state for row in index.runs()}
    finally:
        index.close()
    wrong = [each.run_id for each in folders if rows.get(each.run_id) is not each.state()]
    if wrong:
        yield f"the index is wrong about {len(wrong)} runs, such as {wrong[0]}"


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jobs.chaos", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--interval", type=float, default=2.0, help="seconds between two kills")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="keep the home for inspection")
    options = parser.parse_args(arguments)
    place = Path(tempfile.mkdtemp(prefix="farandole-chaos-"))
    outcome = trial(options.runs, options.interval, options.seed, place)
    sys.stdout.write(json.dumps(outcome._asdict(), indent=1) + "\n")
    if not options.keep:
        import shutil

        shutil.rmtree(place)
    return int(bool(outcome.faults))


if __name__ == "__main__":
    sys.exit(main())
