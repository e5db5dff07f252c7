"""Runs one attempt of a run: ``python -m farandole.jobs.runner FOLDER ATTEMPT``.

Prepares the environment, the inputs and the working directories, starts the ranks through one of
Farandole's launchers, and records the end of the attempt. All records go to the run's folder, so
the runner needs no supervisor while it works.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from farandole.errors import JobFailedError, RunError, SettingsError
from farandole.job.config import Settings
from farandole.job.launch import driver
from farandole.job.launch.display import Display
from farandole.job.launch.elastic_plan import plan_of
from farandole.job.launch.job import Call, Job, settings_for
from farandole.job.launch.plan import parse_hosts
from farandole.job.report import pickling
from farandole.job.runs.folder import (
    ATTEMPT_VARIABLE,
    CANCEL,
    COMMITS,
    RUN_ID_VARIABLE,
    RUN_VARIABLE,
    RunFolder,
)
from farandole.job.runs.home import RunsHome
from farandole.job.runs.identity import ProcessIdentity
from farandole.job.runs.node import NODE_HOSTS_VARIABLE, NODE_RANKS_VARIABLE, TF_WORKERS_VARIABLE
from farandole.job.runs.spec import RunSpec
from farandole.job.runs.states import RunState
from farandole.jobs import attempts, environ, environments, inputs, mirrors, outputs, workplaces
from farandole.jobs.environments import PreparedEnvironment
from farandole.jobs.heartbeat import Heartbeat
from farandole.jobs.logs import RunLogs
from farandole.jobs.rank_journal import RankJournal
from farandole.jobs.retries import INFRASTRUCTURE, WORKLOAD
from farandole.jobs.supervisor.wake import wake
from farandole.jobs.targets import load_target
from farandole.jobs.targets.contract import Launch

_FULL_DISK_SECONDS = 300.0  # seconds to keep trying to write the end of an attempt
_LOOK = 0.5  # seconds between two checks for a request to cancel


def main(arguments: list[str]) -> int:
    """Run the attempt unless another process has claimed it; return the exit status."""
    folder, attempt = RunFolder(arguments[0]), int(arguments[1])
    # After a switch to the environment's interpreter, this process already holds the claim.
    continues = attempts.claimant(folder, attempt) == ProcessIdentity.of()
    if not continues and not attempts.claim(folder, attempt):
        return 0
    if folder.end() is not None:
        return 0
    home = RunsHome()
    try:
        with Heartbeat(folder):
            _Runner(home, folder, attempt, continues=continues).run()
    finally:
        wake(home)
    return 0


class _Runner:
    """One attempt of a run."""

    def __init__(
        self, home: RunsHome, folder: RunFolder, attempt: int, *, continues: bool = False
    ) -> None:
        self._home = home
        self._continues = continues
        self._folder = folder
        self._attempt = attempt
        self._spec = environ.restore(folder.spec())
        self._stop = _StopWatch(folder, self._spec.time_limit)
        self._mirrors: list[subprocess.Popen[bytes]] = []

    def run(self) -> None:
        """Run the attempt and record its end."""
        state, cause, domain, code = RunState.FAILED, "", WORKLOAD, None
        try:
            self._stop.start()
            self._execute()
            state, code = RunState.COMPLETED, 0
        except driver.Interrupted as interrupted:
            state, cause, domain = self._interrupted(interrupted)
            code = interrupted.exit_code
        except (KeyboardInterrupt, _Stopped):
            state, cause, domain = self._interrupted(driver.Interrupted(signal.SIGTERM))
        except JobFailedError as failure:
            cause, code = str(failure), failure.exit_code
            domain = INFRASTRUCTURE if failure.host_lost else WORKLOAD
        except (SettingsError, RunError) as error:
            cause = f"{type(error).__name__}: {error}"
        except Exception as error:
            traceback.print_exc()
            cause = f"{type(error).__name__}: {error}"
        self._stop.close()
        self._finish(state, cause, domain, code)
        wake(self._home)
        mirrors.wait(self._mirrors)

    def _finish(self, state: RunState, cause: str, domain: str, code: int | None) -> None:
        folder = self._folder
        try:
            folder.change(RunState.FINALIZING)
            outputs.collect(folder)
            if state is not RunState.FAILED:
                for text in workplaces.lost_files(folder):
                    folder.record("warning", text=text)
                workplaces.discard(folder)
            if state is RunState.COMPLETED:
                shutil.rmtree(folder.file(COMMITS), ignore_errors=True)
        except (OSError, RunError) as error:
            with contextlib.suppress(OSError):
                folder.record("warning", text=f"the outputs could not be collected: {error}")
        deadline = time.monotonic() + _FULL_DISK_SECONDS
        while True:
            try:
                attempts.conclude(
                    folder, self._attempt, state, cause=cause, domain=domain, exit_code=code
                )
                return
            except OSError as error:  # a full disk: without this file, the attempt counts as lost
                if time.monotonic() > deadline or not folder.exists():
                    raise
                with contextlib.suppress(OSError):
                    sys.stdout.write(f"the end of the run cannot be written yet: {error}\n")
            time.sleep(1.0)

    def _interrupted(self, error: driver.Interrupted) -> tuple[RunState, str, str]:
        """Return the state, cause and domain of an interrupted attempt."""
        self._stop.poll()  # the supervisor may have seen the request first, and sent a signal
        if self._stop.reason == CANCEL:
            return RunState.CANCELED, "canceled", WORKLOAD
        if self._stop.reason:
            return RunState.FAILED, self._stop.reason, WORKLOAD
        return RunState.FAILED, f"{error} from outside (preempted)", INFRASTRUCTURE

    def _execute(self) -> None:
        folder, spec = self._folder, self._spec
        folder.change(RunState.PREPARING, attempt=self._attempt)
        prepared = self._environment()
        workplaces.prepare(folder, spec.resources.most_nodes)
        paths = inputs.prepare(spec.inputs, folder, self._home)
        inputs.forget_credentials(os.environ)
        launch = load_target(self._home, spec.target).launch(spec)
        folder.change(RunState.STARTING)
        settings = self._settings(launch)
        self._mirrors = mirrors.start(folder, self._attempt, settings.mirror)
        job = Job(
            np=spec.resources.ranks,
            settings=settings,
            display=Display(
                out=sys.stdout,
                err=sys.stdout,
                say=sys.stdout,
                messages=sys.stdout,
                files=RunLogs(folder, spec.resources.ranks),
                ranks=RankJournal(folder),
            ),
            command=_command(spec, prepared.python, paths),
            call=_call(folder, spec),
            env={
                **spec.variables,
                **prepared.variables,
                **inputs.variables(spec.inputs, paths),
                **run_variables(folder, spec, launch.hosts),
                ATTEMPT_VARIABLE: str(self._attempt),
            },
            hosts=launch.hosts,
            launcher=launch.launcher,
            elastic=plan_of(spec.resources.ranks, settings, launch.hosts),
        )
        os.chdir(folder.file("work", "node-0", "source"))
        folder.change(RunState.RUNNING, attempt=self._attempt)
        with _reachable(launch, folder, self._home, [prepared.python, *paths.values()]):
            results = driver.run(job)
        if job.call is not None:
            outputs.save_results(folder, results)

    def _settings(self, launch: Launch) -> Settings:
        """Return the settings of the job. Commits of an elastic run are stored in the run's folder,
        from which later attempts continue.
        """
        spec = self._spec
        chosen = {
            "grace_seconds": spec.grace_seconds,
            **elastic_settings(spec),
            **spec.settings,
            **launch.settings,
        }
        settings = settings_for(spec.variables, chosen)
        if spec.resources.elastic and not settings.commit_dir:
            settings = settings.replace(commit_dir=self._folder.file(COMMITS))
        return settings

    def _environment(self) -> PreparedEnvironment:
        """Return the environment of the ranks.

        A function is called by Farandole's worker, which the runner starts with its own
        interpreter. So the runner of a function restarts itself in the environment's interpreter.
        """
        if self._continues:
            return PreparedEnvironment(sys.executable)
        folder, spec = self._folder, self._spec
        prepared = environments.prepare(spec.environment, folder, self._home)
        for note in prepared.notes:
            folder.record("note", text=note)
        if not spec.command and prepared.python != sys.executable:
            words = [prepared.python, "-m", "farandole.jobs.runner", folder.path]
            variables = {**os.environ, **prepared.variables}
            os.execve(prepared.python, [*words, str(self._attempt)], variables)
        return prepared


def elastic_settings(spec: RunSpec) -> dict[str, Any]:
    """Return the settings for the number of ranks of an elastic run; empty for a fixed size."""
    resources = spec.resources
    if not resources.elastic:
        return {}
    per_node = resources.ranks_per_node
    return {"min_np": resources.min_nodes * per_node, "max_np": resources.max_nodes * per_node}


def run_variables(folder: RunFolder, spec: RunSpec, hosts: str | None = None) -> dict[str, str]:
    """Return the environment variables that identify the run to its ranks.

    ``hosts``: the hosts with slots, such as ``h1:2,h2:2``; None for this host.
    """
    elastic = {}
    if spec.resources.elastic:
        names = [host for host, _ in parse_hosts(hosts)] if hosts else ["localhost"]
        elastic = {NODE_HOSTS_VARIABLE: ",".join(names)}
    return {
        RUN_VARIABLE: folder.path,
        RUN_ID_VARIABLE: folder.run_id,
        NODE_RANKS_VARIABLE: str(spec.resources.ranks_per_node),
        **({TF_WORKERS_VARIABLE: str(spec.tf_workers)} if spec.tf_workers else {}),
        **elastic,
    }


def _reachable(
    launch: Launch, folder: RunFolder, home: RunsHome, paths: Sequence[str]
) -> AbstractContextManager[None]:
    """Return a context in which the run's files exist on all hosts of the ranks.

    ``paths``: the interpreter, whose whole environment is copied, then other files. Paths outside
    the home are not copied: the user provides them on all hosts.
    """
    if launch.copies is None:
        return nullcontext()
    python, *others = paths
    environment = os.path.dirname(os.path.dirname(python))
    inside = home.path + os.sep
    needed = [
        path
        for path in (environment, *others)
        if path.startswith(inside) and not path.startswith(folder.path + os.sep)
    ]
    return launch.copies(folder, needed)


def _command(spec: RunSpec, python: str, paths: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command with ``{name}`` replaced by the path of the input."""
    words = []
    for word in spec.command:
        for name, path in paths.items():
            word = word.replace("{" + name + "}", path)
        words.append(word)
    if words and words[0] in ("python", "python3"):
        words[0] = python
    return tuple(words)


