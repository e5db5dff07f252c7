"""The supervisor's process: ``python -m farandole.jobs.supervisor.daemon``.

All state is in the folders of the runs, from which a new supervisor can restore it, so a supervisor
may be killed at any moment. A second supervisor of the same home exits immediately.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import sqlite3
import sys
import time
import traceback

from farandole.errors import RunError, SettingsError
from farandole.job.runs.folder import CANCEL, RunFolder
from farandole.job.runs.home import HOME_VARIABLE, RunsHome
from farandole.job.runs.identity import ProcessIdentity
from farandole.job.runs.spec import RunSpec
from farandole.job.runs.states import RunState
from farandole.jobs import attempts, environ, leftovers, outputs, spool
from farandole.jobs.retries import INFRASTRUCTURE, WORKLOAD
from farandole.jobs.supervisor.index import Index
from farandole.jobs.supervisor.place import lock_path, socket_address
from farandole.jobs.supervisor.queue import ActiveRun, Turn, WaitingRun, turns
from farandole.jobs.supervisor.wake import wake
from farandole.jobs.targets import load_target
from farandole.jobs.targets.contract import Capacity, Presence, RunTarget, Ticket

BUSY, IDLE = 0.25, 5.0  # seconds between two checks: with waiting or active runs, and without
IDLE_EXIT = 600.0  # seconds without a run after which the supervisor exits
_FALSE_STARTS = 3  # runners of a run that may end without claiming an attempt
_UNANSWERED = 300.0  # seconds after its grace period until an unresponsive run is canceled
_LOCK_SECONDS = 10.0  # seconds for another supervisor to start listening, or to exit


class _Attempt:
    """The supervisor's view of an active attempt."""

    def __init__(self, folder: RunFolder, spec: RunSpec, attempt: int, ticket: Ticket) -> None:
        self.folder = folder
        self.spec = spec
        self.number = attempt
        self.ticket = ticket
        self.cancel_sent = False
        self.pending_reason = ""
        self.indexed = -1  # size of the journal of events at the last update of the index


