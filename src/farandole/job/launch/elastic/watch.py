"""The driver's loop of an elastic job: it passes events to the coordinator, and carries out the
coordinator's decisions.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Mapping, Sequence

from farandole.base.log import logger
from farandole.base.types import Slot
from farandole.errors import CommitDirError, JobFailedError, SettingsError, counted
from farandole.job.elastic.coordinator import Coordinator
from farandole.job.elastic.decisions import (
    Break,
    Decision,
    Finish,
    GiveUp,
    LeaveOut,
    Notify,
    Overdue,
    Publish,
    Restart,
    Start,
    Stop,
)
from farandole.job.elastic.discovery.contract import FixedHosts
from farandole.job.elastic.membership import Membership
from farandole.job.elastic.plan import ElasticPlan
from farandole.job.elastic.restarts import RestartingCoordinator
from farandole.job.launch.contract import Worker
from farandole.job.launch.elastic.departures import REPORTS, Departures
from farandole.job.launch.elastic.places import Places, slot_of
from farandole.job.launch.elastic.servers import ElasticServers
from farandole.job.launch.explain.events import Event
from farandole.job.launch.explain.exit_codes import describe
from farandole.job.launch.job import Job
from farandole.job.launch.output import OutputStreams
from farandole.job.launch.supervise import DRAIN
from farandole.job.launch.tail import JobTail
from farandole.job.launch.watch import TERM_GRACE, TICK, HostsChanged, Watch
from farandole.job.report import keys
from farandole.net.store import StoreServer, Value
from farandole.net.store.ports import free_port

_REFUSED = CommitDirError.__name__


class ElasticWatch(Watch):
    """Watches processes that are started and lost during the job. The number of a process takes the
    place of a rank.
    """

    def __init__(
        self,
        job: Job,
        store: StoreServer,
        streams: OutputStreams,
        places: Places,
        listed: deque[dict[str, int]],
    ) -> None:
        """Prepare the watch of ``job``.

        ``store``, ``streams``: the job's store, and the output of its processes. ``places``: the
        hosts that start processes. ``listed``: new lists of hosts, appended by the discovery's
        thread.
        """
        super().__init__(job, store, streams)
        self._places = places
        self._coordinator: Coordinator
        self._command: Sequence[str] = ()
        self._by_process: dict[int, Worker] = {}
        self._listed = listed
        self._elastic_servers = ElasticServers(job.settings, store)
        # Processes that wait for a membership, appended by the store's threads: the number of the
        # process, the number of its last membership, its commits, and the ranks there that it could
        # not reach.
        self._waiting: deque[tuple[int, int, int, list[int]]] = deque()
        self._departures = Departures(job.settings, store, self._pump.wake, self._note_change)
        self._kill_at: dict[int, float] = {}
        self._stopped: set[int] = set()
        self._failed: set[int] = set()  # processes that have reported a failure
        self._overdue = ""  # the report about a rank that was ended because it hung
        self._published = 0  # the number of the last published membership
        self._over = False

    def run(
        self,
        plan: ElasticPlan,
        hosts: Mapping[str, int],
        command: Sequence[str],
        env: Mapping[str, str],
    ) -> None:
        """Run the job to its end.

        ``hosts``: the slots by host at the start. ``command`` and ``env``: the command and the
        variables of every process. Raises JobFailedError if the job fails, Interrupted if a signal
        stops the driver, and SettingsError if the first processes cannot be started.
        """
        self._command, self._env = command, env
        fixed = isinstance(plan.discovery, FixedHosts)
        kind = RestartingCoordinator if self._job.settings.max_restarts else Coordinator
        self._coordinator = kind(plan.options, hosts, time.monotonic(), fixed=fixed)
        if self._job.settings.preemption_notice:
            self._places.watch_notices(
                self._job.settings.preemption_notice, self._departures.on_notice
            )
        while not self._over:
            self._take_arrivals()
            for decision in self._coordinator.decide(time.monotonic()):
                self._carry_out(decision)
            self._kill_late()
            self._keep_servers()
            self._watch_tail()
            self._doing = self._describe()
            self._step(TICK)
        self._end(self._servers.workers)
        self._pump_until(self._is_tidy, time.monotonic() + TERM_GRACE, len(self._signals.received))

    def final_slots(self) -> list[Slot]:
        """Return the slots of the last members that have finished, in rank order."""
        coordinator = self._coordinator
        members = coordinator.membership.members
        return [slot_of(each) for each in members if each.process in coordinator.finished]

    # ---- observing ----

    def _on_set(self, key: str, value: Value) -> None:
        kind, _, process = key.partition("/")
        if self._elastic_servers.see(key, value):
            self._pump.wake()
            return
        if kind in REPORTS:
            self._departures.hear(kind, process, value, self._host_of)
            return
        if kind != "ready":
            super()._on_set(key, value)
            return
        try:
            after, commits, unreached = json.loads(value)
            ranks = [int(rank) for rank in unreached]
            self._waiting.append((int(process), int(after), int(commits), ranks))
        except (ValueError, TypeError) as error:
            logger.warning("ignoring %r in the job's store: %s", key, error)
            return
        self._pump.wake()

    def _host_of(self, process: int) -> str:
        return self._by_process[process].slot.host

    def _rank(self, text: str) -> int:
        if not text.isdecimal():
            raise ValueError(f"{text!r} is not the number of a process")
        return int(text)

    def _on_silent(self, rank: int) -> None:
        if rank in self._by_process:
            self._supervisor.silent(rank, time.monotonic())

    def _report_finished(self) -> None:
        """Publish nothing: in ``init()`` a rank waits for a membership, not for single ranks."""

    def _take_arrivals(self) -> None:
        self._departures.take(self._coordinator)
        while self._listed:
            self._coordinator.list_hosts(self._listed.popleft())
        while self._waiting:
            process, after, commits, unreached = self._waiting.popleft()
            self._coordinator.ready(process, after, commits, time.monotonic(), unreached)

    def _see(self, event: Event) -> None:
        self._supervisor.see(event)
        if event.code is None:  # on a lost host, only the outcome shows the failure: its code is 0
            if event.outcome is not None and event.outcome.status != "ok":
                self._failed.add(event.rank)
            return
        now, process = time.monotonic(), event.rank
        members = self._coordinator.membership.processes
        ok = not event.code and process not in self._failed
        if not ok and process in members and process not in self._stopped:
            self._note_loss(members.index(process), event)
        self._coordinator.end(process, ok, now)
        # End its leftover processes.
        self._by_process[process].terminate()
        self._kill_at[process] = now + TERM_GRACE

    def _kill_late(self) -> None:
        now = time.monotonic()
        for process in [each for each, when in self._kill_at.items() if now > when]:
            del self._kill_at[process]
            if self._by_process[process].alive():
                self._by_process[process].kill()

    def _watch_tail(self) -> None:
        """Report members that are still running long after others have finished. Raises
        JobFailedError if they have to be ended.
        """
        coordinator, now = self._coordinator, time.monotonic()
        if not coordinator.finished:
            return
        members = coordinator.membership.members
        codes = {
            rank: int(member.process in coordinator.lost)
            for rank, member in enumerate(members)
            if member.process in coordinator.finished or member.process in coordinator.lost
        }
        seconds, is_over = self._tail.poll(codes, now), self._tail.is_over(codes, now)
        if not (seconds or is_over):
            return
        running = {members[rank].process: rank for rank in self._tail.running(codes)}
        found = self._activities([self._by_process[process] for process in running])
        activities = {running[process]: activity for process, activity in found.items()}
        hosts = [member.host for member in members]
        if not is_over:
            self._note_change(self._tail.describe(codes, seconds, hosts, activities))
            return
        verdict = self._tail.verdict(codes, hosts, activities)
        self._end_workers()
        raise JobFailedError(
            verdict.message,
            rank=verdict.rank,
            host=hosts[verdict.rank],
            exit_code=verdict.exit_code,
        )

    def _describe(self) -> str:
        membership = self._coordinator.membership
        return f"{counted(len(membership.members), 'rank')}, membership {membership.number}"

    def _note_loss(self, rank: int, event: Event) -> None:
        """Report the loss of a rank, with its last error or its exit code."""
        words = describe(event.code) if event.code else "failed"
        found = [
            known.outcome.words
            for known in self._supervisor.events
            if known.rank == event.rank
            and known.outcome is not None
            and known.outcome.status != "ok"  # a rank may be killed after its function has ended
        ]
        host = self._by_process[event.rank].slot.host
        self._note_change(f"rank {rank} on {host} {found[-1] if found else words}")

    def _note_overdue(self, overdue: Overdue) -> None:
        """Report the ranks that others wait for, with their activities."""
        membership = self._coordinator.membership
        activities = self._activities([self._by_process[each] for each in overdue.processes])
        for process, activity in activities.items():
            rank = membership.processes.index(process)
            text = (
                f"rank {rank} on {membership.members[rank].host} has not left membership"
                f" {membership.number}; the other ranks have waited {overdue.seconds:.0f} s for it:"
                f"\n{activity}."
            )
            if overdue.failed:
                self._overdue = text
                text += (
                    "\nIt is ended as failed. To allow it more time, raise"
                    " --stall-check-shutdown-time-seconds."
                )
            self._note_change(text)

    def _note_change(self, text: str) -> None:
        if not self._job.display.quiet:
            self._job.display.note(text)

    def _has_places(self) -> bool:
        return bool(self._workers)

    def _start_servers(self) -> None:
        self._elastic_servers.open(self._env)
        self._keep_servers()

    def _keep_servers(self) -> None:
        """Replace the parameter servers' processes that have ended, and report their losses."""
        if not self._servers.wanted:
            return
        for worker, label in self._elastic_servers.keep(time.monotonic()):
            self._streams.add_server(worker.slot.rank, label)
            self._pump.listen_to([worker])
        for text in self._elastic_servers.take_notes():
            self._note_change(text)
        self._servers.workers = self._elastic_servers.workers

    # ---- carrying out ----

    def _carry_out(self, decision: Decision) -> None:
        if isinstance(decision, Start):
            self._start(decision)
        elif isinstance(decision, Publish):
            self._publish(decision.membership)
        elif isinstance(decision, Notify):
            self._store.set(keys.notice(decision.number), b"%d" % decision.change)
        elif isinstance(decision, Break):
            self._store.set(keys.broken(decision.number), b"")
        elif isinstance(decision, Overdue):
            self._note_overdue(decision)
        elif isinstance(decision, Stop):
            self._stop(decision.process)
        elif isinstance(decision, LeaveOut):
            self._note_change(decision.describe())
        elif isinstance(decision, Finish):
            self._over = True
        elif isinstance(decision, Restart):
            before, after = counted(decision.before, "rank"), decision.after
            raise HostsChanged(f"the hosts have changed, from {before} to {after}")
        else:
            self._give_up(decision)

    def _start(self, start: Start) -> None:
        member = start.member
        facts = json.dumps(vars(start.placement))
        self._store.set(keys.start(member.process), facts.encode())
        env = {**self._env, "FARANDOLE_MEMBER": str(member.process)}
        try:
            worker = self._places.start(member, self._command, env)
        except SettingsError as error:
            if not self._published:
                raise
            logger.warning("a process could not be started on %s: %s", member.host, error)
            self._coordinator.end(member.process, False, time.monotonic())
            return
        if self._published:
            self._store.set(keys.newcomers(self._published), b"")
        self._streams.add_rank(member.process)
        if self._job.display.ranks is not None:
            self._job.display.ranks.added(member.process, member.host)
        self._by_process[member.process] = worker
        self._workers = [*self._workers, worker]
        self._slots = [*self._slots, worker.slot]
        self._pump.listen_to([worker])

    def _publish(self, membership: Membership) -> None:
        # On other machines, rank 0 finds a port.
        with_port = membership._replace(port=0 if self._places.remote else free_port())
        # First, because publishing the membership wakes processes that read the number.
        self._store.set(keys.NOW, b"%d" % membership.number)
        self._store.set(keys.membership(membership.number), with_port.to_bytes())
        self._published = membership.number
        if self._job.display.ranks is not None:
            members = [(member.process, member.host) for member in membership.members]
            self._job.display.ranks.formed(membership.number, members)
        self._tail = JobTail(len(membership.members), self._job.settings)
        if membership.number > 1:
            size = counted(len(membership.members), "rank")
            self._note_change(f"the job continues on {size} (membership {membership.number})")

    def _end(self, workers: Sequence[Worker]) -> None:
        for worker in workers:  # otherwise a rank may take SIGTERM for a preemption notice
            self._store.set(keys.ending(worker.slot.rank), b"")
        super()._end(workers)

    def _stop(self, process: int) -> None:
        if process not in self._failed:  # its own error counts, even if it does not end by itself
            self._stopped.add(process)
        self._store.set(keys.ending(process), b"")
        worker = self._by_process.get(process)
        if worker is not None:
            worker.terminate()
            self._kill_at[process] = time.monotonic() + self._job.settings.grace_seconds

    def _give_up(self, decision: GiveUp) -> None:
        """Raise JobFailedError, with the failed rank and the reason why the others do not
        continue.
        """
        from farandole.job.launch.explain.cause import explain

        signals = len(self._signals.received)
        self._pump_until(self._pump.is_drained, time.monotonic() + DRAIN, signals)
        self._take_reports()
        members = self._coordinator.membership.members
        ranks = {member.process: rank for rank, member in enumerate(members)}
        lost = self._coordinator.lost | self._coordinator.finished
        events = [
            event._replace(rank=ranks[event.rank])
            for event in self._supervisor.events
            if event.rank in ranks and event.rank in lost - self._stopped
        ]
        tails = self._streams.tails().items()
        hosts = [member.host for member in members]
        by_rank = {ranks[process]: text for process, text in tails if process in ranks}
        verdict = explain(events, hosts, by_rank) if events else None
        end = " ".join(
            filter(
                None,
                (f"The elastic job cannot continue: {decision.reason}.", cure(decision, events)),
            )
        )
        if verdict is None:
            raise JobFailedError("\n".join(filter(None, (self._overdue, end))))
        self._end_workers()
        raise JobFailedError(
            f"{verdict.message}\n{end}",
            rank=verdict.rank,
            host=hosts[verdict.rank] if verdict.rank >= 0 else "",
            exit_code=verdict.exit_code,
            remote_traceback=verdict.traceback,
            host_lost=verdict.host_lost,
        )


def cure(decision: GiveUp, events: Sequence[Event] = ()) -> str:
    """Return the cure in ``decision`` as a sentence; empty without one.

    ``events``: the ends of the ranks. If they have refused the folder of commits, their error has
    the cure, and a start with the same folder would end in the same way.
    """
    refused = (event.outcome is not None and event.outcome.kind == _REFUSED for event in events)
    return f"{decision.cure}." if decision.cure and not any(refused) else ""