def _call(folder: RunFolder, spec: RunSpec) -> Call | None:
    if spec.command:
        return None
    with open(folder.file("function.pkl"), "rb") as file:
        call: Call = pickling.unpack(file.read())
    return call


class _Stopped(BaseException):
    """Raised if the attempt must end while no driver handles the signal."""


class _StopWatch:
    """Ends the attempt on a request to cancel or after its time limit.

    ``reason`` is ``CANCEL``, a text for the user, or empty while the attempt may continue.
    """

    def __init__(self, folder: RunFolder, time_limit: float) -> None:
        self.reason = ""
        self._folder = folder
        self._time_limit = time_limit
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stop-watch", daemon=True)

    def start(self) -> None:
        signal.signal(signal.SIGTERM, self._on_signal)
        self._thread.start()

    def close(self) -> None:
        """End the watch, so that a late request does not interrupt the record of the end."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._over.set()
        self.poll()

    def _on_signal(self, *_: Any) -> None:
        self.poll()
        raise _Stopped

    def poll(self) -> None:
        """Record a new request to cancel."""
        if not self.reason and self._folder.requested(CANCEL) is not None:
            self.reason = CANCEL

    def _watch(self) -> None:
        began = time.monotonic()
        while not self._over.wait(_LOOK):
            self.poll()
            if self._time_limit and time.monotonic() - began > self._time_limit:
                self.reason = self.reason or (
                    f"the time limit of {self._time_limit:g} seconds has expired"
                )
            if self.reason:
                os.kill(os.getpid(), signal.SIGTERM)
                return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
