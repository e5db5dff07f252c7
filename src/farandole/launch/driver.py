"""Runs one job: plan, store, start, watch, explain; and leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any, cast

from farandole import handshake, registry
from farandole.config import STATUS, Connection, Placement, Settings, cores, doubts, variables
from farandole.contracts import Launcher, Worker
from farandole.errors import JobFailedError, RendezvousError, SettingsError
from farandole.launch.explain import Event, Verdict, explain, with_lines
from farandole.launch.job import Job
from farandole.launch.limits import check_open_files, crowding, open_standard_streams
from farandole.launch.output import Streams, is_terminal
from farandole.launch.placing import Placing
from farandole.launch.plan import plan
from farandole.launch.status import status
from farandole.log import logger
from farandole.report import keys, notes, pickling
from farandole.report.outcome import Outcome
from farandole.store import StoreServer, Value
from farandole.types import Slot

TERM_GRACE = 2.5  # seconds between SIGTERM and SIGKILL when a job is ended
TIDY_GRACE = 1.0  # the same for processes that ranks leave running when they end well
GATHER = 0.2  # seconds in which the others' failures are awaited, so that the message can tell of them
SETTLE = 2.0  # seconds that the rank which caused the failure gets to write its traceback and exit
DRAIN = 0.5  # seconds for which the pipes of a rank that has exited are still read
TICK = 0.1
INLINE = ("module://matplotlib_inline", "module://ipykernel")  # matplotlib backends of a kernel, of no use in a rank
PAUSE = 0.25  # seconds after which an unfinished line is shown on a terminal


class Interrupted(JobFailedError):
    """The driver itself was told to stop, by the signal ``signum``."""

    def __init__(self, signum: int) -> None:
        name = signal.Signals(signum).name
        super().__init__(f"the job was ended by {name}", exit_code=128 + signum)
        self.signum = signum


def run(job: Job) -> list[Any]:
    """Run the job and return the results of its function, in rank order (nothing for a command).

    Raises JobFailedError when it fails (Interrupted when a signal ended it), SettingsError when it cannot start.
    """
    open_standard_streams()
    slots = plan(job.hosts, job.np)
    launcher = _launcher(job)
    check_open_files(job.np, bool(job.output_dir))
    placing = _placing(launcher, job)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_visible_log())
        for doubt in doubts(job.settings, {**os.environ, **job.env}):
            logger.warning("%s", doubt)
        function = None if job.call is None else _pack(job)
        if placing is not None:
            where = placing.prepare(job.np, _title(job), job.settings.start_timeout)
            if not job.quiet:
                job.say.write(f"farandole: {where}\n")
                job.say.flush()
        elif job.verbose:
            job.say.write(f"farandole: {job.np} ranks on {_places(slots)}, launcher {launcher.name}\n")
        crowd = crowding(job.np, cores()) if launcher.name == "local" and not job.quiet else ""
        if crowd:
            job.say.write(f"farandole: {crowd}\n")
        streams = Streams(
            job.np, job.out, job.err, notes=job.notes, directory=job.output_dir, timestamp=job.prefix_timestamp,
            shown=job.show_ranks,
        )  # fmt: skip
        stack.callback(streams.close)
        secret = handshake.new_secret()
        store = StoreServer(secret) if placing is None else placing.open_store(secret)
        stack.callback(store.close)
        if placing is not None:
            stack.callback(placing.close)
            stack.callback(streams.close)  # the rest of the output may have to go where the launcher puts it
        if function is not None:
            store.set(keys.FUNCTION, function)
            function = None
        watch = stack.enter_context(Watch(job, slots, store, streams))
        env = _environment(job, store, secret, launcher.name)
        env.update(watch.watched_by())
        watch.follow(launcher.start(slots, worker_command(), env))
        if placing is not None:
            watch.await_places(placing)
        store.set(keys.JOB, _describe(job, watch.slots, elsewhere=placing is not None))
        watch.until_done()
    return [] if job.call is None else watch.results


def _launcher(job: Job) -> Launcher:
    if not isinstance(job.launcher, str):
        return job.launcher
    found: Launcher = registry.best("launcher") if job.launcher == "auto" else registry.load("launcher", job.launcher)()
    return found


def _placing(launcher: Launcher, job: Job) -> Placing | None:
    """The launcher, if it is one that places ranks itself."""
    if not hasattr(launcher, "placed"):
        return None
    if job.hosts is not None:
        raise SettingsError(f"hosts={job.hosts!r}: with launcher {launcher.name!r}, the cluster says where ranks run")
    return cast(Placing, launcher)


def _pack(job: Job) -> bytes:
    """The call, pickled; a warning if it is heavy."""
    assert job.call is not None
    what = _what(job.call[0])
    packed = pickling.pack_call(job.call)
    if 0 < job.heavy < len(packed):
        logger.warning("%s", pickling.weigh(job.call, what, len(packed)))
    return packed


def _title(job: Job) -> str:
    return os.path.basename(job.command[0]) if job.call is None else getattr(job.call[0], "__name__", "a function")


def worker_command() -> list[str]:
    """The command that every launcher starts. ``-P``: a user's file called ``json.py`` must not become our json."""
    return [sys.executable, *(["-P"] if sys.version_info >= (3, 11) else []), "-m", "farandole.worker"]


