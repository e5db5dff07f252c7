"""The files of a run's folder.

A run's folder is self-contained: it can be copied, archived and opened elsewhere.

```
spec.json            the submitted specification (RunSpec); never changed
submitted.json       the submission: number in order, time, user, host, versions, git
snapshot/            the source
function.pkl         the pickled call, if the run calls a function
git.diff             uncommitted changes of the source
environment.lock     the exact packages of the environment
claim-<n>.json       identity of the process that runs attempt n; never changed
heartbeat            a file that the runner touches while the run is active
events.jsonl         journal: states, attempts, hosts, findings
ranks.jsonl          journal: the processes of the ranks, with their hosts and exit codes
end.json             final state, cause, exit code; never changed
user_logs/           std_log_process_<rank>.txt: the output of each rank
logs/                output of the preparation and of the driver
outputs/             output files of the program
commits/             the last commits of an elastic run, from which the next attempt continues
metrics/             rank-<n>.jsonl: the journal of each rank's metrics
work/node-<n>/       working directories of the nodes, while the run is active
requests/            one file per request to the run, such as cancel
```
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from farandole.errors import RunError
from farandole.job.config.rank_variables import RUN_VARIABLE as RUN_VARIABLE
from farandole.job.runs.journal import JournalWriter, records
from farandole.job.runs.states import RunState, check_transition

if TYPE_CHECKING:
    from farandole.job.runs.spec import RunSpec

RUN_ID_VARIABLE = "FARANDOLE_RUN_ID"
ATTEMPT_VARIABLE = "FARANDOLE_RUN_ATTEMPT"  # number of the attempt, from 1
CANCEL = "cancel"
COMMITS = "commits"


class RunFolder:
    """The folder of one run. Methods read and write its files, without state in memory."""

    def __init__(self, path: str) -> None:
        self.path = path

    @property
    def run_id(self) -> str:
        return os.path.basename(self.path)

    def file(self, *names: str) -> str:
        """Return the path of a file in this folder."""
        return os.path.join(self.path, *names)

    def folder(self, *names: str) -> str:
        """Return the path of a folder in this folder; create it readable by this user alone."""
        return make_private(self.file(*names))

    def exists(self) -> bool:
        return os.path.isfile(self.file("spec.json"))

    def log_of(self, rank: int) -> str:
        """Return the path of a rank's log."""
        return self.file("user_logs", f"std_log_process_{rank}.txt")

    def metrics_of(self, rank: int) -> str:
        """Return the path of a rank's journal of metrics."""
        return self.file("metrics", f"rank-{rank}.jsonl")

    # --- the submission

    def spec(self) -> RunSpec:
        """Return the specification. Raises RunError if the folder has none."""
        from farandole.job.runs.spec import RunSpec

        return RunSpec.from_json(self._required("spec.json"))

    def submitted(self) -> dict[str, Any]:
        """Return the facts of the submission. Raises RunError if the folder has none."""
        return self._required("submitted.json")

    def tags(self) -> dict[str, str]:
        """Return the tags of the submission, with later changes."""
        return {**self.spec().tags, **(read_json(self.file("tags.json")) or {})}

    def _required(self, name: str) -> dict[str, Any]:
        data = read_json(self.file(name))
        if data is None:
            raise RunError(f"{self.path} is not the folder of a run: it has no readable {name}")
        return data

    # --- states

    def record(self, kind: str, **values: Any) -> None:
        """Append an event of a ``kind`` to the journal of events."""
        with JournalWriter(self.file("events.jsonl")) as journal:
            journal.append({"event": kind, "time": time.time(), **values})

    def events(self) -> list[dict[str, Any]]:
        return list(records(self.file("events.jsonl")))

    def state(self) -> RunState:
        """Return the current state: the final state if the run has ended, else from the events."""
        end = self.end()
        if end is not None:
            return RunState(end["state"])
        found = RunState.QUEUED
        for event in self.events():
            if event.get("event") == "state":
                found = RunState(event["state"])
        return found

    def change(self, after: RunState, **values: Any) -> None:
        """Change to a state that is not final; no effect if the run is already in it.

        Raises RunError for a transition that the state machine does not have.
        """
        before = self.state()
        if before is not after:
            check_transition(self.run_id, before, after)
            self.record("state", state=after.value, **values)

    def end(self) -> dict[str, Any] | None:
        """Return the run's end (``state``, ``time``, ``cause``, ``exit_code``), or None."""
        return read_json(self.file("end.json"))

    def finish(self, state: RunState, cause: str = "", exit_code: int | None = None) -> bool:
        """Record the end of the run and return True; return False if it has ended already.

        If several processes record an end, the first one counts.
        """
        before = self.state()
        if before.final:
            return False
        check_transition(self.run_id, before, state)
        end = {
            "state": state.value,
            "time": time.time(),
            "cause": cause,
            "exit_code": exit_code,
        }
        first = write_once(self.file("end.json"), end)
        if first:
            self.record("state", state=state.value, cause=cause)
        return first

    # --- requests

    def request(self, name: str, **values: Any) -> None:
        """Record a request, such as ``CANCEL``, to the process that executes this run."""
        self.folder("requests")
        write_once(self.file("requests", name), {"time": time.time(), **values})

    def requested(self, name: str) -> dict[str, Any] | None:
        return read_json(self.file("requests", name))


def make_private(path: str) -> str:
    """Create a folder that only this user can read, with its parents, and return its path."""
    if not os.path.isdir(path):
        parent = os.path.dirname(path.rstrip(os.sep))
        if parent and parent != path:
            make_private(parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
    return path


def read_json(path: str) -> dict[str, Any] | None:
    """Return the data of a JSON file; None if it does not exist.

    Raises RunError if the file is damaged.
    """
    try:
        with open(path, encoding="utf-8") as file:
            data: Any = json.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}") from None
    if not isinstance(data, dict):
        raise RunError(f"{path} is damaged: it holds no JSON object")
    return data


def write_json(path: str, data: Mapping[str, Any]) -> None:
    """Replace a JSON file atomically: readers see either the old or the new content."""
    temporary = _written_aside(path, data)
    os.replace(temporary, path)


def write_once(path: str, data: Mapping[str, Any]) -> bool:
    """Create a JSON file atomically and return True; return False if it exists already.

    If several processes try, exactly one succeeds, even on a network file system.
    """
    temporary = _written_aside(path, data)
    try:
        os.link(temporary, path)
        return True
    except FileExistsError:
        return False
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _written_aside(path: str, data: Mapping[str, Any]) -> str:
    temporary = f"{path}.{os.getpid()}.{time.monotonic_ns()}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(data, file, indent=1, ensure_ascii=False)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    return temporary
