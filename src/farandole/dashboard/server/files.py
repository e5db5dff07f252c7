"""The files of a run: their list, previews, and safe access.

Links that lead out of the run's folder are refused, and archives are not unpacked. Images are
recognized by their first bytes. All other files are shown as a table, text or binary data; HTML,
SVG and other formats that a browser could execute are shown as text.
"""

from __future__ import annotations

import csv
import io
import json
import os
import stat
from collections.abc import Iterator
from typing import Any, BinaryIO

from farandole.dashboard.server import images, tables
from farandole.dashboard.server.logs import readable
from farandole.job.runs.folder import RunFolder
from farandole.jobs.outputs import is_inside

MOST_FILES = 10_000
_PLACES = ("outputs", "logs", "user_logs", "tensorboard", "metrics", "snapshot")
_HEAD = 1 << 18  # bytes of a text or table that a preview reads
_ROWS = 200
_CELL = 500  # characters of a cell
_DELIMITERS = {".csv": ",", ".tsv": "\t"}


def listing(folder: RunFolder) -> dict[str, Any]:
    """Return the ``files`` of a run, outputs first, each with ``path``, ``bytes`` and ``modified``
    (seconds since 1970); ``more``: whether the run has more files.
    """
    found: list[dict[str, Any]] = []
    for path in _paths(folder):
        if len(found) == MOST_FILES:
            return {"files": found, "more": True}
        if is_inside(folder, path):
            try:
                status = os.stat(path)
            except OSError:  # deleted since then
                continue
            name = os.path.relpath(path, folder.path)
            found.append({"path": name, "bytes": status.st_size, "modified": status.st_mtime})
    return {"files": found, "more": False}


def _paths(folder: RunFolder) -> Iterator[str]:
    for place in _PLACES:
        for where, folders, names in os.walk(folder.file(place)):
            folders.sort()
            for name in sorted(names):
                path = os.path.join(where, name)
                if os.path.isfile(path):
                    yield path
    for name in sorted(os.listdir(folder.path)):
        if os.path.isfile(folder.file(name)) and not name.startswith("."):
            yield folder.file(name)


def opened(folder: RunFolder, name: str) -> BinaryIO:
    """Open a regular file of a run for reading.

    Raises FileNotFoundError if there is none, and PermissionError if ``name`` leads out of the
    run's folder.
    """
    path = os.path.normpath(os.path.join(folder.path, name))
    if "\0" in name or not path.startswith(folder.path + os.sep):
        raise PermissionError(f"{name!r} is not in the folder of run {folder.run_id}")
    try:
        # A named pipe must not block the server.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except PermissionError:
        raise
    except OSError:  # a link that leads to itself, a name that is too long, ...
        raise FileNotFoundError(f"run {folder.run_id} has no file {name!r}") from None
    # The path of the open file, because links may change between a check and an open.
    actual = os.readlink(f"/proc/self/fd/{descriptor}")
    if not actual.startswith(os.path.realpath(folder.path) + os.sep):
        os.close(descriptor)
        raise PermissionError(f"{name!r} leads out of the folder of run {folder.run_id}")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(f"run {folder.run_id} has no regular file {name!r}")
    return open(descriptor, "rb")


def preview(file: BinaryIO, name: str) -> dict[str, Any]:
    """Return a preview of an open file.

    ``kind`` is ``image`` (with ``type``, ``width``, ``height``; the page loads it with ``raw=1``),
    ``table`` (with ``columns`` and ``rows`` of text), ``text`` (with ``text``) or ``binary``;
    ``complete``: whether the preview has the whole file; ``note``: a note for the reader.
    """
    status = os.fstat(file.fileno())
    facts = {"path": name, "bytes": status.st_size, "modified": status.st_mtime, "note": ""}
    head = os.pread(file.fileno(), _HEAD, 0)
    image = images.recognized(head)
    if image is not None:
        return facts | _of_image(image, status.st_size)
    if head.startswith(b"PAR1"):
        return facts | tables.of_parquet(file, _ROWS)
    if b"\0" in head or _is_binary(head):
        return facts | {"kind": "binary", "complete": False}
    complete = len(head) >= status.st_size
    return facts | (_table(head, name, complete) or _text(head, complete))


def _of_image(image: images.Image, size: int) -> dict[str, Any]:
    if not image.showable(size):
        note = f"an image of {image.width} x {image.height} pixels is too large to show"
        return {"kind": "binary", "complete": False, "note": note}
    return {"kind": "image", "complete": True, **image._asdict()}


def _is_binary(head: bytes) -> bool:
    """Return whether more than a tenth of the characters cannot be part of a text."""
    text = head.decode("utf-8", "replace")
    strange = sum(each == "\ufffd" or (each < " " and each not in "\t\n\r\x1b") for each in text)
    return strange * 10 > len(text)


def _text(head: bytes, complete: bool) -> dict[str, Any]:
    return {"kind": "text", "complete": complete, "text": readable(head)}


def _table(head: bytes, name: str, complete: bool) -> dict[str, Any] | None:
    """Return the preview of a CSV, TSV or JSON lines file; None for other or damaged files."""
    extension = os.path.splitext(name)[1].lower()
    text = readable(head)
    if not complete:
        text = text[: text.rfind("\n") + 1]
    if extension in _DELIMITERS:
        try:
            rows = list(csv.reader(io.StringIO(text), delimiter=_DELIMITERS[extension]))
        except csv.Error:
            return None
        return table(rows[0], rows[1:], complete) if rows else None
    if extension == ".jsonl" and not name.startswith("metrics/"):
        try:
            records = [json.loads(line) for line in text.splitlines()[: _ROWS + 1] if line.strip()]
        except (ValueError, RecursionError):
            return None
        if records and all(isinstance(record, dict) for record in records):
            columns = list(dict.fromkeys(key for record in records for key in record))
            cells = [[record.get(key, "") for key in columns] for record in records]
            return table(columns, cells, complete)
    return None


def table(columns: list[str], rows: list[list[Any]], complete: bool) -> dict[str, Any]:
    """Return the preview of a table; long cells and excess rows are cut."""
    return {
        "kind": "table",
        "columns": [str(each)[:_CELL] for each in columns],
        "rows": [[str(cell)[:_CELL] for cell in row] for row in rows[:_ROWS]],
        "complete": complete and len(rows) <= _ROWS,
    }
