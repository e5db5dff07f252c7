"""The states of a run and the transitions between them."""

from __future__ import annotations

from enum import Enum

from farandole.errors import RunError


class RunState(str, Enum):
    """The states of a run, in the order of a run without failures."""

    QUEUED = "queued"  # waits for resources, for its turn or for another run
    PREPARING = "preparing"  # environment and inputs are being prepared
    PROVISIONING = "provisioning"  # waits for nodes
    STARTING = "starting"  # ranks are being started
    RUNNING = "running"
    FINALIZING = "finalizing"  # outputs are being collected
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"

    @property
    def final(self) -> bool:
        """Return whether the state is final."""
        return self in FINAL

    @property
    def active(self) -> bool:
        """Return whether the run has left the queue but not ended."""
        return self not in FINAL and self is not RunState.QUEUED


FINAL = frozenset({RunState.COMPLETED, RunState.FAILED, RunState.CANCELED})
_ORDER = [
    RunState.QUEUED,
    RunState.PREPARING,
    RunState.PROVISIONING,
    RunState.STARTING,
    RunState.RUNNING,
    RunState.FINALIZING,
]
# A run may skip states, and returns to QUEUED for a retry. It cannot complete before it has run.
TRANSITIONS: dict[RunState, frozenset[RunState]] = {
    state: frozenset(
        {*_ORDER[place + 1 :], RunState.FAILED, RunState.CANCELED}
        | ({RunState.QUEUED} if place else set())
        | ({RunState.COMPLETED} if state in (RunState.RUNNING, RunState.FINALIZING) else set())
    )
    for place, state in enumerate(_ORDER)
} | {state: frozenset() for state in FINAL}


def check_transition(run_id: str, before: RunState, after: RunState) -> None:
    """Raise RunError unless a run may change from ``before`` to ``after``."""
    if after not in TRANSITIONS[before]:
        allowed = ", ".join(sorted(state.value for state in TRANSITIONS[before])) or "none"
        raise RunError(
            f"run {run_id} cannot change from {before.value} to {after.value} (allowed: {allowed})"
        )
