"""The files of ``CSVLogger`` when a training continues: one row for each epoch."""

from __future__ import annotations

import csv
import os
from typing import Any


def begin_within(callback: Any, epoch: int) -> None:
    """Call ``on_train_begin`` of a callback that begins with ``epoch`` of a training in progress.

    A CSVLogger continues its file instead of emptying it. The file loses the rows of epochs that
    are repeated, because they ended after the last commit.
    """
    if _kind_of(callback) is None or callback.append:
        callback.on_train_begin()
        return
    _drop_rows(callback.filename, callback.sep, epoch)
    callback.append = True
    try:
        callback.on_train_begin()
    finally:
        callback.append = False


def follow_path(callback: Any) -> None:
    """Let a CSVLogger write to its current path, which changes when this rank becomes, or ceases to
    be, the first rank with this path. It continues an existing file.
    """
    kind, file = _kind_of(callback), getattr(callback, "csv_file", None)
    if kind is None or file is None or file.name == callback.filename:
        return
    append, keys = callback.append, callback.keys
    callback.append = True
    kind.on_train_begin(callback)
    callback.append, callback.keys = append, keys  # the columns


def _kind_of(callback: Any) -> Any:
    """Return Keras's class CSVLogger, or Keras 2's, if ``callback`` is one, else None."""
    return next((each for each in type(callback).__mro__ if each.__name__ == "CSVLogger"), None)


def _drop_rows(path: str, separator: str, epoch: int) -> None:
    """Remove the rows at the end of a local file that belong to ``epoch`` or later ones, and an
    incomplete row.
    """
    if not os.path.isfile(path):
        return
    with open(path, newline="", encoding="utf-8") as file:
        lines = file.read().splitlines(keepends=True)
    kept = len(lines)
    while kept > 1 and _is_repeated(lines[kept - 1], separator, epoch):
        kept -= 1
    if kept == len(lines):
        return
    partial = f"{path}.partial"
    with open(partial, "w", newline="", encoding="utf-8") as file:
        file.writelines(lines[:kept])
    os.replace(partial, path)


def _is_repeated(line: str, separator: str, epoch: int) -> bool:
    if not line.endswith("\n"):
        return True
    (row,) = csv.reader([line], delimiter=separator)
    return bool(row) and row[0].isdecimal() and int(row[0]) >= epoch
