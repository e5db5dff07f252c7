"""The cost of the queue: to submit a run, to start it, to list thousands, and to keep a supervisor:
``python -m benchmarks.jobs.queue``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.jobs.tracking import shown
from benchmarks.samples import FARANDOLE_RUN, OURS, Case
from farandole.job.runs.folder import RunFolder
from farandole.job.runs.home import HOME_VARIABLE, RunsHome
from farandole.job.runs.spec import RunSpec
from farandole.jobs.references import listed
from farandole.jobs.submission import Submission, submit
from farandole.jobs.supervisor.wake import ensure_running, running_pid, wake

MANY = 10_000  # runs in the list
IDLE_SECONDS = 30.0  # seconds for which the idle supervisor is watched
_PROGRAM = "import sys, time; open(sys.argv[1], 'w').write(str(time.time()))"


def cases(quick: bool = False) -> Iterator[Case | str]:
    """Yield the costs of submission, start and list, then a sentence about the supervisor."""
    with tempfile.TemporaryDirectory(prefix="farandole-bench-") as place, _environment(place):
        home, source = RunsHome(), Path(place, "source")
        source.mkdir()
        (source / "train.py").write_text(_PROGRAM)
        try:
            yield from _starts(home, source, 1 if quick else 11)
            yield idle_supervisor(home, 1.0 if quick else IDLE_SECONDS)
            yield listing(home, 100 if quick else MANY, 1 if quick else 7)
        finally:
            _end_supervisor(home)


@contextlib.contextmanager
def _environment(place: str) -> Iterator[None]:
    kept = dict(os.environ)
    os.environ |= {HOME_VARIABLE: f"{place}/home", "XDG_STATE_HOME": f"{place}/state"}
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= kept


def _starts(home: RunsHome, source: Path, repetitions: int) -> Iterator[Case]:
    """Measure the call of ``submit``, and the time from the request to the first line of the
    script, in turns with ``farandole run``.
    """
    began = source.parent / "began"
    command = ("python", "train.py", str(began))
    run = [sys.executable, "-m", "farandole.cli", "run", "-np", "1", sys.executable, *command[1:]]
    ensure_running(home)
    while not wake(home):
        time.sleep(0.01)
    submitted, starts = [], {OURS: [], FARANDOLE_RUN: []}  # type: ignore[var-annotated]
    for _ in range(repetitions + 1):
        asked = time.time()
        folder = submit(Submission(RunSpec("bench", command), str(source)), home)
        submitted.append(time.time() - asked)
        while folder.end() is None:
            time.sleep(0.01)
        starts[OURS].append(float(began.read_text()) - asked)
        asked = time.time()
        subprocess.run(run, cwd=source, check=True, capture_output=True)
        starts[FARANDOLE_RUN].append(float(began.read_text()) - asked)
    yield Case("jobs", "submit a run", {OURS: submitted[1:]})
    yield Case(
        "jobs",
        "from request to the first line, one rank",
        {name: values[1:] for name, values in starts.items()},
    )


def idle_supervisor(home: RunsHome, seconds: float) -> str:
    """Return a sentence about the memory and the processor time of an idle supervisor."""
    pid = running_pid(home)
    assert pid
    before = processor_seconds(pid)
    time.sleep(seconds)
    used = processor_seconds(pid) - before
    return (
        f"idle supervisor: {proportional_memory(pid) / 1e6:.1f} MB of memory (PSS),"
        f" {shown(used) if used else '0'} of processor time in {seconds:g} s"
    )


def proportional_memory(pid: int) -> int:
    """Return the bytes of a process, with its share of shared memory (PSS)."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(
        int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:")
    )


def processor_seconds(pid: int) -> float:
    """Return the seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def listing(home: RunsHome, runs: int, repetitions: int) -> Case:
    """Measure the list of ``runs`` ended runs, with the refresh of the index, and of the index's
    first build.
    """
    (first,) = list(home.all_runs())[:1]
    copies(first, runs)
    began = time.perf_counter()
    assert len(listed(home)) >= runs
    built = time.perf_counter() - began
    samples = []
    for _ in range(repetitions):
        began = time.perf_counter()
        listed(home)
        samples.append(time.perf_counter() - began)
    return Case("jobs", f"list {runs:,} runs (index built in {built:.1f} s)", {OURS: samples})


def copies(run: RunFolder, number: int) -> None:
    """Copy the records of an ended run ``number`` times."""
    parent = os.path.dirname(run.path)
    submitted = run.submitted()
    for each in range(number):
        folder = RunFolder(os.path.join(parent, f"bench_1_{each:08x}"))
        os.mkdir(folder.path, 0o700)
        for name in ("spec.json", "end.json", "events.jsonl"):
            shutil.copyfile(run.file(name), folder.file(name))
        text = json.dumps({**submitted, "number": submitted["number"] + each + 1})
        Path(folder.file("submitted.json")).write_text(text)


def _end_supervisor(home: RunsHome) -> None:
    if pid := running_pid(home):
        os.kill(pid, signal.SIGTERM)
        while running_pid(home) == pid:
            time.sleep(0.01)


def main() -> None:
    for case in cases("--quick" in sys.argv):
        if isinstance(case, str):
            print(case)
            continue
        print(case.name)
        for name in case.samples:
            low, high = case.spread(name)
            print(f"  {name:<14} {shown(case.median(name))} ({shown(low)} - {shown(high)})")


if __name__ == "__main__":
    main()
