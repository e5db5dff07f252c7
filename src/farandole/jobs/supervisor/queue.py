"""The decisions about waiting runs: a pure function of the queue."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from farandole.job.runs.spec import Resources
from farandole.job.runs.states import RunState
from farandole.jobs.targets.contract import Capacity


class WaitingRun(NamedTuple):
    """A run in the queue; ``number``: its position in the order of submissions."""

    run_id: str
    number: int
    target: str
    resources: Resources
    experiment: str
    priority: int = 0
    after: tuple[str, ...] = ()


class ActiveRun(NamedTuple):
    """A run that occupies its resources."""

    run_id: str
    target: str
    resources: Resources
    experiment: str


class Turn(NamedTuple):
    """A decision about a waiting run: start it, or reject it because of ``cause``."""

    run_id: str
    cause: str = ""


def turns(
    waiting: Collection[WaitingRun],
    active: Collection[ActiveRun],
    capacities: Mapping[str, Capacity | None],
    limits: Mapping[str, int],
    states: Mapping[str, RunState | None],
) -> list[Turn]:
    """Return the decisions to carry out now, in order.

    - ``capacities``: The capacity of each target; None for a target with its own queue, which
      receives every run immediately.
    - ``limits``: The largest number of active runs by experiment; without an entry, an experiment
      has no limit.
    - ``states``: The states of the runs on which others depend; None for an unknown run.

    Runs start by priority, then in the order of submission. While a run waits for resources, later
    runs on the same target wait too, so that large runs do not starve. A run that waits for other
    runs, or for its experiment's limit, does not hold up the queue.
    """
    found: list[Turn] = []
    free = _Free(active, capacities)
    running: dict[str, int] = {}
    for run in active:
        running[run.experiment] = running.get(run.experiment, 0) + 1
    for candidate in sorted(waiting, key=lambda each: (-each.priority, each.number)):
        obstacle = _dependencies(candidate.after, states)
        if obstacle is None:
            continue
        if obstacle:
            found.append(Turn(candidate.run_id, obstacle))
            continue
        count = running.get(candidate.experiment, 0)
        if count >= limits.get(candidate.experiment, count + 1):
            continue
        if free.take(candidate):
            running[candidate.experiment] = count + 1
            found.append(Turn(candidate.run_id))
    return found


def _dependencies(after: Sequence[str], states: Mapping[str, RunState | None]) -> str | None:
    """Return "" if all runs of ``after`` have completed, None while they still can, otherwise the
    obstacle.
    """
    awaited = False
    for run_id in after:
        state = states.get(run_id)
        if state is None:
            return f"it was to start after run {run_id}, which does not exist"
        if state in (RunState.FAILED, RunState.CANCELED):
            return f"it was to start after run {run_id}, which ended as {state.value}"
        awaited |= state is not RunState.COMPLETED
    return None if awaited else ""


class _Free:
    """The free resources of all targets."""

    def __init__(
        self, active: Collection[ActiveRun], capacities: Mapping[str, Capacity | None]
    ) -> None:
        self._capacities = capacities
        self._blocked: set[str] = set()
        self._used: dict[str, Resources] = {}
        for run in active:
            self._occupy(run.target, run.resources)

    def take(self, run: WaitingRun) -> bool:
        """Occupy resources for the run and return True; return False if the run must wait."""
        if run.target in self._blocked or run.target not in self._capacities:
            return False
        capacity = self._capacities[run.target]
        if capacity is not None and not self._fits(run, capacity):
            self._blocked.add(run.target)
            return False
        self._occupy(run.target, run.resources)
        return True

    def _fits(self, run: WaitingRun, capacity: Capacity) -> bool:
        used = self._used.get(run.target)
        if used is None:  # the only run on a target may exceed its cores
            return True
        wanted = total(run.resources)
        return (
            used.cores + min(wanted.cores, capacity.cores) <= capacity.cores
            and (not capacity.memory or used.memory + wanted.memory <= capacity.memory)
            and used.gpus + wanted.gpus <= capacity.gpus
        )

    def _occupy(self, target: str, resources: Resources) -> None:
        before, wanted = self._used.get(target), total(resources)
        if before is None:
            self._used[target] = wanted
        else:
            self._used[target] = Resources(
                cores=before.cores + wanted.cores,
                memory=before.memory + wanted.memory,
                gpus=before.gpus + wanted.gpus,
            )


def total(resources: Resources) -> Resources:
    """Return the total resources of all ranks; for an elastic run, of its maximum number of
    ranks.
    """
    ranks = resources.most_ranks
    return Resources(
        cores=resources.cores * ranks,
        memory=resources.memory * ranks,
        gpus=resources.gpus * ranks,
    )