class RunSupervisor:
    """Starts waiting runs, detects the end of active ones, and keeps the index up to date."""

    def __init__(self, home: RunsHome) -> None:
        self.home = home
        self._waiting: dict[str, tuple[WaitingRun, RunFolder]] = {}
        self._active: dict[str, _Attempt] = {}
        self._targets: dict[str, RunTarget] = {}
        self._index: Index | None = None
        self._false_starts: dict[str, int] = {}
        self._obstacles: dict[str, str] = {}
        self._me = ProcessIdentity.of()
        self._last_run = time.monotonic()
        with contextlib.suppress(OSError):
            leftovers.remove(home)
        for folder in home.all_runs():
            try:
                if folder.exists() and folder.end() is None:
                    spool.add(home, folder)
            except (RunError, OSError, KeyError, TypeError, ValueError) as error:
                _log(f"run {folder.run_id} is skipped: {error}")

    def step(self) -> bool:
        """Take all due steps; return whether any run has not ended."""
        for folder in spool.entries(self.home):
            if folder.run_id not in self._waiting and folder.run_id not in self._active:
                self._guarded(folder, self._admit)
        self._supervise_active()
        for _, folder in list(self._waiting.values()):
            if folder.requested(CANCEL) is not None:
                self._guarded(folder, self._cancel_waiting)
        for turn in self._turns():
            self._guarded(self._waiting[turn.run_id][1], self._start, turn)
        if self._waiting or self._active:
            self._last_run = time.monotonic()
        return bool(self._waiting or self._active)

    @property
    def idle_seconds(self) -> float:
        """Seconds since the last run was waiting or active."""
        return time.monotonic() - self._last_run

    @property
    def pause(self) -> float:
        """Seconds until the next step."""
        return BUSY if self._active or self._waiting else IDLE

    def close(self) -> None:
        if self._index is not None:
            self._index.close()
            self._index = None

    def _guarded(self, folder: RunFolder, action: object, *arguments: object) -> None:
        """Call ``action`` for one run, so that an error in it does not stop the other runs.

        File system errors, such as a full disk, may be temporary: the next step tries again. Other
        errors fail the run.
        """
        try:
            action(folder, *arguments)  # type: ignore[operator]
        except OSError as error:
            self._log_once(folder.run_id, error)
        except Exception as error:
            _log(f"run {folder.run_id}: {traceback.format_exc()}")
            with contextlib.suppress(Exception):
                folder.finish(RunState.FAILED, f"{type(error).__name__}: {error}")
            with contextlib.suppress(OSError):
                self._forget(folder)
            self._update(folder)

    def _log_once(self, subject: str, error: Exception) -> None:
        """Log an error once, even if it recurs in every step."""
        text = f"{type(error).__name__}: {error}"
        if self._obstacles.get(subject) != text:
            self._obstacles[subject] = text
            _log(f"{subject}: {text}; trying again")

    # --- the queue

    def _admit(self, folder: RunFolder) -> None:
        """Take over a run that has not ended: as active if it has a runner, otherwise as
        waiting.
        """
        if not folder.exists():
            if self._is_deleted(folder):
                self._forget(folder)
            return
        attempts.settle(folder)
        if folder.end() is not None:
            self._forget(folder)
            self._update(folder)
            return
        attempt = attempts.number(folder)
        spec = folder.spec()
        found = attempts.ticket_of(folder, attempt)
        claimant = attempts.claimant(folder, attempt)
        if claimant is not None and claimant != self._me:
            data = found["data"] if found else claimant.to_json()
            ticket = self._claimed(folder, spec, attempt) or Ticket(spec.target, data)
            self._active[folder.run_id] = _Attempt(folder, spec, attempt, ticket)
        elif found and self._present(spec, Ticket(spec.target, found["data"])):
            ticket = Ticket(spec.target, found["data"])
            self._active[folder.run_id] = _Attempt(folder, spec, attempt, ticket)
        else:
            self._enqueue(folder, spec)
        self._update(folder)

    def _present(self, spec: RunSpec, ticket: Ticket) -> bool:
        return self._target(spec.target).presence([ticket])[0].state != "gone"

    def _enqueue(self, folder: RunFolder, spec: RunSpec) -> None:
        waiting = WaitingRun(
            folder.run_id,
            int(folder.submitted()["number"]),
            spec.target,
            spec.resources,
            spec.experiment,
            spec.priority,
            spec.after,
        )
        self._waiting[folder.run_id] = waiting, folder

    def _turns(self) -> list[Turn]:
        if not self._waiting:
            return []
        waiting = [each for each, _ in self._waiting.values()]
        active = [
            ActiveRun(run_id, each.spec.target, each.spec.resources, each.spec.experiment)
            for run_id, each in self._active.items()
        ]
        earlier = {run_id for run in waiting for run_id in run.after}
        return turns(
            waiting,
            active,
            self._capacities({run.target for run in waiting}),
            {
                name: limit
                for name in {run.experiment for run in waiting}
                if (limit := self._limit(name))
            },
            {run_id: self._state_of(run_id) for run_id in earlier},
        )

    def _capacities(self, names: set[str]) -> dict[str, Capacity | None]:
        found: dict[str, Capacity | None] = {}
        for name in names:
            try:
                found[name] = self._target(name).capacity()
            except SettingsError:
                found[name] = None  # the start of the run reports the error
        return found

    def _state_of(self, run_id: str) -> RunState | None:
        folder = self.home.find(run_id)
        try:
            return None if folder is None else folder.state()
        except (RunError, OSError, ValueError) as error:
            self._log_once(run_id, error)
            return RunState.QUEUED  # the run's folder may become readable again

    def _limit(self, experiment: str) -> int:
        try:
            return self.home.limit(experiment)
        except (RunError, OSError, ValueError, TypeError) as error:
            self._log_once(f"the limit of {experiment}", error)
            return 0

    def _target(self, name: str) -> RunTarget:
        if name not in self._targets:
            self._targets[name] = load_target(self.home, name)
        return self._targets[name]

    def _cancel_waiting(self, folder: RunFolder, cause: str = "canceled before it started") -> None:
        """End a waiting run, unless a runner has claimed its attempt in the meantime.

        The supervisor claims the attempt itself, so that no late runner can start it.
        """
        attempt = attempts.number(folder)
        if not attempts.claim(folder, attempt) and attempts.claimant(folder, attempt) != self._me:
            self._waiting.pop(folder.run_id, None)
            self._admit(folder)
            return
        folder.finish(RunState.CANCELED, cause)
        self._forget(folder)
        self._update(folder)

    # --- starting

    def _start(self, folder: RunFolder, turn: Turn) -> None:
        waiting, _ = self._waiting[folder.run_id]
        if turn.cause:
            self._cancel_waiting(folder, turn.cause)
            return
        attempt = attempts.number(folder)
        spec = folder.spec()
        target = self._target(waiting.target)
        env = environ.load(self.home, folder)
        env[HOME_VARIABLE] = self.home.path
        python = folder.submitted()["python"]
        command = [python, *_safe(python), "-m", "farandole.jobs.runner", folder.path, str(attempt)]
        ticket = target.start(folder, command, env)
        del self._waiting[folder.run_id]
        self._active[folder.run_id] = _Attempt(folder, spec, attempt, ticket)
        attempts.save_ticket(folder, attempt, {"target": ticket.target, "data": dict(ticket.data)})

    # --- active runs

    def _supervise_active(self) -> None:
        by_target: dict[str, list[_Attempt]] = {}
        for attempt in self._active.values():
            by_target.setdefault(attempt.spec.target, []).append(attempt)
        for name, group in by_target.items():
            try:
                presences = self._target(name).presence([each.ticket for each in group])
            except Exception as error:  # the target's definition was deleted, or is damaged
                self._log_once(f"the target {name}", error)
                presences = [Presence("present")] * len(group)
            for attempt, presence in zip(group, presences, strict=True):
                self._guarded(attempt.folder, self._supervise, attempt, presence)

    def _supervise(self, folder: RunFolder, attempt: _Attempt, presence: Presence) -> None:
        if not folder.exists():
            if self._is_deleted(folder):
                self._target(attempt.spec.target).cancel(attempt.ticket, 0.0)
                self._forget(folder)
            return
        concluded = attempts.number(folder) > attempt.number or folder.end() is not None
        if concluded or presence.state == "gone":
            self._end_attempt(folder, attempt, presence)
            return
        if presence.state == "pending" and presence.reason != attempt.pending_reason:
            attempt.pending_reason = presence.reason
            folder.record("pending", target=attempt.spec.target, reason=presence.reason)
        request = folder.requested(CANCEL)
        if request is not None and not attempt.cancel_sent:
            attempt.cancel_sent = True
            self._target(attempt.spec.target).cancel(attempt.ticket, attempt.spec.grace_seconds)
        if request is not None and presence.state == "present" and presence.reason:
            waited = time.time() - request["time"]
            if waited > attempt.spec.grace_seconds + _UNANSWERED:
                cause = f"canceled without a response from the runner {presence.reason}"
                attempts.conclude(folder, attempt.number, RunState.CANCELED, cause=cause)
        size = _size(folder.file("events.jsonl"))
        if size != attempt.indexed:
            attempt.indexed = size
            self._update(folder)

    def _end_attempt(self, folder: RunFolder, attempt: _Attempt, presence: Presence) -> None:
        """Handle an attempt concluded by its runner, or whose runner has disappeared."""
        open_ended = attempts.number(folder) == attempt.number and folder.end() is None
        if open_ended and not self._conclude(folder, attempt, presence):
            return
        attempts.settle(folder)
        del self._active[folder.run_id]
        if folder.end() is not None:
            self._forget(folder)
            self._update(folder)
        else:
            self._admit(folder)

    def _conclude(self, folder: RunFolder, attempt: _Attempt, presence: Presence) -> bool:
        """Conclude an attempt whose runner has disappeared; return False if the attempt
        continues.
        """
        claimant = attempts.claimant(folder, attempt.number)
        if claimant is None:
            if self._may_start_again(folder):
                del self._active[folder.run_id]
                self._enqueue(folder, attempt.spec)
                return False
            if not attempts.claim(folder, attempt.number):  # a slow runner has just claimed it
                return False
        claimed = self._claimed(folder, attempt.spec, attempt.number)
        other = claimed is not None and claimed.data != attempt.ticket.data
        if claimant is not None and claimant != self._me and other:
            assert claimed is not None
            attempt.ticket = claimed  # the runner of a killed supervisor was faster
            return False
        with contextlib.suppress(OSError, RunError):  # does the work of the lost runner
            outputs.collect(folder, digests=False)
        started = claimant is not None and claimant != self._me
        canceled = folder.requested(CANCEL) is not None
        attempts.conclude(
            folder,
            attempt.number,
            RunState.CANCELED if canceled else RunState.FAILED,
            cause=presence.reason or "its runner ended without a report",
            domain=INFRASTRUCTURE if started and presence.preempted else WORKLOAD,
        )
        return True

    def _claimed(self, folder: RunFolder, spec: RunSpec, attempt: int) -> Ticket | None:
        """Return the ticket of an attempt's runner; None if unknown."""
        try:
            kind = self._target(spec.target).kind
        except SettingsError:
            return None
        data = attempts.claimed_ticket(folder, attempt, kind)
        return None if data is None else Ticket(spec.target, data)

    def _is_deleted(self, folder: RunFolder) -> bool:
        """Return whether a run's folder was deleted, rather than temporarily unreachable."""
        if not os.path.isdir(self.home.runs):
            return False
        try:
            os.stat(folder.path)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return not os.path.lexists(folder.file("spec.json"))

    def _may_start_again(self, folder: RunFolder) -> bool:
        """Return whether to start another runner after one that ended without a claim."""
        self._false_starts[folder.run_id] = self._false_starts.get(folder.run_id, 0) + 1
        return self._false_starts[folder.run_id] < _FALSE_STARTS

    def _forget(self, folder: RunFolder) -> None:
        self._waiting.pop(folder.run_id, None)
        self._active.pop(folder.run_id, None)
        self._false_starts.pop(folder.run_id, None)
        self._obstacles.pop(folder.run_id, None)
        with contextlib.suppress(RunError, OSError, KeyError):
            attempts.remove_torn_files(folder)
        environ.discard(self.home, folder)  # comes first, so that a failure is retried
        spool.remove(self.home, folder)

    def _update(self, folder: RunFolder) -> None:
        """Bring the run's row of the index up to date. Runs continue if the index fails."""
        try:
            if self._index is None:
                self._index = Index(self.home)
            self._index.update(folder)
        except sqlite3.Error as error:  # a full disk, or a damaged file, which is rebuilt
            self._log_once("the index", error)
            with contextlib.suppress(sqlite3.Error):
                self.close()
            self._index = None
        except (RunError, OSError, KeyError, TypeError, ValueError) as error:
            self._log_once(folder.run_id, error)


