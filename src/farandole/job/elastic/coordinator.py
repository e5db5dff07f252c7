"""The coordinator of an elastic job: it decides which processes run and which are members. Pure.

The driver reports events with their times: a new list of hosts, the end of a process, a process
that waits for the next membership. ``decide`` returns the driver's next actions. The rules are
Horovod's, with three exceptions:

- Fewer than ``min_np`` survivors wait for new processes, and form the next membership together with
  them: all ranks of a membership take part in the same synchronization (hvd#3494).
- On a job's only host, a failed process is replaced, and the other processes stay.
- Rank 0 is the survivor with the most commits, so that no completed commit is lost. Ranks that have
  joined but not yet received the state cannot continue alone: they load the last commit from disk,
  or the job fails.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from farandole.errors import counted
from farandole.job.elastic.broken_links import BrokenLink, broken_links, hosts_to_leave_out, listed
from farandole.job.elastic.changes import HostUpdateResult
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
from farandole.job.elastic.held_commits import HeldCommits
from farandole.job.elastic.hosts import HostPool
from farandole.job.elastic.membership import (
    Member,
    Membership,
    arrange,
    count_by_host,
    free_local_rank,
    placements,
)
from farandole.job.elastic.options import ElasticOptions

# Maximum seconds for which processes that are ready to join wait for others that are still
# starting.
TOGETHER = 10.0
# Seconds for a removed process to exit before it gets SIGTERM.
LEAVE = 60.0
# Minimum seconds without a patience of the user's own for a process that others wait for: after an
# error it may need some to end, however short the wait for slots is.
SHORTEST_PATIENCE = 30.0
# Minimum seconds to wait for ``min_np`` ranks if enough processes have started: a short timeout
# of slots does not limit the imports of a program.
STARTING = 120.0
# Memberships in a row that may be lost without a commit before the job ends: the program is at
# fault.
FRUITLESS = 5
# The advice after the loss of all ranks, without and with a folder of commits.
IN_MEMORY = "Restart the job from a checkpoint, and use --commit-dir for later jobs"
ON_DISK = (
    "A start with the same --commit-dir continues from the last commit there; a submitted run with"
    " --retries does so automatically"
)


class _Ready(NamedTuple):
    """A process that waits for the membership after number ``after``, since the time ``since``.

    ``commits``: the number of commits of its state; 0 for the initial state, 1 for a synchronized
    state without a commit. ``unreached``: the ranks that it could not reach there.
    """

    after: int
    commits: int
    since: float
    unreached: tuple[int, ...]


class Coordinator:
    """The members, processes and hosts of one elastic job, and the rules for their changes.

    ``options``: the bounds of the job. ``hosts``: slots by host. ``now``: the current time in
    seconds, like all times here on one monotonic clock. ``fixed``: whether the hosts never change,
    so that waiting for others is pointless. ``jitter``: see ``HostPool``.
    """

    def __init__(
        self,
        options: ElasticOptions,
        hosts: Mapping[str, int],
        now: float,
        *,
        fixed: bool = False,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.membership = Membership(0, ())
        self.finished: set[int] = set()  # members that have ended with exit code 0
        self.lost: set[int] = set()  # members of the current membership that have failed
        self._options = options
        self._fixed = fixed
        self._pool = HostPool(
            hosts, options.cooldown, jitter, retries_links=options.reset_limit is None
        )
        self._alive: dict[int, Member] = {}
        # Processes that were removed or stopped, with the time at which they have to be stopped.
        self._leaving: dict[int, float] = {}
        self._ready: dict[int, _Ready] = {}
        self._started = 0
        self._resets = 0
        self._broken = False  # whether the current membership has lost a member
        self._notified = False
        self._warned = False  # whether members that others wait for have been reported
        self._held = HeldCommits()
        self._short_since = now  # the start of a wait for slots or ranks; -1: there is no wait
        self._is_short = False
        self._over = False

    # ---- events ----

    def list_hosts(self, hosts: Mapping[str, int]) -> None:
        """Record the current list of hosts: slots by host."""
        self._pool.find(hosts)

    def depart(self, host: str) -> None:
        """Record that a host will leave the job: its members leave at their next commit."""
        self._pool.depart(host)

    def remain(self, host: str) -> None:
        """Record that the announced departure of a host was withdrawn."""
        self._pool.remain(host)

    def leave_out(self, host: str, now: float) -> bool:
        """Exclude a host that harms the training, such as one with defective memory: its members
        leave at their next commit, and it is used again after the cooldown, if there is one.

        Return False, and do nothing, if there is no other host.
        """
        if not set(self._pool.listed) - {host}:
            return False
        self._pool.leave_out(host, now)
        return True

    @property
    def is_leaving(self) -> bool:
        """True if all hosts of the current members are leaving or excluded."""
        hosts = {member.host for member in self._live_members()}
        return bool(hosts) and not hosts & set(self._pool.listed)

    def end(self, process: int, ok: bool, now: float) -> None:
        """Record that a process has ended. ``ok``: with exit code 0 and without a failure."""
        member = self._alive.pop(process, None)
        self._ready.pop(process, None)
        if member is None or process in self._leaving:
            return
        if process not in self.membership.processes:
            self._pool.start_failed(member.host, now)
        elif ok:
            self.finished.add(process)
        else:
            self._fail(member, now)

    def _fail(self, member: Member, now: float) -> None:
        """Count a member as lost, and exclude its host, which is needed if all other members with
        the state of the training run there.

        Once a member has finished, hosts are no longer excluded: nothing is started any more, and
        the other members are about to finish, too.
        """
        self.lost.add(member.process)
        if self.finished:
            return
        holders = {
            each.host
            for each in self._live_members()
            if not self._lacks_state(each) and self._pool.slots(each.host, now)
        }
        self._pool.member_failed(member.host, now, needed=holders == {member.host})

    def ready(
        self, process: int, after: int, commits: int, now: float, unreached: Sequence[int] = ()
    ) -> None:
        """Record that a process waits for a membership.

        ``after``: the number of the last membership that it tried to join; 0 for none.
        ``commits``: the number of commits of its state; 0 if it has neither committed nor completed
        a synchronization. ``unreached``: the ranks of that membership whose hosts it could not
        reach.
        """
        if process in self._alive:
            self._ready[process] = _Ready(after, commits, now, tuple(unreached))

    # ---- decisions ----

    def decide(self, now: float) -> list[Decision]:
        """Return the decisions to carry out now, in order; none after ``Finish`` or ``GiveUp``."""
        if self._over:
            return []
        self._pool.pass_time(now)
        if not self.membership.number:
            decisions = self._begin(now)
        else:
            self._is_short = False
            decisions = self._continue(now)
            if not self._is_short:
                self._short_since = -1.0
        self._over = any(isinstance(each, Finish | Restart | GiveUp) for each in decisions)
        return decisions

    def _begin(self, now: float) -> list[Decision]:
        """Start the first membership once ``np`` slots are available; give up after the timeout."""
        options, slots = self._options, self._pool.available(now)
        there = sum(slots.values())
        if there < options.np:
            seconds = options.start_timeout or options.timeout
            if not self._fixed and now < self._short_since + seconds:
                return []
            return [
                GiveUp(
                    f"only {there} of {counted(options.np, 'slot')} were available after"
                    f" {now - self._short_since:.0f} s",
                    "Check the hosts, lower -np, or raise --elastic-timeout",
                )
            ]
        starts = self._starts(now)
        members = arrange((), [start.member for start in starts])
        return [*starts, *self._publish(members, now)]

    def _continue(self, now: float) -> list[Decision]:
        decisions = self._stops(now)
        stayers, leavers = self._split(now)
        if not self._is_running():
            return [*decisions, *self._conclude()]
        if not self.finished:
            decisions += self._starts(now)
        changed = bool(self.lost) or any(self._has_left(each) for each in stayers)
        if changed and not self._broken:
            self._broken = True
            decisions.append(Break(self.membership.number))
        if not changed and not self._notified:
            return decisions + self._notice(stayers, leavers, now)
        # Without stayers, the other members' hosts may be listed again.
        awaited = stayers or self._live_members()
        if not all(self._has_left(member) for member in awaited):
            return decisions + self._overdue(awaited, now)
        if not stayers and self._live_members():
            return decisions + self._await_more(0, now)
        if changes := self._leave_out_unreachable(stayers, now):
            decisions += changes
            stayers = self._split(now)[0]
        return decisions + self._next(stayers, now)

    def _is_running(self) -> bool:
        """Return whether a member of the current membership is still running."""
        return any(process in self._alive for process in self.membership.processes)

    def _has_left(self, member: Member) -> bool:
        """Return whether a member waits for the membership after the current one."""
        found = self._ready.get(member.process)
        return found is not None and found.after >= self.membership.number

    def _stops(self, now: float) -> list[Decision]:
        """Stop the processes on hosts that are excluded after a failure, newcomers whose host is no
        longer listed, and removed processes that do not end.

        Members on unlisted hosts are not stopped: they leave at a commit.
        """
        members = set(self.membership.processes)
        late = [each for each, when in self._leaving.items() if now >= when and each in self._alive]
        stops: list[Decision] = [Stop(process) for process in late]
        self._leaving |= dict.fromkeys(late, math.inf)
        for process, member in self._alive.items():
            listed = member.host in self._pool.listed or process not in members
            if process not in self._leaving and listed and not self._pool.slots(member.host, now):
                self._leaving[process] = math.inf
                stops.append(Stop(process))
        return stops

    def _split(self, now: float) -> tuple[list[Member], list[Member]]:
        """Return the members that stay, and the members whose slots no longer exist."""
        stayers: list[Member] = []
        leavers: list[Member] = []
        room = self._pool.available(now)
        for member in self._live_members():
            left = room.get(member.host, 0)
            room[member.host] = left - 1
            (stayers if left > 0 else leavers).append(member)
        waiting = stayers or [each for each in self._newcomers(now) if each.process in self._ready]
        heir = next((each for each in leavers if not self._lacks_state(each)), None)
        if heir and waiting and all(map(self._lacks_state, stayers)):  # it hands over the state
            kept = [heir, *stayers][: self._options.max_np]
            return kept, [each for each in [*stayers, *leavers] if each not in kept]
        return stayers, leavers

    def _lacks_state(self, member: Member) -> bool:
        """Return whether a member has left the current membership without the state of the job,
        because it was interrupted before it had received the state.
        """
        return self._has_left(member) and self._ready[member.process].commits < self._held.least

    def _live_members(self) -> list[Member]:
        """Return the running members that were not stopped or removed, in rank order."""
        return [
            member
            for member in self.membership.members
            if member.process in self._alive and member.process not in self._leaving
        ]

    def _newcomers(self, now: float) -> list[Member]:
        """Return the processes that are not members yet, on hosts that may still be used."""
        members = set(self.membership.processes)
        return [
            member
            for process, member in self._alive.items()
            if process not in members
            and process not in self._leaving
            and self._pool.slots(member.host, now)
        ]

    def _starts(self, now: float) -> list[Start]:
        """Start processes in the free slots, up to ``max_np`` in all.

        A process that was removed or stopped keeps its slot until it has ended.
        """
        working = [*self._split(now)[0], *self._newcomers(now)]
        slots = self._pool.available(now)
        room = (self._options.max_np or sum(slots.values())) - len(working)
        ending = [self._alive[process] for process in self._leaving if process in self._alive]
        counts, new = dict(count_by_host([*working, *ending])), list[Member]()
        taken: dict[str, set[int]] = {}
        for member in self._alive.values():
            taken.setdefault(member.host, set()).add(member.local_rank)
        for host, number in slots.items():
            if not self._pool.may_start(host, now):
                continue
            while counts.get(host, 0) < number and room > 0:
                local_rank = free_local_rank(taken.setdefault(host, set()))
                taken[host].add(local_rank)
                new.append(Member(self._started, host, local_rank))
                self._started += 1
                counts[host] = counts.get(host, 0) + 1
                room -= 1
        if not new:
            return []
        self._alive |= {member.process: member for member in new}
        expected = arrange(self._split(now)[0], self._newcomers(now))
        found = placements(Membership(self.membership.number + 1, expected))
        by_process = {each.process: where for each, where in zip(expected, found, strict=True)}
        return [Start(member, by_process[member.process]) for member in new]

    def _notice(
        self, stayers: Sequence[Member], leavers: Sequence[Member], now: float
    ) -> list[Decision]:
        """Ask the members to leave at their next commit if processes can join or slots are gone."""
        if self.finished:
            return []
        joiners = self._joiners(stayers, now)
        if len(stayers) + len(joiners) < self._options.min_np or not (leavers or joiners):
            return []
        self._notified = True
        change = HostUpdateResult.no_update
        if joiners:
            change |= HostUpdateResult.added
        if leavers:
            change |= HostUpdateResult.removed
        return [Notify(self.membership.number, change)]

    def _joiners(self, stayers: Sequence[Member], now: float) -> list[Member]:
        """Return the newcomers that can join: none while others are still starting, for at most
        ``TOGETHER`` seconds.
        """
        newcomers = self._newcomers(now)
        ready = [member for member in newcomers if member.process in self._ready]
        if len(ready) < len(newcomers):
            first = min((self._ready[each.process].since for each in ready), default=now)
            if now < first + TOGETHER:
                return []
        return self._fitting(stayers, ready)

    def _fitting(self, stayers: Sequence[Member], ready: Sequence[Member]) -> list[Member]:
        most = self._options.max_np
        return list(ready if most is None else ready[: max(0, most - len(stayers))])

    def _overdue(self, awaited: Sequence[Member], now: float) -> list[Decision]:
        """Report the members in ``awaited`` that have not left although others wait. After the
        patience they count as failed and are stopped: a process may hang forever.
        """
        options = self._options
        waits = [self._ready[each.process].since for each in awaited if self._has_left(each)]
        seconds = now - min(waits, default=now)
        absent = [each for each in awaited if not self._has_left(each)]
        processes = tuple(each.process for each in absent)
        if waits and seconds >= (options.patience or max(options.timeout, SHORTEST_PATIENCE)):
            self._leaving |= dict.fromkeys(processes, math.inf)
            for member in absent:
                self._fail(member, now)
            return [Overdue(processes, seconds, failed=True), *map(Stop, processes)]
        if waits and options.warning and seconds >= options.warning and not self._warned:
            self._warned = True
            return [Overdue(processes, seconds, failed=False)]
        return []

    def _broken_links(self, stayers: Sequence[Member]) -> list[BrokenLink]:
        """Return the broken links between members that have left the current membership."""
        unreached = {each.process: self._ready[each.process].unreached for each in stayers}
        return broken_links(self.membership.members, unreached)

    def _leave_out_unreachable(self, stayers: Sequence[Member], now: float) -> list[Decision]:
        """Exclude hosts so that all others reach each other, unless fewer than ``min_np`` slots
        would remain: the network may recover.
        """
        links = self._broken_links(stayers)
        holders = {each.host for each in stayers if not self._lacks_state(each)}
        hosts = hosts_to_leave_out(links, count_by_host(stayers), holders)
        slots = self._pool.available(now)
        left = sum(number for host, number in slots.items() if host not in hosts)
        if not hosts or left < self._options.min_np:
            return []
        seconds = [self._pool.leave_out_unreachable(host, now) for host in hosts]
        self._held.fruitless = 0
        return [LeaveOut(tuple(hosts), listed(links), tuple(seconds))]

    def _next(self, stayers: Sequence[Member], now: float) -> list[Decision]:
        """Publish the next membership, or wait for more processes."""
        if not stayers:
            return self._conclude()
        newcomers = [each for each in self._newcomers(now) if each.process in self._ready]
        joiners = [] if self.finished else self._fitting(stayers, newcomers)
        if len(stayers) + len(joiners) < self._options.min_np and not self.finished:
            return self._await_more(len(stayers) + len(joiners), now)
        commits = {each.process: self._ready[each.process].commits for each in stayers}
        if not self._held.has_state(commits.values()):
            if not self._options.on_disk:
                return self._conclude()
            self._held.lose()
        self._held.take(commits.values(), is_planned=self._notified)
        if self._held.fruitless >= FRUITLESS:
            return [self._give_up_fruitless(stayers)]
        limit = self._options.reset_limit
        if limit is not None and self._resets >= limit:
            return [
                GiveUp(
                    "Horovod was shutdown because number of resets during elastic job exceeded"
                    f" limit: {limit}",
                    "Raise --reset-limit",
                )
            ]
        self._resets += 1
        first = max(commits, key=lambda process: commits[process])
        return self._publish(arrange(stayers, joiners, first), now)

    def _give_up_fruitless(self, stayers: Sequence[Member]) -> GiveUp:
        reason = f"{FRUITLESS} memberships in a row were lost without a commit"
        links = self._broken_links(stayers)
        if not links:
            return GiveUp(reason, "Commit more often, or fix the program")
        return GiveUp(
            f"{reason}: {listed(links)}",
            "Repair the network between these hosts, or lower --min-np so that the other hosts"
            " continue without them",
        )

    def _await_more(self, there: int, now: float) -> list[Decision]:
        least, timeout = self._options.min_np, self._options.timeout
        self._is_short = True
        if self._short_since < 0:
            self._short_since = now
        if self._fixed and self._pool.possible() < least:
            hosts = ", ".join(self._pool.left_out())
            return [
                GiveUp(
                    f"only {there} of at least {counted(least, 'rank')} can continue, and {hosts}"
                    " will not be used again after a failure or a preemption notice",
                    "Add hosts, or set a time after which a host is used again"
                    " (--cooldown-range 10:100)",
                )
            ]
        starting = [each for each in self._newcomers(now) if each.process not in self._ready]
        patience = timeout if there + len(starting) < least else max(timeout, STARTING)
        if now < self._short_since + patience:
            return []
        return [
            GiveUp(
                f"only {counted(there, 'rank')} of at least {least} were available for"
                f" {patience:.0f} s",
                "Provide more hosts, lower --min-np, or raise --elastic-timeout",
            )
        ]

    def _publish(self, members: tuple[Member, ...], now: float) -> list[Decision]:
        """Make ``members`` the current membership."""
        kept = {member.process for member in members}
        removed = tuple(
            process
            for process in self.membership.processes
            if process in self._alive and process not in kept
        )
        self._leaving |= dict.fromkeys(removed, now + LEAVE)
        number = self.membership.number + 1
        self.membership = Membership(number, members, removed, lost=self._held.lost)
        self.lost, self._broken, self._notified, self._warned = set(), False, False, False
        self._short_since = -1.0
        return [Publish(self.membership)]

    def _conclude(self) -> list[Decision]:
        """End the job, because no member of the current membership can continue.

        Rank 0 usually writes the results, so its success decides.
        """
        running = [process for process in self._alive if process not in self._leaving]
        self._leaving |= dict.fromkeys(running, math.inf)
        stops: list[Decision] = [Stop(process) for process in running]
        members = self.membership.processes
        if members[0] in self.finished:
            return [*stops, Finish()]
        if self.finished & set(members):
            return [*stops, GiveUp("other ranks have finished, but rank 0 has not")]
        return [
            *stops,
            GiveUp(
                "no rank with the state of the training is left"
                + (f" (commit {self._held.least})" if self._held.least > 1 else ""),
                ON_DISK if self._options.on_disk else IN_MEMORY,
            ),
        ]
