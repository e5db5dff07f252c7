"""``wait_for_completion``: the log of rank 0 as it grows, then the summary of the run."""

from __future__ import annotations

import json
import sys
import time

from azureml._farandole.details import error
from azureml._farandole.errors import raised_as
from azureml._farandole.pages import run_url
from azureml._farandole.texts import say
from azureml.exceptions import (
    ActivityFailedException,
    ExperimentExecutionException,
    UserErrorException,
)
from farandole.job.runs.folder import RunFolder
from farandole.jobs import follow

_LOOK = 0.1  # seconds between two checks of the run's folder
_LOG = "user_logs/std_log_process_0.txt"


def wait(folder: RunFolder, *, show_output: bool, raise_on_error: bool) -> None:
    """Wait for the end of a run, and print its log if ``show_output``.

    Raises:
        ActivityFailedException: The run failed, and ``raise_on_error`` is set.
        ExperimentExecutionException: The user interrupted the wait.
        UserErrorException: The run was deleted.
    """
    try:
        if show_output:
            say(f"RunId: {folder.run_id}\nWeb View: {run_url(folder.run_id)}")
            _stream(folder)
            say(
                f"\nExecution Summary\n=================\nRunId: {folder.run_id}\n"
                f"Web View: {run_url(folder.run_id)}\n"
            )
        else:
            with raised_as(UserErrorException):
                follow.wait(folder)
    except KeyboardInterrupt:
        raise ExperimentExecutionException(
            "The output streaming for the run interrupted.\nBut the run is still executing on the"
            " compute target.\nTo cancel the run, call run.cancel(), or: farandole stop"
            f" {folder.run_id}"
        ) from None
    end = folder.end() or {}
    if end.get("state") == "failed":
        text = json.dumps(error(end), indent=4)
        if raise_on_error:
            raise ActivityFailedException(error_details=text)
        say(f"\nError:\n{text}")


def _stream(folder: RunFolder) -> None:
    """Print the output of rank 0 until the run ends. A retry appends to the same log."""
    begun = False
    reader = follow.LogReader(folder.log_of(0))
    while True:
        ended = folder.end() is not None
        text = reader.read()
        if text:
            if not begun:
                begun = True
                say(f"\nStreaming {_LOG}\n{'=' * (len(_LOG) + 10)}\n")
            sys.stdout.write(text)
            sys.stdout.flush()
        elif ended:
            return
        elif not folder.exists():
            raise UserErrorException(f"the folder of run {folder.run_id} is gone: {folder.path}")
        else:
            time.sleep(_LOOK)
