"""Histories of elastic jobs: any series of faults ends with one membership, or with an error."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farandole.job.elastic.decisions import Break, GiveUp, Notify, Start
from farandole.job.elastic.options import ElasticOptions
from tests.job.elastic.simulation import Job

FAULTS = st.one_of(
    st.tuples(st.just("kill"), st.integers(0, 7)),
    st.tuples(st.just("part"), st.integers(0, 7)),
    st.tuples(st.just("late"), st.integers(0, 7)),
    st.tuples(st.just("sync"), st.integers(0, 7)),
    st.tuples(st.just("hosts"), st.integers(0, 7)),
    st.tuples(st.just("depart"), st.integers(0, 2)),
    st.tuples(st.just("remain"), st.integers(0, 2)),
    st.tuples(st.just("leave out"), st.integers(0, 2)),
    st.tuples(st.just("silent"), st.integers(0, 2)),
    st.tuples(st.just("back"), st.integers(0, 2)),
    st.tuples(st.just("cut"), st.integers(0, 2)),
    st.tuples(st.just("mend"), st.integers(0, 2)),
    st.tuples(st.just("time"), st.integers(1, 20)),
    st.tuples(st.just("train"), st.just(0)),
)


class World(Job):
    """A job of simulated processes that train and commit. The state is the number of steps."""

    def __init__(self) -> None:
        options = ElasticOptions(np=2, min_np=2, max_np=6, cooldown=(1.0, 4.0), patience=15.0)
        super().__init__(options, {"a": 2, "b": 2})
        self.saved: dict[int, int] = {}  # by process
        self.joined: dict[int, int] = {}  # by process, the last membership that it has joined
        self.steps = 0
        self.asked = set[int]()  # processes that have to leave their membership
        self.silent = set[str]()  # hosts behind a partition of the network
        self.cut = set[str]()  # pairs of hosts that cannot reach each other
        self.stopped = set[int]()  # processes there that the coordinator has stopped
        self.hosts: dict[int, str] = {}
        self.dies = -1  # the rank that dies in the next synchronization
        self.failed = ""

    def settle(self) -> None:
        """Carry out decisions until there are none, with processes that react to them."""
        for _ in range(100):
            before = len(self.published)
            decisions = self.step()
            for each in decisions:
                if isinstance(each, Notify | Break):
                    self.asked |= set(self.ranks)
                if isinstance(each, GiveUp):
                    self.failed = each.reason
                if isinstance(each, Start):
                    self.hosts[each.member.process] = each.member.host
            for process in sorted(self.heard() - set(self.ranks)):
                if process in self.joined:  # removed
                    self.end(process, ok=True)
                elif process not in self.coordinator._ready:
                    self.wait(process, after=0)
            if len(self.published) > before:
                self.asked.clear()
                self.form()
            elif leaving := self.asked & set(self.ranks) & self.heard():
                self.asked -= leaving
                for process in sorted(leaving):
                    unreached = self.unreached(process)
                    self.wait(process, commits=self.saved.get(process, 0), unreached=unreached)
            elif not decisions:
                return
        raise AssertionError("the membership does not settle")

    def heard(self) -> set[int]:
        """Return the processes that can reach the driver."""
        return {each for each in self.alive if self.hosts.get(each) not in self.silent}

    def end(self, process: int, ok: bool = False) -> None:
        """End a process; behind a partition it continues, and its end is not seen."""
        if self.hosts.get(process) in self.silent:
            self.stopped.add(process)
        else:
            super().end(process, ok)

    def reconnect(self, host: str) -> None:
        """End the partition of ``host``."""
        self.silent.discard(host)
        for process in [each for each in self.stopped if self.hosts[each] == host]:
            self.stopped.discard(process)
            if process in self.alive:
                self.end(process)

    def form(self) -> None:
        """Let the members of a new membership synchronize, unless one of them is dead."""
        assert len(set(self.ranks)) == len(self.ranks)
        if self.dies >= 0:
            self.end(self.ranks[self.dies % len(self.ranks)])
            self.dies = -1
        # the others cannot connect with it
        if not set(self.ranks) <= self.heard() or any(map(self.unreached, self.ranks)):
            self.asked = set(self.ranks)
            return
        if set(self.ranks) <= self.alive:
            held = self.saved.get(self.ranks[0], 0)
            assert held == self.steps, "a committed step was lost"
            self.saved |= dict.fromkeys(self.ranks, held)
            self.joined |= dict.fromkeys(self.ranks, self.membership.number)

    def unreached(self, process: int) -> list[int]:
        """Return the lower ranks that a process cannot reach in the present membership."""
        members = self.membership.members
        rank = self.ranks.index(process)
        return [
            peer
            for peer, other in enumerate(members[:rank])
            if "".join(sorted({other.host, members[rank].host})) in self.cut
        ]

    def train(self, slow: int = -1) -> None:
        """Make a step if all members are there. A rank that dies in it may not have saved it."""
        members = set(self.ranks)
        if members <= self.heard() and all(
            not self.unreached(each) and self.joined.get(each) == self.membership.number
            for each in members
        ):
            self.steps += 1
            for process in members - {slow}:
                self.saved[process] = self.steps


@settings(max_examples=300, deadline=None)
@given(st.lists(FAULTS, max_size=60))
def test_any_history_ends_with_one_membership(faults: list[tuple[str, int]]) -> None:
    world = World()
    world.settle()
    for kind, number in faults:
        if world.failed:
            break
        chosen = sorted(world.alive)[number % len(world.alive)] if world.alive else -1
        if kind == "kill":
            world.end(chosen)
        elif kind == "part" and chosen in world.ranks:
            world.wait(chosen, commits=world.saved.get(chosen, 0))
        elif kind == "late" and chosen in world.ranks and len(world.ranks) > 2:
            world.train(slow=chosen)
            world.end(world.ranks[number % len(world.ranks)])
        elif kind == "sync":
            world.dies = number
        elif kind == "hosts":
            listed = {"a": number & 1, "b": number & 2, "c": number & 4}
            world.coordinator.list_hosts({host: 2 for host, there in listed.items() if there})
        elif kind == "depart":
            world.coordinator.depart("abc"[number])
        elif kind == "remain":
            world.coordinator.remain("abc"[number])
        elif kind == "leave out":
            world.coordinator.leave_out("abc"[number], world.now)
        elif kind == "silent":
            world.silent.add("abc"[number])
            world.asked |= set(world.ranks)  # an exchange with its ranks fails
        elif kind == "back":
            world.reconnect("abc"[number])
        elif kind == "cut":
            world.cut.add(("ab", "ac", "bc")[number])
            world.asked |= set(world.ranks)
        elif kind == "mend":
            world.cut.discard(("ab", "ac", "bc")[number])
        elif kind == "time":
            world.now += number
        else:
            world.train()
        world.settle()
    numbers = [each.number for each in world.published]
    assert all(after == before + 1 for before, after in pairwise(numbers))
    if not world.failed:
        world.cut.clear()
        for host in "abc":
            world.reconnect(host)
            world.coordinator.remain(host)
        world.coordinator.list_hosts({"a": 2, "b": 2, "c": 2})
        for _ in range(20):
            world.now += 30.0
            world.settle()
        if not world.failed:
            assert set(world.ranks) <= world.alive
            assert len(world.ranks) >= 2


@pytest.mark.parametrize("hosts", [128, 1250])
def test_thousands_of_slots(hosts: int) -> None:
    options = ElasticOptions(np=8 * hosts, min_np=8, cooldown=(1.0, 2.0))
    made = Job(options, {f"h{number}": 8 for number in range(hosts)})
    made.step()
    assert len(made.ranks) == 8 * hosts
    made.coordinator.depart("h3")
    made.step()
    made.leave()
    made.step()
    assert len(made.ranks) == 8 * (hosts - 1)
    for process in made.ranks[80:160]:
        made.end(process)
    made.step()
    made.leave()
    made.step()
    assert len(made.ranks) == 8 * (hosts - 11)
    made.step(30.0)
    made.wait(*sorted(made.alive - set(made.ranks)), after=0)
    made.step()
    made.leave()
    made.step()
    assert len(made.ranks) == 8 * (hosts - 1)
