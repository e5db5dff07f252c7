"""A home for the runs of a test. Its supervisor and runners end with the test."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from farandole.job.runs.folder import RunFolder
from farandole.job.runs.home import HOME_VARIABLE, RunsHome
from farandole.jobs import attempts
from farandole.jobs.supervisor import wake
from farandole.jobs.supervisor.wake import running_pid


@contextlib.contextmanager
def runs_home(path: Path) -> Iterator[RunsHome]:
    """Yield an empty home that the environment variable names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOME_VARIABLE, str(path / "home"))
        patch.setenv("XDG_STATE_HOME", str(path / "state"))
        home = RunsHome()
        try:
            yield home
        finally:
            end_supervisor(home)
            _end_late_supervisors(home)
            _end_runners(home)
            _reap_supervisors()


def _reap_supervisors(seconds: float = 5.0) -> None:
    """Reap ended supervisors, so that later tests see no zombies."""
    deadline = time.monotonic() + seconds
    wake.reap()
    while wake._started and time.monotonic() < deadline:
        time.sleep(0.01)
        wake.reap()


def end_supervisor(home: RunsHome, number: int = signal.SIGKILL) -> bool:
    """Send a signal to the home's supervisor and wait for its end; return whether one ran."""
    pid = running_pid(home)
    if not pid:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
    deadline = time.monotonic() + 10
    while running_pid(home) == pid and time.monotonic() < deadline:
        time.sleep(0.01)
    return True


def _end_late_supervisors(home: RunsHome) -> None:
    """End supervisors that were still starting and would replace an ended one."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            supervises = "farandole.jobs.supervisor.daemon" in process.cmdline()
            if supervises and process.environ().get(HOME_VARIABLE) == home.path:
                process.kill()


def _end_runners(home: RunsHome) -> None:
    deadline = time.monotonic() + 20
    for folder in home.all_runs():
        runner = attempts.claimant(folder, attempts.number(folder))
        if runner is not None and runner.pid != os.getpid() and runner.alive():
            os.kill(runner.pid, signal.SIGTERM)
            while runner.alive() and time.monotonic() < deadline:
                time.sleep(0.02)


def wait_for_end(folder: RunFolder, seconds: float = 60.0) -> dict[str, object]:
    """Return the end of a run. Fails if the run does not end in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        end = folder.end()
        if end is not None:
            return end
        time.sleep(0.02)
    raise AssertionError(f"run {folder.run_id} is {folder.state().value}: {folder.events()[-3:]}")
