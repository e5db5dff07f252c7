"""Spark sessions for tests, and checks for leftovers of a job on their executors."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession

from tests.job.launch.tools import wait_until as wait_until

LIMIT = 90.0  # seconds in which every failure must be over
# in the environment of a session's JVM, of its executors and of their ranks
MARK = "FARANDOLE_TEST"
WORK = Path(pyspark.__file__).parent / "work"  # where local-cluster keeps what executors write


@contextlib.contextmanager
def session(master: str, python: str = sys.executable, **conf: str) -> Iterator[SparkSession]:
    """Yield a session and stop it afterwards; ``python`` is the executors' interpreter."""
    os.environ["PYSPARK_PYTHON"] = python  # Spark would take the first python3 of PATH
    builder: Any = SparkSession.builder.master(master).appName("farandole tests")
    fixed = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    for name, value in {**fixed, **conf}.items():
        builder = builder.config(name, value)
    found = builder.getOrCreate()
    found.sparkContext.setLogLevel("OFF")
    name = found.sparkContext.applicationId
    try:
        yield found
    finally:
        found.stop()
        shutil.rmtree(WORK / name, ignore_errors=True)


def processes(words: str, where: str) -> list[int]:
    """Return the processes of the tests' sessions with ``words`` in their "environ" or "cmdline"."""
    found, mark = [], f"{MARK}={os.environ.get(MARK)}".encode()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                ours = (
                    mark in (folder / "environ").read_bytes()
                    and words.encode() in (folder / where).read_bytes()
                )
                if ours and state not in "ZX":
                    found.append(int(folder.name))
    return found


def left() -> list[int]:
    """Return the ranks, their children, and their reapers."""
    return processes("FARANDOLE_REAPER=", "environ") + processes("import reaper;", "cmdline")


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class Clean:
    """Check at the end of the block ``with Clean(spark):`` that jobs have left nothing anywhere."""

    def __init__(self, spark: SparkSession, seconds: float = 100.0) -> None:
        self.spark, self.seconds = spark, seconds

    def __enter__(self) -> Clean:
        self.began = time.monotonic()
        self.files, self.threads = files(), threads()
        return self

    def __exit__(self, *_: object) -> None:
        took = time.monotonic() - self.began
        assert took < self.seconds, f"it took {took:.1f} s"
        assert wait_until(lambda: not left(), LIMIT), (
            f"processes are left: {[command(pid) for pid in left()]}"
        )
        context = self.spark.sparkContext
        if context._jsc is not None:
            tracker = context.statusTracker()
            assert wait_until(lambda: not tracker.getActiveJobsIds(), LIMIT), "a Spark job is left"
        assert wait_until(lambda: threads() <= self.threads, LIMIT), (
            f"threads are left: {threads() - self.threads}"
        )
        assert wait_until(lambda: len(files()) <= len(self.files), LIMIT), (
            f"open files before: {self.files}; now: {files()}"
        )


def files() -> dict[int, str]:
    """Return the open files and sockets of this process, except connections to Spark's JVM: one for
    each calling thread, and one for accumulators.
    """
    gateway = SparkContext._gateway
    theirs = psutil.Process(gateway.proc.pid).net_connections("tcp") if gateway else []
    ports = {each.laddr.port for each in theirs}
    sockets = {each.fd: each for each in psutil.Process().net_connections("tcp")}
    found = {}
    for number in map(int, os.listdir("/proc/self/fd")):
        socket = sockets.get(number)
        if not (socket and socket.raddr and socket.raddr.port in ports):
            with contextlib.suppress(OSError):  # the folder that was read is one of them
                found[number] = f"{os.readlink(f'/proc/self/fd/{number}')} {socket or ''}"
    return found


def threads() -> set[str]:
    return {each.name for each in threading.enumerate() if "farandole" in each.name}


def command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return (
            f"{pid}: {Path(f'/proc/{pid}/cmdline').read_bytes().replace(bytes(1), b' ').decode()}"
        )
    return str(pid)
