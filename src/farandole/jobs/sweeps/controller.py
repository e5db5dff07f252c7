"""The controller of a sweep: ``python -m farandole.jobs.sweeps.controller``.

This is the command of the sweep's own run. It submits runs, watches their metric, ends runs that
the policy rejects, and writes the best run to ``outputs/best.json``. After a restart, the
controller finds its runs by their parent.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import cloudpickle

from farandole.errors import SettingsError
from farandole.job.runs.folder import CANCEL, RUN_VARIABLE, RunFolder
from farandole.job.runs.home import RunsHome
from farandole.job.runs.states import RunState
from farandole.jobs.metrics import names, series
from farandole.jobs.references import listed
from farandole.jobs.submission import Submission, submit
from farandole.jobs.supervisor.wake import ensure_running
from farandole.jobs.sweeps.policies import best
from farandole.jobs.sweeps.space import Values, grid, random_search
from farandole.jobs.sweeps.sweep import STUDY, Plan, child_spec, load_plan, save_best

LOOK = 0.5  # seconds between two checks of the runs
_MOST_NAMES = 20  # metrics in the message for a missing one


class Controller:
    """The state of a sweep in progress."""

    def __init__(self, home: RunsHome, folder: RunFolder) -> None:
        self._home = home
        self._folder = folder
        self.plan = load_plan(folder)
        self._search = _Search(self.plan, folder)
        self._children: dict[str, RunFolder] = {}
        self._judged: dict[str, int] = {}  # judged reports by run
        self._done: set[str] = set()
        running = [
            event["time"] for event in folder.events() if event.get("state") == RunState.RUNNING
        ]
        self._began = running[0] if running else time.time()
        for row in reversed(listed(home, "parent = ?", (folder.run_id,))):
            self._children[row.run_id] = RunFolder(row.path)
            self._search.skip(RunFolder(row.path))

    def run(self) -> dict[str, Any] | None:
        """Run the sweep to its end and return the best run's facts; None if there is none."""
        more, over = True, False
        while more or len(self._done) < len(self._children):
            self._check_runs()
            if not over and self._is_over():
                over, more = True, False
                self.cancel()
            active = len(self._children) - len(self._done)
            while more and active < self.plan.concurrent:
                more = self._submit_next()
                active += more
            if more or active:
                time.sleep(LOOK)
        return self.best()

    def _is_over(self) -> bool:
        """Return whether the time limit of the sweep, which includes earlier attempts, has
        expired.
        """
        return 0 < self.plan.time_limit < time.time() - self._began

    def _submit_next(self) -> bool:
        """Submit the next run; return False if the search is over."""
        number = len(self._children)
        if self.plan.count and number >= self.plan.count:
            return False
        values = self._search.next()
        if values is None:
            return False
        snapshot = self._folder.file("snapshot")
        spec = child_spec(self.plan, self._folder.run_id, number, values)
        child = submit(
            Submission(spec, snapshot=snapshot if os.path.isdir(snapshot) else ""), self._home
        )
        self._children[child.run_id] = child
        self._search.submitted(child)
        return True

    def _check_runs(self) -> None:
        """Apply the policy to running runs, and handle the runs that have ended."""
        histories = {run_id: self._history(child) for run_id, child in self._children.items()}
        for run_id, child in self._children.items():
            if run_id in self._done:
                continue
            if child.end() is not None or not child.exists():
                self._done.add(run_id)
                self._search.ended(child, histories[run_id], self.plan.maximize)
            elif len(histories[run_id]) > self._judged.get(run_id, 0):
                self._judged[run_id] = len(histories[run_id])
                if self.plan.policy.ends(run_id, histories, self.plan.maximize):
                    child.record("note", text="ended by the sweep's policy")
                    child.request(CANCEL, by="policy")
                    ensure_running(self._home)

    def _history(self, child: RunFolder) -> list[float]:
        return [float(value) for value in series(child, self.plan.metric)[2]]

    def missing_metric(self) -> str:
        """Return the message for a sweep without a value of its metric."""
        reported = {name for child in self._children.values() for name in names(child)}
        found = ", ".join(sorted(reported)[:_MOST_NAMES]) or "none"
        return (
            f"no run of the sweep has reported the metric {self.plan.metric!r} (reported:"
            f" {found}); log it under this name on rank 0"
        )

    def best(self) -> dict[str, Any] | None:
        """Return the id, value and parameters of the best run; None if no run reported a value."""
        found: dict[str, Any] | None = None
        for run_id, child in self._children.items():
            history = self._history(child)
            if not history or not child.exists():
                continue
            value = best(history, self.plan.maximize)
            better = found is None or (
                value > found["value"] if self.plan.maximize else value < found["value"]
            )
            if better:
                parameters = dict(child.spec().parameters)
                found = {"run_id": run_id, "value": value, "parameters": parameters}
        return found

    def cancel(self) -> None:
        """Cancel all runs of the sweep."""
        for child in self._children.values():
            if child.end() is None:
                child.request(CANCEL, by="sweep")
        ensure_running(self._home)