def _what(function: Callable[..., Any]) -> str:
    return f"the function {getattr(function, '__qualname__', repr(function))!r} with its arguments"


def _places(slots: Sequence[Slot]) -> str:
    return ", ".join(f"{slot.host}:{slot.local_size}" for slot in slots if slot.local_rank == 0)


def _describe(job: Job, slots: Sequence[Slot], *, elsewhere: bool) -> bytes:
    path = [os.path.abspath(folder) for folder in sys.path] if job.call is not None else []
    places = [[s.rank, s.host, s.local_rank, s.local_size, s.cross_rank, s.cross_size, s.size] for s in slots]
    facts = {"command": list(job.command), "slots": places, "path": path, "elsewhere": elsewhere}
    return json.dumps({**facts, "first_only": job.first_only}).encode()


def _environment(job: Job, store: StoreServer, secret: str, launcher: str) -> dict[str, str]:
    placement, connection = Placement(size=job.np), Connection(store=store.address, secret=secret, launcher=launcher)
    adjustable = variables(Settings)
    known = variables(Placement, Connection) | adjustable  # read into the settings
    mine = {name: value for name, value in job.env.items() if name not in known}
    said = {name for name in (*os.environ, *job.env) if name in adjustable}
    told = {**placement.to_env(), **connection.to_env(), **job.settings.to_env(said)}
    return {**mine, **told, "PYTHONUNBUFFERED": "1"}


