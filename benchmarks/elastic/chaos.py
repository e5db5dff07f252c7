"""An elastic job whose ranks are killed at random: ``python -m benchmarks.elastic.chaos --faults
1000``.

Checks that no committed step is lost or applied twice, that the job ends without intervention with
the expected state, and that no process is left. Measures the time from a kill to the next step.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.elastic.programs import FRAMEWORKS, environment_of, program


class Line(NamedTuple):
    """An event of a rank: ``begin``, ``commit``, ``push`` (an acknowledged one) or ``end:<total>``,
    with its time (seconds, monotonic) and step.
    """

    what: str
    time: float
    step: int
    rank: int
    size: int
    process: int


class Outcome(NamedTuple):
    """The result of a trial.

    - ``seconds``: The times from each kill to the next step, in seconds.
    - ``joins``: The pauses of rank 0 between two steps while ranks joined, in seconds.
    - ``kept``: The steps as a fraction of the steps of undisturbed ranks; nan if the faults are
      too frequent to estimate it.
    - ``faults``: A sentence for each fault; none for a perfect trial.
    """

    kills: int
    steps: int
    memberships: int
    seconds: list[float]
    joins: list[float]
    kept: float
    faults: list[str]


def trial(
    kills: int,
    framework: str,
    ranks: int,
    interval: float,
    seed: int,
    pause: float = 0.02,
    strategy: str = "",
) -> Outcome:
    """Run a job of ``ranks`` ranks, kill a rank about every ``interval`` seconds, ``kills`` times,
    and return the outcome.

    ``framework``: a name in ``FRAMEWORKS``. ``seed``: for the random choice of ranks and times.
    ``pause``: seconds of each step. ``strategy``: a strategy with parameter servers, whose
    processes are killed, too; empty for none.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        name = "servers" if strategy else framework
        (folder / "train.py").write_text(program(name))
        command = [sys.executable, "-m", "farandole", "run", "-np", str(ranks), "--min-np", "1"]
        command += ["--strategy", strategy] if strategy else []
        train = [sys.executable, str(folder / "train.py"), str(folder), str(pause)]
        with open(folder / "output", "wb") as output:
            job = subprocess.Popen(
                [*command, "--max-np", str(ranks), "--grace-seconds", "5", *train],
                env={**os.environ, **environment_of(framework)},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        faults = list[str]()
        try:
            killed, servers = _disturb(
                folder, job, kills, interval, random.Random(seed), bool(strategy)
            )
            (folder / "stop").touch()
            code = job.wait(120.0)
        except subprocess.TimeoutExpired:
            faults.append("the job did not end within 120 s")
            killed, servers, code = [], 0, 1
        finally:
            job.kill()
            job.wait()
        text = (folder / "output").read_text(errors="replace")
        if code:
            faults.append(f"the job failed with exit code {code}: {text[-2000:]}")
        lines = parsed((folder / "log").read_text())
        adds_up = strategy.startswith(("ps_async", "ssp"))
        faults += lost_pushes(lines, len(killed) * ranks) if adds_up else faults_of(lines)
        faults += _left(folder)
        commits = [line for line in lines if line.what == "commit"]
        return Outcome(
            len(killed) + servers,
            max((line.step for line in commits), default=0),
            text.count("membership ") + 1,
            recoveries(lines, killed),
            pauses(lines, killed),
            kept_throughput(lines, killed),
            faults,
        )


def _pids(folder: Path) -> dict[int, int]:
    """Return the pids of the running processes, by process number."""
    found = {}
    for path in folder.glob("pid.*"):
        with contextlib.suppress(ValueError, OSError):
            pid = int(path.read_text())
            # In a long trial the pids of dead processes are reused; a zombie has no command line.
            if str(folder) in Path(f"/proc/{pid}/cmdline").read_text():
                found[int(path.suffix[1:])] = pid
    return found


def _members(folder: Path) -> list[int]:
    """Return the processes that have logged the last committed step."""
    with contextlib.suppress(OSError):
        lines = parsed((folder / "log").read_text()[-4000:].partition("\n")[2])
        commits = [line for line in lines if line.what == "commit"]
        if commits:
            last = commits[-1].step
            return [line.process for line in commits if line.step == last]
    return []


def _disturb(
    folder: Path,
    job: subprocess.Popen[bytes],
    kills: int,
    interval: float,
    chance: random.Random,
    servers: bool,
) -> tuple[list[float], int]:
    """Kill a member about every ``interval`` seconds, never the last one, or with ``servers`` a
    process of the parameter server, never the last one. Return the times of
    the members' ends, and the number of killed servers.
    """
    times: list[float] = []
    count = 0
    due = time.monotonic() + 2 * interval
    patience = time.monotonic() + 120.0
    while len(times) + count < kills and job.poll() is None and time.monotonic() < patience:
        time.sleep(0.01)
        if time.monotonic() < due:
            continue
        pids = _pids(folder)
        members = [process for process in _members(folder) if process in pids]
        if len(members) < 2:
            continue
        is_server = servers and chance.random() < 0.5
        victims = _servers(job.pid) if is_server else [pids[process] for process in members]
        if len(victims) < 2:
            continue
        if is_server:
            count += 1
        else:
            times.append(time.monotonic())
        with contextlib.suppress(ProcessLookupError):
            os.kill(chance.choice(victims), signal.SIGKILL)
        due = patience = time.monotonic() + interval * (0.5 + chance.random())
        patience += 120.0
    return times, count


def _servers(job: int) -> list[int]:
    """Return the pids of the job's server processes that are old enough to hold a copy of the
    state.
    """
    found = []
    for process in psutil.Process(job).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            is_server = "farandole.core.ps" in process.cmdline()
            if is_server and time.time() - process.create_time() > 2.0:
                found.append(process.pid)
    return found


def parsed(text: str) -> list[Line]:
    """Return the complete lines of a log, in the order of their times."""
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) == 6:
            found.append(Line(words[0], float(words[1]), *map(int, words[2:])))
    return sorted(found, key=lambda line: line.time)