class _Search:
    """The source of values: a grid, a random search, or an Optuna study."""

    def __init__(self, plan: Plan, folder: RunFolder) -> None:
        self._plan = plan
        self._values: Iterator[Values] | None = None
        self._study: Any = None
        self._trials: dict[str, Any] = {}
        self._asked: Any = None
        if plan.search == "study":
            with open(folder.file(STUDY), "rb") as file:
                self._study = cloudpickle.load(file)
        else:
            self._values = (
                grid(plan.space) if plan.search == "grid" else random_search(plan.space, plan.seed)
            )

    def skip(self, child: RunFolder) -> None:
        """Draw the values of a run submitted by an earlier process."""
        self.next()
        self.submitted(child)

    def next(self) -> Values | None:
        """Return the next values; None at the end of a grid."""
        if self._values is not None:
            return next(self._values, None)
        self._asked = self._study.ask()
        return {name: suggest(self._asked, name, each) for name, each in self._plan.space.items()}

    def submitted(self, child: RunFolder) -> None:
        """Store the trial of the run submitted with the last values."""
        if self._study is not None:
            self._trials[child.run_id] = self._asked

    def ended(self, child: RunFolder, history: list[float], maximize: bool) -> None:
        """Report the result of a run to the study."""
        trial = self._trials.pop(child.run_id, None)
        if trial is None:
            return
        if history and child.state() in (RunState.COMPLETED, RunState.CANCELED):
            self._study.tell(trial, best(history, maximize))
        else:
            from optuna.trial import TrialState  # type: ignore[import-not-found]

            self._study.tell(trial, state=TrialState.FAIL)


def suggest(trial: Any, name: str, distribution: Any) -> Any:
    """Return a trial's value for a parameter. Raises SettingsError for a normal distribution."""
    kind, arguments = distribution.kind, distribution.arguments
    if kind == "choice":
        return trial.suggest_categorical(name, list(arguments))
    if kind == "randint":
        return trial.suggest_int(name, 0, arguments[0] - 1)
    if kind == "quniform":
        return trial.suggest_float(name, arguments[0], arguments[1], step=arguments[2])
    if kind in ("uniform", "loguniform"):
        return trial.suggest_float(name, *arguments, log=kind == "loguniform")
    raise SettingsError(f"{name}: Optuna has no {kind} distribution; use uniform or loguniform")


def main() -> int:
    """Control the sweep of ``$FARANDOLE_RUN_DIR`` and return the exit status."""
    folder = RunFolder(os.environ[RUN_VARIABLE])
    controller = Controller(RunsHome(), folder)

    def stop(*_: object) -> None:
        # Without a request to cancel, only this attempt ends; the next attempt keeps the runs.
        if folder.requested(CANCEL) is not None:
            controller.cancel()
        sys.exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)
    found = controller.run()
    if found is None:
        sys.stderr.write(controller.missing_metric() + "\n")
        return 1
    save_best(folder, found)
    sys.stdout.write(f"best run: {found['run_id']} with {found['value']}: {found['parameters']}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
