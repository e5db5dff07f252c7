"""The states of runs as the SDK's texts."""

from __future__ import annotations

from farandole.job.runs.folder import CANCEL, RunFolder
from farandole.job.runs.states import RunState

STATUS = {
    RunState.QUEUED: "Queued",
    RunState.PREPARING: "Preparing",
    RunState.PROVISIONING: "Provisioning",
    RunState.STARTING: "Starting",
    RunState.RUNNING: "Running",
    RunState.FINALIZING: "Finalizing",
    RunState.COMPLETED: "Completed",
    RunState.FAILED: "Failed",
    RunState.CANCELED: "Canceled",
}
FINAL = ("Completed", "Failed", "Canceled")


def status_of(folder: RunFolder) -> str:
    """Return the status of a run."""
    state = folder.state()
    if not state.final and folder.requested(CANCEL) is not None:
        return "CancelRequested"
    return STATUS[state]
