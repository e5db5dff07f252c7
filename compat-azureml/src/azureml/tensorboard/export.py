"""``export_to_tensorboard``: the metrics of runs as event files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from azureml.exceptions import OptionalDependencyMissingException
from farandole.base.optional import require
from farandole.jobs import metrics


def export_to_tensorboard(
    run_data: Any, logsdir: str, logger: Any = None, recursive: bool = True
) -> None:
    """Write the metrics of rank 0 of runs to event files, in a folder for each run.

    Arguments:
        run_data: A run, a list of runs, or an experiment, whose runs are all exported.
        logsdir: The folder of the files.
        logger: Not used.
        recursive: Export the descendants of the runs, too.

    Raises OptionalDependencyMissingException without tensorboardX.
    """
    try:
        writers = require("tensorboardX", "export_to_tensorboard()")
    except ImportError as error:
        raise OptionalDependencyMissingException(str(error)) from error
    for run in _runs(run_data, recursive):
        with writers.SummaryWriter(os.path.join(logsdir, run.id)) as writer:
            for name in metrics.names(run._folder):
                points = zip(*metrics.series(run._folder, name), strict=True)
                for step, time, value in points:
                    writer.add_scalar(name, float(value), int(step), walltime=float(time))


def _runs(run_data: Any, recursive: bool) -> Iterator[Any]:
    if isinstance(run_data, Sequence):
        found = list(run_data)
    else:
        found = list(run_data.get_runs()) if hasattr(run_data, "get_runs") else [run_data]
    for run in found:
        yield run
        if recursive:
            yield from run.get_children(recursive=True)
