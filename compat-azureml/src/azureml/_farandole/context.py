"""The run of this process."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from typing import TYPE_CHECKING

from farandole.job.runs.folder import RUN_VARIABLE, RunFolder

if TYPE_CHECKING:
    from azureml.core.experiment import Experiment


_causes: dict[int, str] = {}  # by the id of the process that called fail(), not of its forks


def context_folder() -> RunFolder | None:
    """Return the folder of the run to which this process belongs; None outside of a run."""
    path = os.environ.get(RUN_VARIABLE, "")
    return RunFolder(path) if path else None


def context_experiment(folder: RunFolder) -> Experiment:
    """Return the experiment of the run, in the workspace that submitted it."""
    from azureml.core.experiment import Experiment
    from azureml.core.workspace import Workspace

    made = Experiment.__new__(Experiment)
    made._name = os.environ.get("AZUREML_ARM_PROJECT_NAME") or folder.spec().experiment
    name = os.environ.get("AZUREML_ARM_WORKSPACE_NAME")
    made._workspace = (
        Workspace(
            os.environ["AZUREML_ARM_SUBSCRIPTION"], os.environ["AZUREML_ARM_RESOURCEGROUP"], name
        )
        if name
        else Workspace()
    )
    return made


def fail_at_exit(cause: str) -> None:
    """Let this process end with exit code 1 and ``cause`` on stderr, because it called ``fail()``.

    The program itself may continue and end without an error.
    """
    _causes[os.getpid()] = cause


@atexit.register
def _end_failed() -> None:
    """Set the exit code after ``fail()``.

    At this point only ``os._exit`` sets it, which skips handlers registered earlier. The import of
    this module therefore registers this handler before the program's handlers.
    """
    cause = _causes.get(os.getpid())
    if cause is not None:
        sys.stderr.write(f"the program called fail(): {cause}\n")
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
