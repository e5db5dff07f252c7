"""Tracked runs: records of jobs that were not submitted, as with ``farandole run --track``.

The driver itself is the runner. A tracked run has the same folder as a submitted run, with the logs
and metrics of the ranks, but no copy of the source and no separate working directory.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Callable
from typing import Any

from farandole.errors import JobFailedError, SettingsError
from farandole.job.config import Settings
from farandole.job.config.fields import settings_of
from farandole.job.launch.display import Display
from farandole.job.launch.driver import Interrupted
from farandole.job.launch.job import Job
from farandole.job.runs.folder import RUN_ID_VARIABLE, RUN_VARIABLE, RunFolder, make_private
from farandole.job.runs.home import RunsHome
from farandole.job.runs.spec import Resources, RunSpec
from farandole.job.runs.states import RunState
from farandole.jobs import attempts, mirrors, outputs, spool
from farandole.jobs.heartbeat import Heartbeat
from farandole.jobs.logs import RunLogs
from farandole.jobs.rank_journal import RankJournal
from farandole.jobs.retries import WORKLOAD
from farandole.jobs.submission import write_request

_PYTHON = r"python[\d.]*"
Execute = Callable[[Job], list[Any]]


def run(job: Job, execute: Execute) -> list[Any]:
    """Record a job as a run, and return ``execute(job)``.

    The folder of a job that cannot start (SettingsError) is deleted.
    """
    home = RunsHome()
    mirrors.names_of(job.settings.mirror)
    folder = _create(job, home)
    recorded = job._replace(
        env={**job.env, RUN_VARIABLE: folder.path, RUN_ID_VARIABLE: folder.run_id},
        display=_recorded(job.display, folder, job.np),
    )
    copies = mirrors.start(folder, 1, job.settings.mirror)
    state, cause, code = RunState.FAILED, "", None
    try:
        with Heartbeat(folder):
            results = execute(recorded)
        state, code = RunState.COMPLETED, 0
        return results
    except SettingsError:
        spool.remove(home, folder)
        shutil.rmtree(folder.path, ignore_errors=True)
        with contextlib.suppress(OSError):  # not empty: the experiment still has other runs
            os.rmdir(os.path.dirname(folder.path))
        raise
    except Interrupted as interrupted:
        state, cause, code = RunState.CANCELED, str(interrupted), interrupted.exit_code
        raise
    except JobFailedError as failure:
        cause, code = str(failure), failure.exit_code
        raise
    except BaseException as error:
        cause = f"{type(error).__name__}: {error}"
        raise
    finally:
        if folder.exists():
            _finish(home, folder, state, cause, code)
            mirrors.wait(copies)
            if not job.display.quiet:
                job.display.note(
                    f"the run is kept; show it with: {_program()} show {folder.run_id}"
                )


def _create(job: Job, home: RunsHome) -> RunFolder:
    """Return the folder of a new run, claimed by this process."""
    spec = RunSpec(
        experiment=_experiment(job),
        command=tuple(job.command),
        resources=Resources(ranks_per_node=job.np),
        settings=_changed(job.settings),
        parent=os.environ.get(RUN_ID_VARIABLE, ""),
        source=os.getcwd(),
    )
    run_id = home.new_id(spec.experiment)
    parent = make_private(os.path.join(home.runs, spec.experiment))
    building = RunFolder(make_private(os.path.join(parent, f".new-{run_id}")))
    folder = RunFolder(os.path.join(parent, run_id))
    write_request(building, spec, home, source=spec.source, tracked=True)
    attempts.claim(building, 1)
    building.record("state", state=RunState.RUNNING.value, attempt=1)
    os.rename(building.path, folder.path)
    folder.folder("outputs")
    spool.add(home, folder)
    return folder


def _finish(
    home: RunsHome, folder: RunFolder, state: RunState, cause: str, code: int | None
) -> None:
    outputs.collect(folder)
    attempts.conclude(folder, 1, state, cause=cause, domain=WORKLOAD, exit_code=code)
    spool.remove(home, folder)


def _program() -> str:
    """Return ``farandole``, or the path that the user called if it is not on the PATH."""
    called = sys.argv[0]
    if os.path.basename(called) == "farandole" and shutil.which("farandole") is None:
        return called
    return "farandole"


def _experiment(job: Job) -> str:
    """Return the name of the experiment: the name of the script or function."""
    if job.call is not None:
        name = getattr(job.call[0], "__name__", "function")
    else:
        words = [word for word in job.command if not word.startswith("-")]
        if len(words) > 1 and re.fullmatch(_PYTHON, os.path.basename(words[0])):
            words = words[1:]
        name = os.path.splitext(os.path.basename(words[0] if words else job.command[0]))[0]
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-_.")
    return name[:100] or "run"


def _changed(settings: Settings) -> dict[str, Any]:
    """Return the settings that differ from their defaults."""
    defaults = Settings()
    return {
        each.name: getattr(settings, each.name)
        for each in settings_of(Settings)
        if getattr(settings, each.name) != getattr(defaults, each.name) and each.name != "track"
    }


def _recorded(display: Display, folder: RunFolder, size: int) -> Display:
    """Return a display that also writes to the run's folder."""
    made = Display.__new__(Display)
    vars(made).update(vars(display))
    made.files = RunLogs(folder, size)
    made.ranks = RankJournal(folder)
    return made