def faults_of(lines: Sequence[Line]) -> Iterator[str]:
    """Yield a sentence for each fault in a log: a lost commit, or a wrong sum in a final state."""
    committed = 0
    for line in lines:
        if line.what == "commit":
            committed = max(committed, line.step)
        elif line.what == "begin" and line.step < committed:
            yield f"rank {line.rank} began at step {line.step}, and {committed} was committed"
    ends = [line for line in lines if line.what.startswith("end:")]
    if not ends:
        yield "no rank has ended normally"
    for line in ends:
        total = float(line.what.partition(":")[2])
        if abs(total - line.step) > 1e-3 * line.step:
            yield f"rank {line.rank} ended with {total} after {line.step} steps"


def lost_pushes(lines: Sequence[Line], unknown: int) -> Iterator[str]:
    """Yield a sentence for each final state that lacks an acknowledged push, or that has more than
    ``unknown`` pushes without an acknowledgement. Asynchronous strategies add up pushes.
    """
    pushes = sum(line.what == "push" for line in lines)
    ends = [line for line in lines if line.what.startswith("end:")]
    if not ends:
        yield "no rank has ended normally"
    for line in ends:
        total = float(line.what.partition(":")[2])
        if not pushes <= total <= pushes + unknown:
            yield f"rank {line.rank} ended with {total} after {pushes} acknowledged pushes"


def recoveries(lines: Sequence[Line], killed: Sequence[float]) -> list[float]:
    """Return the seconds from each kill to the first step after the ranks have begun again."""
    found = []
    for when in killed:
        begun = next(
            (line.time for line in lines if line.what == "begin" and line.time > when), None
        )
        if begun is not None:
            after = [line.time for line in lines if line.what == "commit" and line.time > begun]
            found += [after[0] - when] if after else []
    return found


def pauses(lines: Sequence[Line], killed: Sequence[float]) -> list[float]:
    """Return the seconds between the steps of rank 0 before and after each growth of the job."""
    found = []
    steps = [line for line in lines if line.what == "commit" and line.rank == 0]
    for before, after in itertools.pairwise(steps):
        undisturbed = not any(before.time - 1.0 < when < after.time for when in killed)
        if after.size > before.size and undisturbed:
            found.append(after.time - before.time)
    return found


def kept_throughput(lines: Sequence[Line], killed: Sequence[float], calm: float = 10.0) -> float:
    """Return the steps from the first kill to the last step as a fraction of those that undisturbed
    ranks would have taken, or nan if fewer than 100 steps are undisturbed.

    A step is undisturbed if no rank was killed in the ``calm`` seconds before its end. The start of
    a new process therefore counts against the disturbed job.
    """
    first = dict[int, float]()
    for line in lines:
        if line.what == "commit":
            first.setdefault(line.step, line.time)
    times = sorted(first.values())
    undisturbed = [
        after - before
        for before, after in itertools.pairwise(times)
        if not any(after - calm < when < after for when in killed)
    ]
    disturbed = [time for time in times if killed and time > killed[0]]
    if len(undisturbed) < 100 or len(disturbed) < 2:
        return math.nan
    possible = (disturbed[-1] - killed[0]) / statistics.fmean(undisturbed)
    return len(disturbed) / possible


def _left(folder: Path) -> list[str]:
    """Return a sentence for each process that is still running after 5 s."""
    deadline = time.monotonic() + 5.0
    while (left := _pids(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [f"process {number} (pid {pid}) is left" for number, pid in left.items()]


def main() -> int:
    """Run one trial and print its outcome. Return 1 if it has faults, 0 otherwise."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.elastic.chaos")
    options.add_argument("--faults", type=int, default=20)
    options.add_argument("--framework", choices=FRAMEWORKS, default="numpy")
    options.add_argument("-np", dest="ranks", type=int, default=3)
    options.add_argument("--interval", type=float, default=2.0, help="seconds between faults")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--strategy", default="", help="ps, ps_async or ssp:<bound>; numpy only")
    given = options.parse_args()
    found = trial(
        given.faults,
        given.framework,
        given.ranks,
        given.interval,
        given.seed,
        strategy=given.strategy,
    )
    out = sys.stdout.write
    out(f"{found.kills} kills, {found.steps} steps, {found.memberships} memberships\n")
    for name, seconds in (("kill to next step", found.seconds), ("join", found.joins)):
        if seconds:
            median, most = statistics.median(seconds), max(seconds)
            out(f"{name}: median {median:.3f} s, most {most:.3f} s ({len(seconds)} times)\n")
    if not math.isnan(found.kept):
        out(f"throughput: {found.kept:.1%} of the undisturbed ranks'\n")
    for fault in found.faults:
        out(f"FAULT: {fault}\n")
    return 1 if found.faults else 0


if __name__ == "__main__":
    sys.exit(main())