def main() -> int:
    """Run the supervisor of ``$FARANDOLE_HOME`` until it has been idle for ten minutes."""
    home = RunsHome()
    lock = os.open(lock_path(home), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not _lock(lock, home):
        return 0
    os.ftruncate(lock, 0)
    os.write(lock, f"{os.getpid()}\n".encode())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    wake_socket = _wake_socket(home)
    supervisor = RunSupervisor(home)
    try:
        while True:
            if not supervisor.step() and supervisor.idle_seconds >= IDLE_EXIT:
                wake_socket.close()  # from this point, a submission starts another supervisor
                if not supervisor.step():
                    return 0
                wake_socket = _wake_socket(home)
            _reap()
            _sleep(wake_socket, supervisor.pause)
    finally:
        supervisor.close()


def _lock(lock: int, home: RunsHome) -> bool:
    """Take the supervisor's lock and return True; return False if another supervisor listens.

    A holder that does not listen is a process that reads the lock for a moment, or an exiting
    supervisor: the lock becomes free soon.
    """
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if wake(home) or time.monotonic() > deadline:
                return False
        time.sleep(0.02)


def _wake_socket(home: RunsHome) -> socket.socket:
    """Return the socket on which messages wake the supervisor."""
    wake_socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with socket_address(home) as path:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # left by a killed supervisor, because this process holds the lock
        mask = os.umask(0o077)
        try:
            wake_socket.bind(path)
        finally:
            os.umask(mask)
    return wake_socket


def _sleep(wake_socket: socket.socket, seconds: float) -> None:
    wake_socket.settimeout(seconds)
    with contextlib.suppress(TimeoutError, OSError):
        wake_socket.recv(64)
        wake_socket.setblocking(False)
        while wake_socket.recv(64):
            pass


def _reap() -> None:
    """Reap the runners that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _size(path: str) -> int:
    """Return the size of a file; -1 if it does not exist."""
    try:
        return os.path.getsize(path)
    except OSError:
        return -1


def _safe(python: str) -> list[str]:
    """Return the option that keeps a user's modules from shadowing the standard library."""
    return ["-P"] if python == sys.executable and sys.version_info >= (3, 11) else []


def _log(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
