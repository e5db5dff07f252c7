"""Selects the waiting runs that start now, as a pure function of the queue."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from farandole.job.runs.spec import Resources
from farandole.job.runs.states import RunState
from farandole.jobs.targets.contract import Capacity


class WaitingRun(NamedTuple):
    """A run in the queue. ``number`` is its place in the order of submissions."""

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
    """A decision about a waiting run: it starts, or is rejected because of ``cause``."""

    run_id: str
    cause: str = ""


def turns(
    waiting: Collection[WaitingRun],
    active: Collection[ActiveRun],
    capacities: Mapping[str, Capacity | None],
    limits: Mapping[str, int],
    states: Mapping[str, RunState | None],
) -> list[Turn]:
    """Return the decisions of this moment, in the order in which they are to be carried out.

    - ``capacities``: By target; None for a target with a queue of its own, which gets every run at
      once.
    - ``limits``: The largest number of active runs by experiment; an experiment without an entry
      has no limit.
    - ``states``: The states of the runs that others come after; None for an unknown run.

    Runs with a higher priority come first, then those submitted first. A run that does not fit yet
    is not overtaken by later ones on the same target, so that large runs do not starve. A run that
    awaits others, or whose experiment is at its limit, does not hold up the queue.
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
    """Return "" if all earlier runs have completed, None if one is awaited, else the obstacle."""
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
    """The free places of all targets."""

    def __init__(
        self, active: Collection[ActiveRun], capacities: Mapping[str, Capacity | None]
    ) -> None:
        self._capacities = capacities
        self._blocked: set[str] = set()
        self._used: dict[str, Resources] = {}
        for run in active:
            self._occupy(run.target, run.resources)

    def take(self, run: WaitingRun) -> bool:
        """Occupy places for the run and return True; return False if it has to wait."""
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
        if used is None:  # alone, a run may use more cores than there are
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
    """Return what all ranks together occupy, as one rank's resources."""
    ranks = resources.ranks
    return Resources(
        cores=resources.cores * ranks,
        memory=resources.memory * ranks,
        gpus=resources.gpus * ranks,
    )
