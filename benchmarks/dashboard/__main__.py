"""Time and memory of the dashboard's server: ``python -m benchmarks.dashboard``.

Writes runs, curves and a log of 1 GB into a temporary folder (about 2 GB; ``--quick``: a tenth),
starts ``farandole dashboard``, and measures its answers over the network. On a busy machine, the
server's processor time is more reliable than the response time.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from farandole.job.runs.folder import RunFolder
from farandole.job.runs.home import HOME_VARIABLE, RunsHome
from farandole.job.runs.journal import encode
from farandole.job.runs.spec import RunSpec
from farandole.jobs.metrics.columns import RankColumns

METRICS = 10
POINTS = 10_000


class Sizes(NamedTuple):
    """The load: runs in the list, runs with curves, and bytes of the log."""

    runs: int
    curves: int
    log: int


class Result(NamedTuple):
    """A measured value and the goal."""

    what: str
    value: str
    goal: str = ""


class PageServer:
    """A process of ``farandole dashboard``."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "farandole", "dashboard", "--port", "0", "--no-browser"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        address = urlsplit(self.process.stdout.readline().strip())
        self.port = address.port or 0
        self._headers = {"authorization": f"Bearer {address.query.removeprefix('token=')}"}

    def get(self, path: str, **query: Any) -> bytes:
        with contextlib.closing(self.request(path, **query)) as answer:
            data: bytes = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {data[:200]!r}")
        return data

    def request(self, path: str, **query: Any) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        text = f"{path}?{urlencode(query, doseq=True)}" if query else path
        connection.request("GET", text, headers=self._headers)
        return connection.getresponse()

    def memory(self) -> float:
        """Return the proportional set size in MB."""
        with open(f"/proc/{self.process.pid}/smaps_rollup") as file:
            line = next(line for line in file if line.startswith("Pss:"))
        return int(line.split()[1]) / 1000

    def close(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def write_run(home: RunsHome, experiment: str, number: int, records: list[Any]) -> RunFolder:
    """Write the folder of a completed run, without waiting for the disk."""
    spec = RunSpec(experiment, ("python", "train.py"), name=f"run {number}", tags={"n": "x"})
    run_id = f"{experiment}_{1_700_000_000 + number}_{number:08x}"
    folder = RunFolder(os.path.join(home.runs, experiment, run_id))
    os.makedirs(folder.file("metrics"))
    began = 1.7e9 + number
    files = {
        "spec.json": spec.to_json(),
        "submitted.json": {"number": number, "time": began, "user": "u", "host": "h"},
        "end.json": {"state": "completed", "time": began + 60, "cause": "", "exit_code": 0},
    }
    for name, data in files.items():
        with open(folder.file(name), "w") as file:
            json.dump(data, file)
    with open(folder.file("events.jsonl"), "wb") as raw:
        raw.write(encode({"event": "state", "time": began + 1, "state": "running", "attempt": 1}))
    with open(folder.metrics_of(0), "wb") as raw:
        raw.write(b"".join(map(encode, records)))
    return folder


def curve_records() -> list[Any]:
    """Return the records of ``METRICS`` metrics with ``POINTS`` values each."""
    return [
        {
            "step": step,
            "time": 1.7e9 + step,
            "values": {f"metric {name}": (step * 7919 % 1000) / 1000 for name in range(METRICS)},
        }
        for step in range(POINTS)
    ]


def timed(call: Callable[[], Any], repeats: int = 3) -> float:
    """Return the shortest duration of a call in seconds."""
    found = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        found.append(time.perf_counter() - begin)
    return min(found)


def measured(home: RunsHome, sizes: Sizes) -> Iterator[Result]:
    yield from _runs(home, sizes)
    yield from _curves(home, sizes)
    yield from _log(home, sizes)


def _runs(home: RunsHome, sizes: Sizes) -> Iterator[Result]:
    last = [{"step": 5, "time": 1.7e9, "values": {"loss": 0.25, "accuracy": 0.75}}]
    for number in range(sizes.runs):
        write_run(home, f"experiment-{number % 20}", number, last)
    begin = time.perf_counter()
    server = PageServer()
    try:
        while b'"accuracy"' not in (data := server.get("/api/runs")) or (
            data.count(b'"accuracy"') < sizes.runs
        ):
            time.sleep(0.05)
        yield Result("all rows, never indexed before", f"{time.perf_counter() - begin:.1f} s")
        seconds = timed(lambda: server.get("/api/runs"))
        yield Result(f"{sizes.runs:,} rows", f"{seconds * 1e3:.0f} ms, {len(data) / 1e6:.1f} MB")
        yield Result("memory of the server (PSS)", f"{server.memory():.0f} MB", "150 MB")
    finally:
        server.close()
    begin = time.perf_counter()
    server = PageServer()
    try:
        while server.get("/api/runs").count(b'"completed"') < sizes.runs:
            time.sleep(0.01)
        yield Result("start with an index", f"{time.perf_counter() - begin:.2f} s")
        while server.get("/api/runs").count(b'"accuracy"') < sizes.runs:
            time.sleep(0.1)
        before = _cpu(server)
        time.sleep(5)
        yield Result("idle, of one core", f"{(_cpu(server) - before) / 5:.1%}")
    finally:
        server.close()


def _cpu(server: PageServer) -> float:
    with open(f"/proc/{server.process.pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _curves(home: RunsHome, sizes: Sizes) -> Iterator[Result]:
    records = curve_records()
    folders = [write_run(home, "curves", 10**6 + n, records) for n in range(sizes.curves)]
    begin = time.perf_counter()
    for folder in folders:
        RankColumns.of(folder, 0)
    cold = time.perf_counter() - begin
    yield Result(f"{sizes.curves} journals converted, once", f"{cold:.1f} s")
    ids = [folder.run_id for folder in folders]
    names = [f"metric {name}" for name in range(METRICS)]
    server = PageServer()
    try:
        server.get("/api/series", run=ids, points=200)
        before = _cpu(server)
        one = timed(lambda: server.get("/api/series", run=ids, points=200))
        spent = (_cpu(server) - before) / 3
        what = f"{sizes.curves} runs x {METRICS} metrics x {POINTS:,} points"
        yield Result(f"{what}, one request", f"{one:.2f} s, processor {spent:.2f} s", "1 s")

        def in_parallel() -> None:
            with ThreadPoolExecutor(4) as pool:
                list(
                    pool.map(
                        lambda n: server.get("/api/series", run=ids, name=n, points=200), names
                    )
                )

        yield Result(f"{what}, a request per metric", f"{timed(in_parallel):.2f} s", "1 s")
        single = timed(lambda: server.get(f"/api/run/{ids[0]}/series", points=2000))
        yield Result(f"one run, {METRICS} metrics in 2,000 points", f"{single * 1e3:.0f} ms")
        yield Result("memory of the server (PSS)", f"{server.memory():.0f} MB", "150 MB")
    finally:
        server.close()


def _log(home: RunsHome, sizes: Sizes) -> Iterator[Result]:
    folder = write_run(home, "log", 10**7, [])
    os.makedirs(folder.file("user_logs"))
    block = b"".join(
        b"%08d  step %d: loss 0.12345678, 1234 rows/s\n" % (n, n) for n in range(20000)
    )
    with open(folder.log_of(0), "wb") as file:
        file.write(b"needle at the beginning\n")
        while file.tell() < sizes.log:
            file.write(block)
    size = os.path.getsize(folder.log_of(0))
    server = PageServer()
    at = f"/api/run/{folder.run_id}/log"
    try:
        seconds = timed(lambda: server.get(at, rank=0))
        yield Result(f"the end of a log of {size / 1e9:.1f} GB", f"{seconds * 1e3:.0f} ms")
        for text, more in (("needle", {}), ("NEEDLE", {"ignore_case": 1}), ("loss 0.12", {})):
            begin, before = time.perf_counter(), _cpu(server)
            found = json.loads(server.get(f"{at}/search", rank=0, text=text, **more))
            seconds, spent = time.perf_counter() - begin, _cpu(server) - before
            everything = len(found["matches"]) == 1  # the text is in the first line
            speed = f"{size / 1e6 / seconds:.0f} MB/s" if everything else f"{seconds * 1e3:.0f} ms"
            what = f"search for {text!r} {'in any case ' if more else ''}in it"
            goal = "200 MB/s" if everything else ""
            yield Result(what, f"{speed}, processor {spent:.2f} s", goal)
        yield Result("memory of the server (PSS)", f"{server.memory():.0f} MB", "150 MB")
        yield Result("a new point until its event", f"{_latency(server, folder):.2f} s", "1 s")
    finally:
        server.close()


def _latency(server: PageServer, folder: RunFolder) -> float:
    """Return the longest time from a record to its event, of five."""
    found = []
    stream = server.request("/api/events", run=folder.run_id)
    with contextlib.closing(stream):
        stream.readline()
        for step in range(5):
            time.sleep(0.5 + step / 10)
            begin = time.perf_counter()
            with open(folder.metrics_of(0), "ab") as file:
                file.write(encode({"step": step, "time": 1.0, "values": {"new": step}}))
            while not stream.readline().startswith(b"event: points"):
                pass
            found.append(time.perf_counter() - begin)
    return max(found)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dashboard", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the load")
    quick = parser.parse_args().quick
    sizes = Sizes(1000, 10, 10**8) if quick else Sizes(10_000, 100, 10**9)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[HOME_VARIABLE] = os.path.join(folder, "home")
        os.environ["XDG_STATE_HOME"] = os.path.join(folder, "state")
        for each in measured(RunsHome(), sizes):
            print(f"{each.what:<60} {each.value:<24} {each.goal}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
