"""A simulated elastic job for tests of the coordinator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from farandole.job.elastic.coordinator import Coordinator
from farandole.job.elastic.decisions import Decision, Publish, Start, Stop
from farandole.job.elastic.membership import Membership
from farandole.job.elastic.options import ElasticOptions


class Job:
    """A job of simulated processes, which start immediately, and act as a test requests."""

    def __init__(
        self,
        options: ElasticOptions,
        hosts: Mapping[str, int],
        *,
        fixed: bool = False,
    ) -> None:
        self.now = 0.0
        self.coordinator = Coordinator(options, hosts, 0.0, fixed=fixed, jitter=lambda: 0.0)
        self.alive: set[int] = set()
        self.published: list[Membership] = []
        self.commits: dict[int, int] = {}
        self.last: list[Decision] = []

    def step(self, seconds: float = 0.0) -> list[Decision]:
        """Advance the time, and carry out the coordinator's decisions."""
        self.now += seconds
        self.last = self.coordinator.decide(self.now)
        for decision in self.last:
            if isinstance(decision, Start):
                self.alive.add(decision.member.process)
            elif isinstance(decision, Publish):
                self.published.append(decision.membership)
            elif isinstance(decision, Stop):
                self.end(decision.process, ok=False)
        return self.last

    def end(self, process: int, ok: bool = False) -> None:
        self.alive.discard(process)
        self.coordinator.end(process, ok, self.now)

    def wait(
        self,
        *processes: int,
        after: int | None = None,
        commits: int = 0,
        unreached: Sequence[int] = (),
    ) -> None:
        """Let processes wait for the next membership."""
        for process in processes:
            number = self.membership.number if after is None else after
            made = self.commits.get(process, commits)
            self.coordinator.ready(process, number, made, self.now, unreached)

    def leave(self) -> None:
        """Let all living members wait for the next membership."""
        self.wait(*(process for process in self.ranks if process in self.alive))

    @property
    def membership(self) -> Membership:
        return self.published[-1]

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return the processes of the present membership, in rank order."""
        return self.membership.processes

    def kinds(self) -> list[str]:
        return [type(each).__name__ for each in self.last]


def job(least: int = 2, most: int | None = 4, np: int = 0, **hosts: int) -> Job:
    made = Job(ElasticOptions(np=np or sum(hosts.values()), min_np=least, max_np=most), hosts)
    made.step()
    return made
