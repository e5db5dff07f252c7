"""The driver's loop: reads the ranks' pipes, detects their reports and ends, and ends them."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from farandole.base.log import logger
from farandole.base.types import Slot
from farandole.errors import JobFailedError, RendezvousError, counted, ranks_named
from farandole.job.config.rank_variables import STATUS
from farandole.job.launch.contract import Allocation, Worker
from farandole.job.launch.driver_signals import DriverSignals
from farandole.job.launch.explain.events import Event, Verdict
from farandole.job.launch.job import Job
from farandole.job.launch.output import OutputStreams
from farandole.job.launch.output_pump import OutputPump
from farandole.job.launch.plan import places
from farandole.job.launch.servers import ServerProcesses
from farandole.job.launch.status import status
from farandole.job.launch.supervise import JobState, Supervisor
from farandole.job.launch.tail import JobTail
from farandole.job.launch.uninitialized import UninitializedRanks
from farandole.job.report import keys, messages
from farandole.job.report.outcome import Outcome
from farandole.net.store import StoreServer, Value

# seconds between SIGTERM and SIGKILL for leftover processes of ended ranks; --grace-seconds is for
# ranks
TERM_GRACE = 2.5
NOTICE = 2.5  # seconds before the wait for ranks that are ending is reported
# seconds between SIGTERM and SIGKILL for processes that successful ranks left running
TIDY_GRACE = 1.0
TICK = 0.1
# A notebook kernel's matplotlib backends, which do not work in a rank.
INLINE = ("module://matplotlib_inline", "module://ipykernel")


class Interrupted(JobFailedError):
    """A signal, ``signum``, stopped the driver."""

    def __init__(self, signum: int) -> None:
        name = signal.Signals(signum).name
        super().__init__(f"the job was ended by {name}", exit_code=128 + signum)
        self.signum = signum

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.signum,)


class HostsChanged(JobFailedError):
    """The hosts of an elastic job have changed, and its program has to start again."""


class Watch:
    """Reads the pipes, detects ended ranks, and decides when the job is over.

    A context manager: leaving it ends the workers.
    """

    def __init__(self, job: Job, store: StoreServer, streams: OutputStreams) -> None:
        self._workers: Sequence[Worker] = ()
        self._slots: Sequence[Slot] = ()
        self._env: Mapping[str, str] = {}
        self._allocation: Allocation | None = None
        self._servers = ServerProcesses(job.np, job.settings, store)
        self._uninitialized = UninitializedRanks(job, store)
        self._has_ended_workers = False  # all workers were signalled and their grace period is over
        self._job = job
        self._store = store
        self._streams = streams
        self._supervisor = Supervisor(job.np)
        self._tail = JobTail(job.np, job.settings)
        self._status = status(job.display.say, streams)
        self._doing = ""
        self._messages: deque[messages.RankMessage] = deque()
        # Outcomes that have arrived but have not been processed.
        self._reported: deque[tuple[int, Outcome]] = deque()
        self._bereft: set[int] = set()  # ranks that failed because the driver had ended other ranks
        self._pump = OutputPump(streams, self._on_silent)
        self._signals = DriverSignals(self._pump.wake)
        store.hooks.append(self._on_set)

    def __enter__(self) -> Watch:
        self._signals.install()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self._end_workers()
            if kind is not None and not self._job.display.verbose:
                self._streams.close(drop=self._bereft)
        finally:
            self._show_messages()
            self._status.close(
                "ended" if kind is None else "interrupted" if kind is Interrupted else "failed"
            )
            self._store.hooks.remove(self._on_set)
            self._pump.close()
            self._signals.restore()

    def watched_by(self) -> dict[str, str]:
        """Return the variables that inform ranks about the display of their output."""
        found = {STATUS: "1"} if self._status.shown else {}
        chosen = {**os.environ, **self._job.env}.get("MPLBACKEND", "")
        if self._status.pictures and (not chosen or chosen.startswith(INLINE)):
            found["MPLBACKEND"] = "module://farandole.job.report.figures"
        return found

    def await_slots(self, allocation: Allocation) -> Sequence[Slot]:
        """Wait for the cluster to place the ranks, and return the slots."""
        while (slots := allocation.slots()) is None:
            self._doing = allocation.status()
            self._step(TICK)
        self._slots = slots
        self._allocation = allocation
        self._doing = ""
        if self._job.display.ranks is not None:
            self._job.display.ranks.started(slots)
        if allocation.remote:
            self._status.places = places(slots)
            if self._job.display.verbose:
                self._job.display.note(f"ranks on {places(slots)}")
        return slots

    def follow(self, workers: Sequence[Worker], env: Mapping[str, str] = {}) -> None:
        """Watch these workers from now on. Parameter servers also get their variables ``env``."""
        self._workers = workers
        self._slots = [worker.slot for worker in workers]
        self._env = env
        self._pump.listen_to(workers)

    def until_done(self) -> None:
        """Wait until every rank ended successfully; raise JobFailedError or Interrupted
        otherwise.
        """
        if self._await_end() is JobState.ENDED:
            self._end(self._servers.workers)
            deadline = time.monotonic() + TIDY_GRACE
            self._pump_until(self._is_tidy, deadline, len(self._signals.received))
            self._take_reports()  # reports may still arrive
            if (finding := self._uninitialized.finding()) and not self._job.display.quiet:
                self._job.display.note(finding)
        if self._await_end() is JobState.FAILED:
            self._fail()

    def _await_end(self) -> JobState:
        while (state := self._supervisor.decide(time.monotonic(), self._verdict())) in (
            JobState.RUNNING,
            JobState.FAILING,
        ):
            self._step(TICK if state is JobState.RUNNING else TICK / 4)
        return state

    # ---- observing ----

    def _on_set(self, key: str, value: Value) -> None:
        """Handle a rank's outcome or message, on a thread of the store."""
        kind, _, rest = key.partition("/")
        if key == keys.SERVERS_WANTED:
            self._servers.wanted = True
            self._pump.wake()
        if kind not in ("outcome", "message"):
            return
        try:
            if kind == "outcome":
                self._reported.append((self._rank(rest), Outcome.from_bytes(value)))
            else:
                self._store.pop(key)
                what, _, rank = rest.partition("/")
                self._messages.append(messages.RankMessage.parsed(what, self._rank(rank), value))
        except ValueError as error:
            logger.warning(
                "ignoring %r in the job's store: its value is malformed (%s)",
                key,
                error,
            )
            return
        self._pump.wake()

    def _rank(self, text: str) -> int:
        if not (text.isdecimal() and int(text) < self._job.np):
            raise ValueError(f"{text!r} is not a rank from 0 to {self._job.np - 1}")
        return int(text)

    def _on_silent(self, rank: int) -> None:
        if rank < self._job.np:
            self._supervisor.silent(rank, time.monotonic())

    def _has_places(self) -> bool:
        """Return whether ranks may be running."""
        return self._allocation is not None

    def _pass_signals_on(self) -> None:
        # otherwise no rank may be running yet
        while self._signals.for_ranks and self._has_places():
            number = self._signals.for_ranks.popleft()
            running = [
                worker for worker in self._workers if worker.slot.rank not in self._supervisor.codes
            ]
            if self._job.display.verbose:
                self._job.display.note(
                    f"sending {signal.Signals(number).name} to {counted(len(running), 'rank')}"
                )
            for worker in running:
                worker.signal(number)

    def _step(self, seconds: float) -> None:
        """Wait for an event, pass on output, and record reports and ends."""
        soon = self._supervisor.exiting(time.monotonic())  # then check again soon
        self._pump.pump(min(seconds, 0.005) if soon else seconds)
        if self._servers.wanted and not self._servers.workers:
            self._start_servers()
        self._note()
        self._uninitialized.poll(self._workers)
        self._pass_signals_on()
        self._show_messages()
        self._status.tick(
            self._doing
            or f"{self._supervisor.running} of {counted(self._job.np, 'rank')} running"
            + self._servers.describe()
        )
        if self._signals.received:
            raise Interrupted(self._signals.received[0])
        if self._streams.out.broken or self._streams.err.broken:
            raise Interrupted(signal.SIGPIPE)

    def _start_servers(self) -> None:
        self._servers.start(self._env, self._allocation)
        for number, worker in enumerate(self._servers.workers):
            self._streams.add_server(worker.slot.rank, number)
        self._pump.listen_to(self._servers.workers)

    def _note(self) -> None:
        """Record outcomes, then exits: a rank reports before it ends, and before others can
        notice.
        """
        running = [
            worker for worker in self._workers if worker.slot.rank not in self._supervisor.codes
        ]
        ends = [
            (worker.ended, worker.slot.rank, code)
            for worker in running
            if (code := worker.poll()) is not None
        ]
        self._take_reports()
        for _, rank, code in sorted(ends):
            if self._job.display.ranks is not None:
                self._job.display.ranks.ended(rank, code)
            self._see(Event(rank, code=code))
            self._report_finished()
        self._servers.poll()

    def _report_finished(self) -> None:
        """Publish the finished ranks for ranks that wait in a later ``init()``."""
        finished = sorted(rank for rank, code in self._supervisor.codes.items() if not code)
        self._store.set(keys.FINISHED, json.dumps(finished).encode())

    def _show_messages(self) -> None:
        while self._messages:
            message = self._messages.popleft()
            if message.figure:
                self._status.figure(message.figure)
            elif message.progress is None:
                self._streams.say(message.text)
            elif message.rank == 0:
                self._status.progress = message.progress

    def _take_reports(self) -> None:
        while self._reported:
            rank, outcome = self._reported.popleft()
            if outcome.traceback:
                # Imported here because a successful job needs no source lines.
                from farandole.job.launch.explain.tracebacks import with_lines

                outcome = outcome._replace(traceback=with_lines(outcome.traceback))
            self._see(Event(rank, outcome=outcome))

    def _see(self, event: Event) -> None:
        self._supervisor.see(event)
        if event.bad:
            self._streams.ending.add(event.rank)

    # ---- judging ----

    def _verdict(self) -> Verdict | None:
        if verdict := self._servers.verdict(self._streams.tails()):
            return verdict
        if not self._supervisor.failing:
            return self._verdict_on_tail()
        # Imported here because a successful job has nothing to explain.
        from farandole.job.launch.explain.cause import explain

        kinds = {
            event.outcome.kind for event in self._supervisor.events if event.outcome is not None
        }
        # other ranks wait for them in init()
        awaited = self._workers if RendezvousError.__name__ in kinds else ()
        hosts = [slot.host for slot in self._slots]
        tails = self._streams.tails()
        return explain(self._supervisor.events, hosts, tails, self._activities(awaited))

    def _verdict_on_tail(self) -> Verdict | None:
        """Report ranks that still run long after others have ended; return a verdict if they have
        to be ended.
        """
        codes, now = self._supervisor.codes, time.monotonic()
        seconds, is_over = self._tail.poll(codes, now), self._tail.is_over(codes, now)
        if not (seconds or is_over):
            return None
        running = self._tail.running(codes)
        hosts = [slot.host for slot in self._slots]
        activities = self._activities([self._workers[rank] for rank in running])
        if is_over:
            return self._tail.verdict(codes, hosts, activities)
        if not self._job.display.quiet:
            self._job.display.note(self._tail.describe(codes, seconds, hosts, activities))
        return None

    def _activities(self, workers: Sequence[Worker]) -> dict[int, str]:
        """Return the current activities of these ranks."""
        found = {}
        for worker in workers:
            last = self._streams.last_line(worker.slot.rank)
            parts = [
                worker.activity(),
                f"its last line of output: {last}" if last else "it has printed nothing",
            ]
            found[worker.slot.rank] = "; ".join(part for part in parts if part)
        return found

    def _fail(self) -> None:
        verdict = self._verdict()
        assert verdict is not None
        self._end_workers()
        if not self._job.display.verbose:
            self._streams.close(drop=set(range(self._job.np)) - set(verdict.apart))
        raise JobFailedError(
            verdict.message,
            rank=verdict.rank,
            host=self._slots[verdict.rank].host if verdict.rank >= 0 else "",
            exit_code=verdict.exit_code,
            remote_traceback=verdict.traceback,
            host_lost=verdict.host_lost,
        )

    # ---- ending ----

    def _is_tidy(self) -> bool:
        return self._pump.is_drained() and self._ranks_are_over() and self._servers.are_over()

    def _pump_until(self, done: Callable[[], bool], deadline: float, signals: int) -> None:
        """Pass on output until ``done``, until the deadline, or until the driver has received more
        than ``signals`` signals.
        """
        while not (done() or time.monotonic() >= deadline or len(self._signals.received) > signals):
            self._pump.pump(0.01)

    def _end_workers(self) -> None:
        """End all remaining processes once: SIGTERM, the grace period, SIGKILL. A further signal
        ends the grace period.
        """
        if self._has_ended_workers or self._is_tidy():
            return
        self._take_reports()  # later failures may be caused by ending the workers
        began, signals = time.monotonic(), len(self._signals.received)
        deadline = began + (self._job.settings.grace_seconds if self._running() else TERM_GRACE)
        over = self._ranks_are_over if self._servers.workers else self._is_over
        self._end(self._workers)
        self._pump_until(over, min(began + NOTICE, deadline), signals)
        if not over() and len(self._signals.received) == signals:
            self._say_that_it_waits(deadline - time.monotonic())
        self._pump_until(over, deadline, signals)
        self._end(self._servers.workers)
        self._pump_until(self._servers.are_over, time.monotonic() + TERM_GRACE, signals)
        for worker in (*self._workers, *self._servers.workers):
            worker.kill()
        self._pump_until(self._is_over, time.monotonic() + 1.0, signals + 1)
        self._has_ended_workers = True

    def _running(self) -> list[int]:
        """Return the ranks whose processes have not ended."""
        return [worker.slot.rank for worker in self._workers if worker.poll() is None]

    def _say_that_it_waits(self, seconds: float) -> None:
        if seconds > 0.0 and not self._job.display.quiet:
            ranks = self._running()
            who = ranks_named(ranks) if ranks else "processes that ranks have started"
            self._job.display.note(
                f"waiting up to {math.ceil(seconds)} s (--grace-seconds) for {who} to end after"
                " SIGTERM.\nCtrl-C ends the job immediately."
            )

    def _end(self, workers: Sequence[Worker]) -> None:
        for worker in workers:
            worker.terminate()

    def _ranks_are_over(self) -> bool:
        return not any(worker.alive() for worker in self._workers)

    def _is_over(self) -> bool:
        """Return whether no process is left, and record ranks that lost others because the driver
        ended them.

        Ranks are not signalled simultaneously, and such a rank reports its loss before printing it.
        """
        tidy = self._is_tidy()
        while self._reported:
            rank, outcome = self._reported.popleft()
            if outcome.status == "victim":
                self._bereft.add(rank)
                self._streams.ending.add(rank)
        return tidy
