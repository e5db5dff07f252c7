"""The functions with which a program records metrics, parameters and files in its run.

Each rank records its own values. Outside a run, no files are created: values are checked as usual,
and the first call logs how to start a run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from farandole.job.tracking import files, tracker
from farandole.job.tracking.values import check_name, flat, number, step_number, table


def log_metric(name: str, value: Any, step: int | None = None) -> None:
    """Record a number.

    Arguments:
        name: Its name, such as ``loss``. A slash forms groups: ``train/loss``.
        value: A number, or an array or tensor with one element. NaN and infinity are kept.
        step: The training step; by default the number of earlier values of this name. Pass it if
            the run may restart from a checkpoint.

    Raises TypeError for a value that is not a number.
    """
    log_metrics({name: value}, step)


def log_metrics(values: Mapping[str, Any], step: int | None = None) -> None:
    """Record several numbers at one step; see ``log_metric``."""
    found = {check_name(name, "a metric"): number(name, value) for name, value in values.items()}
    if step is not None and type(step) is not int:
        step = step_number(step)
    here = tracker.current()
    if here is not None and found:
        here.scalars(found, step)


def log_params(values: Mapping[str, Any]) -> None:
    """Record parameters of the program, such as hyperparameters, by name.

    Parameters of nested mappings are named ``outer.inner``. Numbers, strings, bools and lists of
    these are kept; other objects become text. If a name is recorded again, the last value counts.

    Raises TypeError if ``values`` is not a mapping.
    """
    found = dict(flat(values))
    here = tracker.current()
    if here is not None and found:
        here.record(tracker.PARAMETERS, values=found)


def log_artifact(path: str | os.PathLike[str], name: str | None = None) -> None:
    """Copy a file, or a folder with its files, to the outputs of the run.

    Arguments:
        path: The file or folder. A file that is already in ``outputs/`` is not copied.
        name: The name in the outputs, by default the last part of ``path``. If several ranks use
            the same name, they overwrite each other's file.

    Raises ValueError if there is no such file, or if the name leads out of the outputs.
    """
    path = os.path.abspath(path)
    given = files.inside(os.path.basename(path) if name is None else name)
    if not os.path.exists(path):
        raise ValueError(f"the artifact {path!r} does not exist")
    here = tracker.current()
    if here is None:
        return
    outputs = os.path.realpath(here.folder.folder("outputs")) + os.sep
    real = os.path.realpath(path)
    if name is None and real.startswith(outputs):
        given = real[len(outputs) :]
    size = files.add(here.folder, path, given)
    here.record(tracker.ARTIFACT, name=given, bytes=size)


def log_figure(figure: Any, name: str, step: int | None = None) -> None:
    """Write a figure to ``figures/<name>`` of the run's outputs.

    Arguments:
        figure: A Matplotlib figure or PIL image (written as PNG), a Plotly or Altair figure
            (written as HTML), or the bytes of a PNG file.
        name: The name of the file. An extension is added if it has none.
        step: The training step, which becomes part of the file's name.

    Raises TypeError for other objects, ValueError if the name leads out of the outputs.
    """
    ending, save = files.figure_writer(figure)
    stem, own = os.path.splitext(check_name(name, "a figure"))
    suffix = "" if step is None else f"-{step_number(step)}"
    given = files.inside(os.path.join("figures", f"{stem}{suffix}{own or ending}"))
    here = tracker.current()
    if here is None:
        return
    target = os.path.join(here.folder.folder("outputs"), given)
    files.write(target, save)
    here.record(tracker.ARTIFACT, name=given, bytes=os.path.getsize(target), figure=name, step=step)


def log_table(
    name: str,
    rows: Sequence[Mapping[str, Any]] | Mapping[str, Sequence[Any]],
    step: int | None = None,
) -> None:
    """Record a small table.

    Arguments:
        name: Its name. Further calls with this name add rows to the table.
        rows: A list of dicts, one per row, or a dict of columns. At most 100,000 cells.
        step: The training step.

    Raises TypeError or ValueError for rows that do not form a table.
    """
    columns, cells = table(check_name(name, "a table"), rows)
    here = tracker.current()
    if here is not None:
        here.record(tracker.TABLE, name=name, columns=columns, rows=cells, step=step)
