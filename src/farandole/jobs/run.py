"""``Run``: a submitted run, as programs and notebooks see it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from farandole.errors import RunError, RunFailedError
from farandole.job.plugins import registry
from farandole.job.runs.folder import CANCEL, RunFolder, read_json, write_json
from farandole.job.runs.home import RunsHome
from farandole.job.runs.states import RunState
from farandole.jobs import details, follow, outputs
from farandole.jobs.references import find_run, listed, reindex
from farandole.jobs.supervisor.wake import ensure_running

if TYPE_CHECKING:
    from farandole.jobs.comparison import Comparison


class Run:
    """A run: its state, logs, metrics and files.

    The run's folder holds everything, so any process can open the run with ``Run.get``.
    """

    def __init__(self, folder: RunFolder, home: RunsHome | None = None) -> None:
        self._folder = folder
        self._home = home or RunsHome()

    @staticmethod
    def get(reference: str) -> Run:
        """Return the run with this id, unique prefix of an id, display name or folder.

        ``"last"`` is the newest run. Raises SettingsError if there is no such run.
        """
        home = RunsHome()
        return Run(find_run(home, reference), home)

    @property
    def id(self) -> str:
        return self._folder.run_id

    @property
    def folder(self) -> str:
        """The path of the run's folder."""
        return self._folder.path

    @property
    def experiment(self) -> str:
        return self._folder.spec().experiment

    @property
    def name(self) -> str:
        """The display name; empty without one."""
        return self._folder.spec().name

    @property
    def tags(self) -> dict[str, str]:
        """The tags of the submission, with later changes by ``tag``."""
        return self._folder.tags()

    def tag(self, name: str, value: str = "") -> None:
        """Set a tag."""
        changed = read_json(self._folder.file("tags.json")) or {}
        write_json(self._folder.file("tags.json"), {**changed, name: value})
        reindex(self._folder, self._home)

    def status(self) -> str:
        """Return the current state: queued, preparing, provisioning, starting, running, finalizing,
        completed, failed or canceled.
        """
        return self._folder.state().value

    def wait(
        self, *, show_output: bool = False, timeout: float | None = None, check: bool = True
    ) -> Run:
        """Wait for the end of the run and return the run.

        Arguments:
            show_output: Print the output of the ranks as it appears.
            timeout: Seconds to wait; None waits without limit.
            check: Raise RunFailedError unless the run completes.

        Raises:
            RunFailedError: The run failed or was canceled; the message contains the cause.
            TimeoutError: The run did not end within ``timeout``.
        """
        ensure_running(self._home)
        if show_output:
            for text in follow.follow(self._folder):
                sys.stdout.write(text)
                sys.stdout.flush()
        state = follow.wait(self._folder, timeout)
        if check and state is not RunState.COMPLETED:
            cause = (self._folder.end() or {}).get("cause", "")
            raise RunFailedError(f"run {self.id} {_ended(state)}: {cause}", self.id, cause)
        return self

    def logs(self, rank: int | None = None) -> str:
        """Return the output of a rank so far, or of all ranks with prefixes if ``rank`` is None.

        Raises RunError if the run has no such rank.
        """
        try:
            with open(
                follow.log_path(self._folder, rank), encoding="utf-8", errors="replace"
            ) as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def follow(self, rank: int | None = None) -> Iterator[str]:
        """Yield the output of a rank, or of all ranks, as it appears, until the run ends."""
        return follow.follow(self._folder, rank)

    def metrics(self, rank: int = 0) -> dict[str, tuple[Any, Any, Any]]:
        """Return the metrics of a rank by name: arrays of steps, times (seconds since 1970) and
        values.
        """
        from farandole.jobs.metrics import names, series

        return {name: series(self._folder, name, rank) for name in names(self._folder, rank)}

    def artifacts(self) -> list[str]:
        """Return the paths of the output files, relative to the run's ``outputs``."""
        root = self._folder.file("outputs")
        return [os.path.relpath(path, root) for path in outputs.artifacts(self._folder)]

    def download(self, artifact: str, into: str = ".") -> str:
        """Copy an output file or folder into the folder ``into`` and return the copy's path.

        Raises RunError if there is no such artifact.
        """
        root = os.path.realpath(self._folder.file("outputs"))
        path = os.path.realpath(os.path.join(root, artifact))
        if not (path.startswith(root + os.sep) and os.path.exists(path)):
            raise RunError(f"run {self.id} has no artifact {artifact!r}: {self.artifacts()[:10]}")
        target = os.path.join(into, os.path.basename(path))
        inner = os.path.relpath(path, root)
        copied = outputs.artifacts(self._folder, inner) if os.path.isdir(path) else [path]
        for each in copied:
            place = os.path.normpath(os.path.join(target, os.path.relpath(each, path)))
            os.makedirs(os.path.dirname(place) or ".", exist_ok=True)
            shutil.copyfile(each, place)
        return target

    def result(self) -> Any:
        """Wait for a run of a function and return the result of rank 0."""
        return self.results()[0]

    def results(self) -> list[Any]:
        """Wait for a run of a function and return its results in rank order.

        Raises RunFailedError if the run fails, and RunError for a run of a command.
        """
        self.wait()
        if self._folder.spec().command:
            raise RunError(f"run {self.id} ran a command, which has no result; see its outputs")
        return outputs.load_results(self._folder)

    def cancel(self) -> None:
        """Cancel the run. A waiting run ends immediately, a running one within its grace period."""
        self._folder.request(CANCEL)
        ensure_running(self._home)

    def details(self) -> dict[str, Any]:
        """Return all facts about the run as plain data."""
        return {**details.details(self._folder), "tags": self.tags}

    def compare(
        self, *others: Run, metric: str | None = None, goal: str | None = None
    ) -> Comparison:
        """Compare this run with others: time, samples, time to an equal validation value, source,
        and the reasons why the comparison would be unfair. The result prints as a table.

        Arguments:
            others: The other runs.
            metric: The metric for the time to an equal value; by default a validation metric.
            goal: ``maximize`` or ``minimize``; by default derived from the metric's name.

        Raises SettingsError for a metric that a run lacks, or an invalid ``goal``.
        """
        from farandole.jobs.comparison import compare

        return compare([each._folder for each in (self, *others)], metric=metric, goal=goal)

    def children(self) -> list[Run]:
        """Return the runs submitted by this run, oldest first."""
        rows = listed(self._home, "parent = ?", (self.id,))
        return [Run(RunFolder(row.path), self._home) for row in reversed(rows)]

    def __repr__(self) -> str:
        return f"Run({self.id}: {self.status()})"

    def _repr_html_(self) -> str:
        """Return the run as static HTML, as for a report of a notebook."""
        found: str = registry.load("view", "html")(self)
        return found

    def _ipython_display_(self) -> None:
        """Show the run as the last line of a notebook's cell, live until it ends."""
        registry.load("view", "cell")(self)

    def facts(self) -> dict[str, str]:
        """Return the main facts as text, for a short summary."""
        found = self.details()
        return {
            "run": found["run_id"],
            "state": found["state"],
            "command": " ".join(found["command"]) or "a function",
            "ranks": f"{found['ranks']} on {found['target']}",
            "submitted": details.readable_time(found["submitted"]),
            "duration": details.readable_duration(found["seconds"]),
            "cause": found["cause"].split("\n")[0],
        }


def _ended(state: RunState) -> str:
    return "was canceled" if state is RunState.CANCELED else state.value