@contextlib.contextmanager
def _visible_log() -> Iterator[None]:
    """Warnings reach stderr during a job, also in a program that has not set up logging."""
    if any(not isinstance(handler, logging.NullHandler) for handler in logger.handlers) or logging.getLogger().handlers:
        yield
        return
    handler = logging.StreamHandler(sys.stderr)
    clear = "\r\x1b[2K" if is_terminal(sys.stderr) else ""  # a status line may stand there
    handler.setFormatter(logging.Formatter(f"{clear}farandole: %(message)s"))
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class Watch:
    """Reads the pipes, sees ranks end, and decides when the job is over. A context: leaving it ends the workers."""

    def __init__(self, job: Job, slots: Sequence[Slot], store: StoreServer, streams: Streams) -> None:
        self.workers: Sequence[Worker] = ()
        self.results: list[Any] = []
        self._job = job
        self.slots = slots
        self._store = store
        self._streams = streams
        self._status = status(job.say, streams)
        self._doing = ""
        self._notes: deque[notes.Note] = deque()
        self._events: list[Event] = []
        self._reported: deque[tuple[int, Outcome]] = deque()  # outcomes that arrived, not looked at yet
        self._codes: dict[int, int] = {}
        self._signals: list[int] = []
        self._restore: dict[int, Any] = {}
        self._selector = selectors.DefaultSelector()
        self._wake_in, self._wake_out = os.pipe()
        os.set_blocking(self._wake_in, False)
        os.set_blocking(self._wake_out, False)
        self._selector.register(self._wake_in, selectors.EVENT_READ, None)
        self._open: dict[int, set[str]] = {}
        self._silent: dict[int, float] = {}  # per rank, when the last of its pipes closed
        store.hooks.append(self._on_set)

    def __enter__(self) -> Watch:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                # Ignored (nohup), or handled by something that Python could not put back: not ours to take.
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._restore[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self._end_workers()
        finally:
            self._show_notes()
            self._status.close("ended" if kind is None else "interrupted" if kind is Interrupted else "failed")
            self._store.hooks.remove(self._on_set)
            for key in list(self._selector.get_map().values()):
                os.close(key.fd)
            self._selector.close()
            os.close(self._wake_out)
            for number, handler in self._restore.items():
                signal.signal(number, handler)

    def watched_by(self) -> dict[str, str]:
        """The variables that tell ranks who watches them."""
        found = {STATUS: "1"} if self._status.shown else {}
        chosen = {**os.environ, **self._job.env}.get("MPLBACKEND", "")
        if self._status.pictures and (not chosen or chosen.startswith(INLINE)):
            found["MPLBACKEND"] = "module://farandole.report.figures"
        return found

    def await_places(self, placing: Placing) -> None:
        """Return when the cluster has said where the ranks run."""
        while (slots := placing.placed()) is None:
            self._doing = placing.awaiting()
            self._step(TICK)
        self.slots, self._doing = slots, ""
        self._status.places = _places(slots)
        if self._job.verbose:
            self._job.say.write(f"farandole: ranks on {_places(slots)}\n")

    def follow(self, workers: Sequence[Worker]) -> None:
        """Watch over these from now on."""
        self.workers = workers
        for worker in workers:
            self._open[worker.slot.rank] = set()
            for name, fd in (("stdout", worker.stdout), ("stderr", worker.stderr)):
                if fd is not None:
                    os.set_blocking(fd, False)
                    self._selector.register(fd, selectors.EVENT_READ, (worker.slot.rank, name))
                    self._open[worker.slot.rank].add(name)

    def until_done(self) -> None:
        """Return when every rank ended well; raise JobFailedError or Interrupted otherwise."""
        while len(self._codes) < len(self.workers):
            self._step(TICK)
            self._check()
        self._pump_until(self._is_tidy, TIDY_GRACE)
        self._take_reports()
        self._check()
        if self._job.call is not None:
            self._collect()

    # ---- seeing ----

    def _on_set(self, key: str, value: Value) -> None:
        """(A store's thread.) A rank reported its outcome, or something for those who watch."""
        kind, _, rest = key.partition("/")
        if kind not in ("outcome", "note"):
            return
        try:
            if kind == "outcome":
                self._reported.append((self._rank(rest), Outcome.from_bytes(value)))
            else:
                self._store.pop(key)
                what, _, rank = rest.partition("/")
                self._notes.append(notes.Note.parsed(what, self._rank(rank), value))
        except ValueError as error:
            logger.warning("%r was set in the job's store to what cannot be that, and is ignored: %s", key, error)
            return
        self._wake()

    def _rank(self, text: str) -> int:
        if not (text.isdecimal() and int(text) < len(self.slots)):
            raise ValueError(f"{text!r} is no rank from 0 to {len(self.slots) - 1}")
        return int(text)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_out, b"\0")

    def _step(self, seconds: float) -> None:
        """Wait for something to happen, pass output on, note who reported or ended."""
        # A rank whose pipes have just closed is about to exit: look again soon.
        recently = time.monotonic() - DRAIN
        exiting = any(since > recently and rank not in self._codes for rank, since in self._silent.items())
        self._pump(min(seconds, 0.005) if exiting else seconds)
        self._note()
        self._show_notes()
        self._status.tick(self._doing or f"{len(self.workers) - len(self._codes)} of {len(self.workers)} ranks running")
        if self._signals:
            raise Interrupted(self._signals[0])
        if self._streams.out.broken or self._streams.err.broken:
            raise Interrupted(signal.SIGPIPE)

    def _pump(self, seconds: float) -> None:
        """Pass on the output of the ranks."""
        for key, _ in self._selector.select(seconds):
            if key.data is None:
                with contextlib.suppress(OSError):
                    os.read(self._wake_in, 4096)
            else:
                self._read(key.fd, *key.data)
        self._streams.show_stale(PAUSE)

    def _read(self, fd: int, rank: int, name: str) -> None:
        data = b""
        try:
            data = os.read(fd, 1 << 18)
            if data:
                self._streams.feed(rank, name, data)
            else:
                self._streams.pause(rank, name)
        except BlockingIOError:
            return
        if not data:
            self._selector.unregister(fd)
            os.close(fd)
            self._open[rank].discard(name)
            if not self._open[rank]:
                self._silent[rank] = time.monotonic()

    def _note(self) -> None:
        """Outcomes before exits: a rank reports before it ends, and before others can notice."""
        for worker in self.workers:
            rank = worker.slot.rank
            if rank not in self._codes:
                code = worker.poll()
                self._take_reports()
                if code is not None:
                    self._codes[rank] = code
                    self._add(Event(rank, code=code))
        self._take_reports()

    def _show_notes(self) -> None:
        while self._notes:
            note = self._notes.popleft()
            if note.figure:
                self._status.figure(note.figure)
            elif note.progress is None:
                self._streams.say(note.text)
            elif note.rank == 0:
                self._status.progress = note.progress

    def _take_reports(self) -> None:
        while self._reported:
            rank, outcome = self._reported.popleft()
            self._add(Event(rank, outcome=replace(outcome, traceback=with_lines(outcome.traceback))))

    def _add(self, event: Event) -> None:
        self._events.append(event)
        if event.bad:
            self._streams.ending.add(event.rank)

    # ---- judging ----

    def _verdict(self) -> Verdict | None:
        if not any(event.bad for event in self._events):
            return None
        hosts = [slot.host for slot in self.slots]
        return explain(self._events, hosts, self._streams.tails(), self._activities())

    def _activities(self) -> dict[int, str]:
        """The activity of the ranks for which others wait in ``init()``."""
        kinds = {event.outcome.kind for event in self._events if event.outcome is not None}
        if RendezvousError.__name__ not in kinds:
            return {}
        found = {}
        for worker in self.workers:
            last = self._streams.last_line(worker.slot.rank)
            parts = [worker.activity(), f"its last line of output: {last}" if last else "it has printed nothing"]
            found[worker.slot.rank] = "; ".join(part for part in parts if part)
        return found

    def _check(self) -> None:
        """If a rank failed: give a better cause time to show, and the cause time to write its traceback; raise."""
        verdict = self._verdict()
        if verdict is None:
            return
        began = time.monotonic()
        while time.monotonic() < began + verdict.patience and len(self._codes) < len(self.workers):
            self._step(TICK / 4)
            verdict = self._verdict() or verdict
        settled = time.monotonic() + SETTLE
        while time.monotonic() < settled and verdict.rank >= 0 and verdict.rank not in self._codes:
            self._step(TICK / 4)
        drained = time.monotonic() + DRAIN
        while time.monotonic() < drained and verdict.rank in self._codes and self._open[verdict.rank]:
            self._step(TICK / 4)
        gathered = time.monotonic() + GATHER
        while time.monotonic() < gathered and len(self._codes) < len(self.workers):
            self._step(TICK / 4)
        verdict = self._verdict() or verdict
        self._end_workers()
        if not self._job.verbose:
            self._streams.close(drop=set(range(self._job.np)) - set(verdict.apart))
        raise JobFailedError(
            verdict.message, rank=verdict.rank, host=self.slots[verdict.rank].host if verdict.rank >= 0 else "",
            exit_code=verdict.exit_code, remote_traceback=verdict.traceback,
        )  # fmt: skip

    def _collect(self) -> None:
        for slot in self.slots:
            data = self._store.pop(keys.result(slot.rank))
            if data is None:
                raise JobFailedError(
                    f"Rank {slot.rank} on {slot.host} exited with code 0 before its function returned "
                    "(it called os._exit, or was replaced by another program)",
                    rank=slot.rank, host=slot.host,
                )  # fmt: skip
            try:
                self.results.append(pickling.unpack(data))
            except Exception as error:  # any error of the classes in it
                raise JobFailedError(
                    f"the result of rank {slot.rank} on {slot.host} cannot be read here: {type(error).__name__}: "
                    f"{error}; return plain data (numbers, arrays, state_dicts)",
                    rank=slot.rank, host=slot.host,
                ) from error  # fmt: skip

    # ---- ending ----

    def _is_tidy(self) -> bool:
        return not any(self._open.values()) and not any(worker.alive() for worker in self.workers)

    def _pump_until(self, done: Callable[[], bool], seconds: float) -> None:
        """Pass output on until ``done`` or the time is up; one more signal means: hurry."""
        deadline, signals = time.monotonic() + seconds, len(self._signals)
        while not done() and time.monotonic() < deadline and len(self._signals) == signals:
            self._pump(0.01)

    def _end_workers(self) -> None:
        """SIGTERM, a grace, SIGKILL for everything that is left."""
        if self._is_tidy():
            return
        for worker in self.workers:
            worker.terminate()
        self._pump_until(self._is_tidy, TERM_GRACE)
        for worker in self.workers:
            worker.kill()
        self._pump_until(self._is_tidy, 1.0)
