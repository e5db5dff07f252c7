"""The submission of a run: its folder is completed first, then the run enters the queue."""

from __future__ import annotations

import dataclasses
import getpass
import os
import platform
import shutil
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from farandole.errors import RunError, SettingsError
from farandole.job.launch.job import Call
from farandole.job.report import pickling
from farandole.job.runs.folder import RunFolder, make_private, write_json
from farandole.job.runs.home import RunsHome, check_experiment
from farandole.job.runs.spec import RunSpec
from farandole.jobs import environ, environments, inputs, mirrors, snapshot, source_control, spool
from farandole.jobs.snapshot.limits import limit_of
from farandole.jobs.snapshot.scan import SourceScan
from farandole.jobs.supervisor.wake import ensure_running
from farandole.jobs.targets import load_target

# Settings of elastic jobs that follow from the run's nodes and target.
_SIZES = ("min_np", "max_np", "host_discovery_script")


class Submission(NamedTuple):
    """A request for a run.

    - ``source``: The folder for the snapshot; empty for no snapshot.
    - ``call``: A function with its arguments, in place of the spec's command.
    - ``snapshot``: The folder of an existing snapshot to use unchanged, for a rerun.
    - ``files``, ``data``: Additional files of the run's folder by name, as JSON data or as bytes.
    - ``snapshot_limit``: The largest snapshot in bytes; 0 for 300 MB in 2,000 files.
    - ``run_id``: An unused id from ``RunsHome.new_id``; empty for a new one.
    """

    spec: RunSpec
    source: str = ""
    call: Call | None = None
    snapshot: str = ""
    snapshot_limit: int = 0
    files: Mapping[str, Mapping[str, Any]] = {}
    data: Mapping[str, bytes] = {}
    run_id: str = ""


def submit(submission: Submission, home: RunsHome | None = None) -> RunFolder:
    """Create the run, put it into the queue and return its folder.

    The run starts when its target has room for it. Raises SettingsError, before anything is
    created, for a request that cannot succeed; RunError if the folder cannot be written.
    """
    home = home or RunsHome()
    check(submission, home)
    spec, values = environ.withhold(submission.spec)
    secret = {**values, **inputs.secret_variables(spec.inputs)}
    spec = dataclasses.replace(
        spec,
        inputs=inputs.public(spec.inputs),
        environment=environments.with_content(spec.environment, submission.source),
    )
    submission = submission._replace(spec=spec)
    files = _selected(submission, home)
    run_id = submission.run_id or home.new_id(spec.experiment)
    parent = make_private(os.path.join(home.runs, spec.experiment))
    building = RunFolder(make_private(os.path.join(parent, f".new-{run_id}")))
    try:
        _fill(building, submission, home, files)
        folder = RunFolder(os.path.join(parent, run_id))
        environ.save(home, folder, secret)
        os.rename(building.path, folder.path)
    except BaseException as error:
        shutil.rmtree(building.path, ignore_errors=True)
        if isinstance(error, OSError):
            raise RunError(f"the run's folder could not be written: {error}") from error
        raise
    spool.add(home, folder)
    ensure_running(home)
    return folder


def check(submission: Submission, home: RunsHome) -> None:
    """Raise SettingsError for a request that cannot succeed."""
    spec = submission.spec
    check_experiment(spec.experiment)
    _check_size(spec)
    resources = spec.resources
    if bool(spec.command) == (submission.call is not None):
        raise SettingsError("a run needs either a command or a function")
    if submission.source:
        snapshot.check_source(submission.source)
    _check_script(submission)
    for run_id in spec.after:
        if home.find(run_id) is None:
            raise SettingsError(f"after={run_id!r} is not an existing run")
    load_target(home, spec.target).check(resources)
    environments.check(spec.environment, submission.source or submission.snapshot)
    inputs.check(spec.inputs, spec.command)
    mirrors.names_of(str(spec.settings.get("mirror", "")))


def _check_size(spec: RunSpec) -> None:
    """Raise SettingsError for impossible numbers of nodes and ranks."""
    resources = spec.resources
    needed = ("nodes", "ranks_per_node", *(("min_nodes", "max_nodes") if resources.elastic else ()))
    for name in needed:
        if getattr(resources, name) < 1:
            raise SettingsError(f"{name}={getattr(resources, name)} must be at least 1")
    if given := [name for name in _SIZES if spec.settings.get(name)]:
        raise SettingsError(
            f"{given[0]}={spec.settings[given[0]]!r} cannot be set for a run, which counts nodes."
            " Use min_nodes and max_nodes (--min-nodes 1 --max-nodes 4 --ranks-per-node 2); the"
            " target provides the hosts"
        )
    if not resources.elastic:
        return
    least, most = resources.min_nodes, resources.max_nodes
    if not least <= resources.nodes <= most:
        raise SettingsError(
            f"nodes={resources.nodes} is the number of nodes at the start of an elastic run: it"
            f" must be from min_nodes={least} to max_nodes={most}"
        )
    if spec.tf_workers:
        raise SettingsError(
            f"tf_workers={spec.tf_workers} needs a run of a fixed size: TF_CONFIG names all ranks."
            " Omit min_nodes and max_nodes"
        )


def _check_script(submission: Submission) -> None:
    """Raise SettingsError for a Python script that the source lacks."""
    from farandole.cli.run import check_script

    folder = submission.snapshot or submission.source
    if submission.spec.command:
        check_script(submission.spec.command, os.path.abspath(folder))


def _selected(submission: Submission, home: RunsHome) -> SourceScan | None:
    """Return the files of the run's snapshot; None if it has none."""
    if submission.snapshot:
        return snapshot.select_all(submission.snapshot)
    if not submission.source:
        return None
    return snapshot.select(submission.source, home, limit_of(submission.snapshot_limit))


def _fill(
    folder: RunFolder, submission: Submission, home: RunsHome, files: SourceScan | None
) -> None:
    """Write all files of the run."""
    spec = submission.spec
    facts: dict[str, Any] = {}
    if files is not None:
        taken = snapshot.write(files, folder.file("snapshot"), home)
        facts = {
            "snapshot": taken.digest,
            "snapshot_files": taken.files,
            "snapshot_bytes": taken.bytes,
            "snapshot_rules": taken.rules,
        }
        for text in taken.warnings:
            folder.record("warning", text=text)
    for name, content in submission.files.items():
        write_json(folder.file(name), content)
    for name, raw in submission.data.items():
        with open(folder.file(name), "wb") as file:
            file.write(raw)
    if submission.call is not None:
        with open(folder.file("function.pkl"), "wb") as file:
            file.write(pickling.pack_call(submission.call))
    write_request(folder, spec, home, source=submission.source, facts=facts)


def write_request(
    folder: RunFolder,
    spec: RunSpec,
    home: RunsHome,
    *,
    source: str,
    facts: Mapping[str, Any] = {},
    tracked: bool = False,
) -> None:
    """Write ``spec.json`` and ``submitted.json`` of a run, and its source's uncommitted changes.

    ``facts``: facts about the snapshot. ``tracked``: whether the job was not submitted, so that no
    supervisor may restart it.
    """
    write_json(folder.file("spec.json"), spec.to_json())
    write_json(
        folder.file("submitted.json"),
        {
            "number": home.next_number(),
            "time": time.time(),
            "user": getpass.getuser(),
            "host": socket.gethostname(),
            "python": sys.executable,
            "tracked": tracked,
            "snapshot": "",
            **facts,
            "versions": _versions(),
            **source_control.facts(source, folder.file("git.diff")),
        },
    )


def _versions() -> dict[str, Any]:
    import farandole

    return {
        "farandole": farandole.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
    }
