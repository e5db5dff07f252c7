"""Histories of elastic jobs: any series of faults ends with one membership, or with an error."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from farandole.job.elastic.decisions import Break, GiveUp, Notify
from farandole.job.elastic.options import ElasticOptions
from tests.job.elastic.simulation import Job

FAULTS = st.one_of(
    st.tuples(st.just("kill"), st.integers(0, 7)),
    st.tuples(st.just("part"), st.integers(0, 7)),
    st.tuples(st.just("late"), st.integers(0, 7)),
    st.tuples(st.just("sync"), st.integers(0, 7)),
    st.tuples(st.just("hosts"), st.integers(0, 7)),
    st.tuples(st.just("time"), st.integers(1, 20)),
    st.tuples(st.just("train"), st.just(0)),
)


class World(Job):
    """A job of simulated processes that train and commit. The state is the number of steps."""

    def __init__(self) -> None:
        options = ElasticOptions(np=2, min_np=2, max_np=6, cooldown=(1.0, 4.0))
        super().__init__(options, {"a": 2, "b": 2})
        self.saved: dict[int, int] = {}  # by process
        self.joined: dict[int, int] = {}  # by process, the last membership that it has joined
        self.steps = 0
        self.asked = False
        self.dies = -1  # the rank that dies in the next synchronization
        self.failed = ""

    def settle(self) -> None:
        """Carry out decisions until there are none, with processes that react to them."""
        for _ in range(100):
            before = len(self.published)
            decisions = self.step()
            for each in decisions:
                self.asked = self.asked or isinstance(each, Notify | Break)
                if isinstance(each, GiveUp):
                    self.failed = each.reason
            for process in sorted(self.alive - set(self.ranks)):
                if process in self.joined:  # removed
                    self.end(process, ok=True)
                elif process not in self.coordinator._ready:
                    self.wait(process, after=0)
            if len(self.published) > before:
                self.form()
            elif self.asked:
                self.asked = False
                for process in set(self.ranks) & self.alive:
                    self.wait(process, commits=self.saved.get(process, 0))
            elif not decisions:
                return
        raise AssertionError("the membership does not settle")

    def form(self) -> None:
        """Let the members of a new membership synchronize, unless one of them is dead."""
        assert len(set(self.ranks)) == len(self.ranks)
        if self.dies >= 0:
            self.end(self.ranks[self.dies % len(self.ranks)])
            self.dies = -1
        if set(self.ranks) <= self.alive:
            held = self.saved.get(self.ranks[0], 0)
            assert held == self.steps, "a committed step was lost"
            self.saved |= dict.fromkeys(self.ranks, held)
            self.joined |= dict.fromkeys(self.ranks, self.membership.number)

    def train(self, slow: int = -1) -> None:
        """Make a step if all members are there. A rank that dies in it may not have saved it."""
        members = set(self.ranks)
        if members <= self.alive and all(
            self.joined.get(each) == self.membership.number for each in members
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
        elif kind == "time":
            world.now += number
        else:
            world.train()
        world.settle()
    numbers = [each.number for each in world.published]
    assert all(after == before + 1 for before, after in pairwise(numbers))
    if not world.failed:
        world.coordinator.list_hosts({"a": 2, "b": 2, "c": 2})
        for _ in range(20):
            world.now += 30.0
            world.settle()
        if not world.failed:
            assert set(world.ranks) <= world.alive
            assert len(world.ranks) >= 2
