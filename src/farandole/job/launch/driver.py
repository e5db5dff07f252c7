"""The driver's run of one job: places, store, start, watch and clean-up."""

from __future__ import annotations

import contextlib
import copy
import itertools
import os
from typing import Any

from farandole.errors import JobFailedError
from farandole.job.config.rank_variables import RESTART_VARIABLE, RUN_VARIABLE, TORCH_RESTARTS
from farandole.job.launch.contract import JobRequest, Launcher
from farandole.job.launch.job import Job
from farandole.job.launch.limits import check_open_files, open_standard_streams
from farandole.job.launch.plan import check_np
from farandole.job.launch.preparation import (
    describe,
    environment,
    output_streams,
    prepared,
    results,
    served,
    title,
    worker_command,
)
from farandole.job.launch.watch import HostsChanged, Interrupted, Watch
from farandole.job.plugins import registry
from farandole.job.report import keys
from farandole.net import handshake

__all__ = ["Interrupted", "run", "worker_command"]


def run(job: Job) -> list[Any]:
    """Run the job and return its function's results in rank order (none for a command).

    With the setting ``track``, the job leaves a run, unless it belongs to one already. Raises
    JobFailedError if the job fails (Interrupted if a signal ended it), or SettingsError if it
    cannot start.
    """
    if job.settings.track and RUN_VARIABLE not in {**os.environ, **job.env}:
        recorded: list[Any] = registry.load("tracking", "run")(job, _restarting)
        return recorded
    return _restarting(job)


def _restarting(job: Job) -> list[Any]:
    """Run the job, and all its ranks again after a failure, at most ``max_restarts`` times. As with
    torchrun, restarts for changed hosts do not count.
    """
    most, failures = job.settings.max_restarts, 0
    for start in itertools.count():
        try:
            return _run(_restarted(job, start, failures))
        except Interrupted:
            raise
        except JobFailedError as error:
            if isinstance(error, HostsChanged):
                job.display.note(f"{error}. All ranks are restarted")
            elif failures == most:
                if most:
                    job.display.note(f"no restart is left (--max-restarts {most})")
                raise
            else:
                failures += 1
                job.display.note(f"{error}\nAll ranks are restarted (restart {failures} of {most})")
            lost = error.host if error.host_lost else ""
            job = job._replace(elastic=job.elastic and job.elastic.again(lost))
    raise AssertionError


def _restarted(job: Job, start: int, failures: int) -> Job:
    """Return the job for start number ``start`` after ``failures`` failures, with its own folder
    for the output of ranks.
    """
    if not job.settings.max_restarts:
        return job
    display = copy.copy(job.display)
    if start and display.output_dir is not None:
        display.output_dir = os.path.join(display.output_dir, f"restart.{start}")
    counts = dict(zip(TORCH_RESTARTS, (failures, job.settings.max_restarts), strict=True))
    env = {**job.env, RESTART_VARIABLE: str(failures)}
    return job._replace(
        env={**env, **{name: str(n) for name, n in counts.items()}}, display=display
    )


def _run(job: Job) -> list[Any]:
    open_standard_streams()
    if job.elastic is not None:
        # Imported here because most jobs have a fixed size.
        from farandole.job.launch.elastic.driver import run_elastic

        return run_elastic(job, job.elastic)
    display = job.display
    check_np(job.np)
    request = JobRequest(job.np, title(job), job.hosts, job.settings.start_timeout, job.settings)
    launcher = _launcher(job, request)
    check_open_files(job.np, bool(job.display.output_dir))
    with contextlib.ExitStack() as stack:
        function = stack.enter_context(prepared(job))
        allocation = launcher.allocate(request)
        if display.verbose or (allocation.remote and not display.quiet):
            encrypted = ", encrypted (--tls)" if job.settings.tls else ""
            display.note(f"{allocation.describe()}{encrypted}")
        streams = stack.enter_context(output_streams(job))
        secret = handshake.new_secret(tls=job.settings.tls)
        store = allocation.listen(secret)
        stack.enter_context(served(store, streams, allocation.close))
        if function is not None:
            store.set(keys.FUNCTION, function)
            function = None
        watch = stack.enter_context(Watch(job, store, streams))
        env = {**environment(job, store, secret, launcher.name), **watch.watched_by()}
        watch.follow(allocation.start(worker_command(), env), env)
        slots = watch.await_slots(allocation)
        advice = "" if display.quiet else allocation.advice()
        if advice:
            display.note(advice)
        store.set(keys.JOB, describe(job, slots, elsewhere=allocation.remote))
        watch.until_done()
        return [] if job.call is None else results(store, slots)


def _launcher(job: Job, request: JobRequest) -> Launcher:
    if not isinstance(job.launcher, str):
        return job.launcher
    found: Launcher = (
        registry.best("launcher", request)
        if job.launcher == "auto"
        else registry.load("launcher", job.launcher)()
    )
    return found
