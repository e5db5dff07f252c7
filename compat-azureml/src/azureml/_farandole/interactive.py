"""Runs of this process: ``Experiment.start_logging`` and ``Run.child_run``.

This process is the runner: it records the metrics, and the end of the run.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import sys
import tempfile
import time
import uuid

from azureml._farandole.definition import FILE, INTERACTIVE
from azureml._farandole.errors import raised_as
from azureml.exceptions import SnapshotException, UserErrorException
from farandole.errors import RunError
from farandole.job.runs.folder import RunFolder, make_private, write_json
from farandole.job.runs.home import RunsHome
from farandole.job.runs.spec import Resources, RunSpec
from farandole.job.runs.states import RunState
from farandole.job.tracking import files
from farandole.jobs import attempts, outputs, snapshot, spool
from farandole.jobs.heartbeat import Heartbeat
from farandole.jobs.retries import WORKLOAD
from farandole.jobs.snapshot.scan import SourceScan
from farandole.jobs.submission import write_request

OUTPUTS = "outputs"
_RUN_ID = r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}"
_CLOCKS = 2.0  # seconds by which the clocks of a file system may differ


class _Active:
    """A run of this process."""

    def __init__(self, folder: RunFolder, watched: str) -> None:
        self.folder = folder
        self.pid = os.getpid()
        self.watched = watched
        self.began = time.time()
        self.earlier = id(getattr(sys, "last_value", None))  # an error before the run
        self.heartbeat = Heartbeat(folder)
        self.heartbeat.__enter__()


_active: dict[str, _Active] = {}


def start(
    experiment: str,
    display_name: str,
    *,
    source: str = "",
    outputs: str | bool | None = None,
    run_id: str = "",
    parent: str = "",
    tags: dict[str, str] | None = None,
) -> str:
    """Start a run of this process and return its id.

    Arguments:
        experiment: The name of the experiment.
        display_name: The name of the run; may be empty.
        source: The folder for the snapshot; empty for none.
        outputs: The folder whose new files are copied at the end; None for ``outputs``, False for
            none.
        run_id: The id of the run; by default a new uuid.
        parent: The id of the parent; empty for none.
        tags: The tags of the run.

    Raises SnapshotException if the source is too large, and UserErrorException for an id that is
    taken or invalid.
    """
    home = RunsHome()
    spec = RunSpec(
        experiment,
        name=display_name,
        resources=Resources(cores=0.0),
        parent=parent,
        tags=tags or {},
        source=os.path.abspath(source) if source else "",
    )
    found: SourceScan | None = None
    if source:
        with raised_as(SnapshotException):
            found = snapshot.select(source, home)
    run_id = run_id or str(uuid.uuid4())
    if not re.fullmatch(_RUN_ID, run_id):
        raise UserErrorException(
            f"the run id {run_id!r} must have 1 to 100 letters, digits, '_' or '-', and begin with"
            " a letter or a digit"
        )
    if home.find(run_id) is not None:
        raise UserErrorException(f"there is a run {run_id!r} already; choose another id")
    folder = _created(home, spec, run_id, found)
    spool.add(home, folder)
    watched = "" if outputs is False else str(outputs or OUTPUTS)
    if watched:
        os.makedirs(watched, exist_ok=True)  # programs write there without creating it
    _active[run_id] = _Active(folder, os.path.abspath(watched) if watched else "")
    return run_id


def _created(home: RunsHome, spec: RunSpec, run_id: str, source: SourceScan | None) -> RunFolder:
    """Return the folder of a new run, which this process has claimed."""
    parent = make_private(os.path.join(home.runs, spec.experiment))
    building = RunFolder(make_private(os.path.join(parent, f".new-{run_id}")))
    facts = {}
    if source is not None:
        taken = snapshot.write(source, building.file("snapshot"), home)
        facts = {"snapshot": taken.digest, "snapshot_files": taken.files}
    write_request(building, spec, home, source=spec.source, facts=facts, tracked=True)
    write_json(building.file(FILE), {"type": None, INTERACTIVE: True})
    attempts.claim(building, 1)
    building.record("state", state=RunState.RUNNING.value, attempt=1)
    building.folder("outputs")
    folder = RunFolder(os.path.join(parent, run_id))
    os.rename(building.path, folder.path)
    return folder


def take_snapshot(folder: RunFolder, path: str) -> None:
    """Replace the snapshot of a run by a file or folder.

    Raises SettingsError if it is too large.
    """
    home = RunsHome()
    with tempfile.TemporaryDirectory() as alone:
        if os.path.isfile(path):
            shutil.copy(path, alone)
            path = alone
        found = snapshot.select(path, home)
        shutil.rmtree(folder.file("snapshot"), ignore_errors=True)
        taken = snapshot.write(found, folder.file("snapshot"), home)
    facts = {"snapshot": taken.digest, "snapshot_files": taken.files}
    write_json(folder.file("submitted.json"), {**folder.submitted(), **facts})


def end(folder: RunFolder, state: RunState, cause: str = "") -> None:
    """End a run of this process, unless it has already ended.

    If its outputs cannot be kept, a completed run ends as failed, and the error is raised.
    """
    active = _active.pop(folder.run_id, None)
    try:
        if active is not None:
            _keep_outputs(folder, active)
    except Exception as error:
        if state is RunState.COMPLETED:
            state, cause = RunState.FAILED, f"the outputs cannot be kept: {error}"
        raise
    finally:
        if active is not None:
            active.heartbeat.__exit__(None, None, None)
        _conclude(folder, state, cause)


def _conclude(folder: RunFolder, state: RunState, cause: str) -> None:
    if folder.end() is None:
        outputs.collect(folder)
        code = 0 if state is RunState.COMPLETED else 1
        attempts.conclude(folder, 1, state, cause=cause, domain=WORKLOAD, exit_code=code)
    spool.remove(RunsHome(), folder)


@atexit.register
def _end_all() -> None:
    """End the active runs of this process: as failed after an exception, else as completed."""
    for active in list(_active.values()):
        if active.pid == os.getpid():  # not in a fork of the process that started the run
            error = _final_error(active)
            state = RunState.COMPLETED if error is None else RunState.FAILED
            cause = "" if error is None else f"{type(error).__name__}: {error}"
            with contextlib.suppress(OSError, RunError):
                end(active.folder, state, cause)


def _final_error(active: _Active) -> BaseException | None:
    """Return the error that ends the process; None without one.

    In a notebook or an interactive interpreter, ``sys.last_value`` is the last error of any cell.
    It does not affect runs that began later; in IPython, it affects none if a later cell succeeded.
    """
    error: BaseException | None = getattr(sys, "last_value", None)
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if id(error) == active.earlier or getattr(shell, "last_execution_succeeded", False):
        return None
    return error


def _keep_outputs(folder: RunFolder, active: _Active) -> None:
    """Copy the files that were written to the watched folder since the start of the run."""
    for where, _, names in os.walk(active.watched):
        for name in names:
            path = os.path.join(where, name)
            with contextlib.suppress(FileNotFoundError):  # deleted since the listing
                if os.path.isfile(path) and os.stat(path).st_mtime >= active.began - _CLOCKS:
                    files.add(folder, path, os.path.relpath(path, active.watched))
