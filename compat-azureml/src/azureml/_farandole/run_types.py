"""The classes of runs by their types."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from azureml._farandole.definition import FILE, INTERACTIVE
from farandole.job.runs.folder import RunFolder, read_json

if TYPE_CHECKING:
    from azureml.core.experiment import Experiment
    from azureml.core.run import Run

# The module and the name of the class for each type of a run.
CLASSES = {
    "azureml.scriptrun": ("azureml.core.script_run", "ScriptRun"),
    "hyperdrive": ("azureml.train.hyperdrive", "HyperDriveRun"),
}
providers: dict[str, Any] = {}  # factories of Run.add_type_provider


def type_of(folder: RunFolder) -> str | None:
    """Return the type of a run; None for a run of ``start_logging``."""
    facts = read_json(folder.file(FILE))
    found: str | None = "azureml.scriptrun" if facts is None else facts["type"]
    return found


def is_interactive(folder: RunFolder) -> bool:
    """Return whether ``start_logging`` or ``child_run`` started the run in a process."""
    return INTERACTIVE in (read_json(folder.file(FILE)) or {})


def run_of(experiment: Experiment, folder: RunFolder) -> Run:
    """Return the run in a folder, as an object of the class for its type."""
    from azureml.core.run import Run

    kind = type_of(folder)
    if kind in providers:
        found: Run = providers[kind](experiment, Run(experiment, folder.run_id).get_details())
        return found
    module, name = CLASSES.get(kind or "", ("azureml.core.run", "Run"))
    made: Run = getattr(importlib.import_module(module), name)._opened(experiment, folder)
    return made
