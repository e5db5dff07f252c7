"""The plan of an elastic job's server processes, over any history of ends."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from farandole.job.elastic.servers import LONGEST_PAUSE, ServerPlan, ServerProcess

SERVERS, REPLICAS = 2, 2
# what happens next: a process begins, a primary publishes its chain, or a process ends
STEPS = st.lists(st.tuples(st.sampled_from(["begin", "publish", "end"]), st.integers(0, 99)))


class Job:
    """A simulation of the processes: which run, and which have the state of their server."""

    def __init__(self) -> None:
        self.plan = ServerPlan(SERVERS, REPLICAS)
        self.now = 0.0
        self.lost = 0
        self.begun: set[ServerProcess] = set()
        self.states: list[list[int]] = [[] for _ in range(SERVERS)]  # places, the primary first
        self.started: list[ServerProcess] = []
        self.decide()

    def decide(self) -> None:
        found = self.plan.decide(self.now)
        for number in found.lost:
            assert not self.states[number]
            self.lost += 1
        for process in found.start:
            self.started.append(process)
            if process in found.lead:
                assert not self.states[process.number]
                self.states[process.number] = [process.place]
        self.begun -= set(found.stop)

    def step(self, what: str, choice: int) -> None:
        self.now += 0.1
        running = sorted(self.plan.running)
        if running:
            process = running[choice % len(running)]
            number, place = process
            if what == "begin":
                self.begun.add(process)
                self.plan.begin(process)
            elif what == "publish" and place in self.states[number] and process in self.begun:
                chain = self.states[number]
                later = [each.place for each in sorted(self.begun) if each.number == number]
                self.states[number] = chain + [each for each in later if each not in chain]
                self.plan.chain(number, self.states[number])
            elif what == "end":
                assert self.plan.end(process, self.now) == (process not in self.begun)
                self.begun.discard(process)
                if place in self.states[number]:
                    self.states[number].remove(place)
        self.decide()


@given(STEPS)
def test_a_server_is_lost_only_with_all_its_processes(steps: list[tuple[str, int]]) -> None:
    job = Job()
    for what, choice in steps:
        job.step(what, choice)
        for number, places in enumerate(job.states):
            assert {ServerProcess(number, place) for place in places} <= job.plan.running
    job.now += LONGEST_PAUSE
    job.decide()
    for number in range(SERVERS):
        assert sum(each.number == number for each in job.plan.running) == REPLICAS
        assert job.states[number]
    assert len(set(job.started)) == len(job.started)


def test_the_first_processes_and_their_replacements() -> None:
    plan = ServerPlan(1, 2)
    first = plan.decide(0.0)
    assert (first.start, first.lead) == ([(0, 0), (0, 1)], [(0, 0)])
    for process in first.start:
        plan.begin(process)
    plan.chain(0, (0, 1))
    assert not plan.end(ServerProcess(0, 0), 1.0)
    after = plan.decide(1.0)
    assert (after.start, after.lead, after.lost) == ([(0, 2)], [], [])
    assert not plan.end(ServerProcess(0, 1), 2.0)  # before it has published its chain with 2
    lost = plan.decide(2.0)
    assert (lost.lost, lost.stop) == ([0], [(0, 2)])
    assert (lost.start, lost.lead) == ([(0, 3), (0, 4)], [(0, 3)])


def test_a_process_that_cannot_begin_is_started_less_often() -> None:
    plan = ServerPlan(1, 2)
    now, times = 0.0, list[float]()
    plan.decide(now)
    plan.begin(ServerProcess(0, 0))
    last = ServerProcess(0, 1)
    while len(times) < 8:
        assert plan.end(last, now)
        while not (found := plan.decide(now).start):
            now += 0.5
        times.append(now)
        last = found[0]
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
