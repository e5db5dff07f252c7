"""The numbers of a journal as columns, converted once and kept in the local state folder.

Each rank of a run has a folder with ``index.json``, one file of (step, time, value) in float64 per
metric, and ``others.jsonl`` with all other records. The index contains the converted length of the
journal and the valid length of each file. The index is replaced last, so a process may be killed at
any time. All these files can be rebuilt from the journal.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import tempfile
from array import array
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from farandole.job.runs import journal
from farandole.job.runs.folder import RunFolder, make_private
from farandole.job.tracking.tracker import SYSTEM
from farandole.jobs.column_cache import column_folder, key

_VERSION = 1
_WIDTH = 3  # step, time, value
_CHUNK = 1 << 25  # bytes of a journal converted at a time
_HEAD = 256  # bytes at the beginning of a journal that identify it


@dataclass
class MetricColumn:
    """One metric: its ``file`` with ``points`` rows.

    ``attempts``: pairs of a first row and the attempt that wrote the rows starting there.
    """

    file: int
    points: int = 0
    last: float = 0.0
    automatic: bool = False
    attempts: list[list[int]] = field(default_factory=list)


@dataclass
class ColumnsIndex:
    """The progress of the conversion. The names of the files begin with ``token``."""

    token: str
    head: str = ""
    offset: int = 0
    damaged: int = 0
    others: int = 0  # valid bytes of others.jsonl
    metrics: dict[str, MetricColumn] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"version": _VERSION, **asdict(self)}

    @staticmethod
    def from_json(data: Any) -> ColumnsIndex:
        """Raises KeyError or TypeError for data of another version."""
        if data.pop("version") != _VERSION:
            raise KeyError("version")
        metrics = {name: MetricColumn(**each) for name, each in data.pop("metrics").items()}
        return ColumnsIndex(**data, metrics=metrics)


class RankColumns:
    """The columns of one rank at one moment."""

    def __init__(self, where: str, index: ColumnsIndex) -> None:
        self._where = where
        self.index = index

    @staticmethod
    def of(folder: RunFolder, rank: int) -> RankColumns:
        """Return the columns of a rank, with all current records of its journal."""
        path = folder.metrics_of(rank)
        where = _place(folder, rank)
        index = _read_index(where)
        if index is None or not _is_current(index, path) or not _is_whole(index, where):
            with _locked(where):
                index = _convert(where, path)
        return RankColumns(where, index)

    def series(self, name: str) -> tuple[Any, Any, Any]:
        """Return steps, times and values of a metric; see ``series`` of this package."""
        column = self.index.metrics.get(name)
        if column is None:
            return np.empty(0, np.int64), np.empty(0), np.empty(0)
        path = os.path.join(self._where, f"{self.index.token}-{column.file}.bin")
        rows = np.fromfile(path, np.float64, column.points * _WIDTH).reshape(-1, _WIDTH)
        if len(column.attempts) > 1:
            rows = rows[_valid(rows[:, 0], column.attempts)]
        return rows[:, 0].astype(np.int64), rows[:, 1].copy(), rows[:, 2].copy()

    def others(self) -> Iterator[dict[str, Any]]:
        """Yield the records other than numbers."""
        path = os.path.join(self._where, f"{self.index.token}-others.jsonl")
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            for line in file.read(self.index.others).splitlines():
                yield json.loads(line)


def _valid(steps: Any, attempts: list[list[int]]) -> Any:
    """Return the indices of the rows not repeated by a later attempt, in order."""
    bounds = [start for start, _ in attempts] + [len(steps)]
    of = np.repeat([number for _, number in attempts], np.diff(bounds))
    order = np.argsort(of, kind="stable")
    keep = np.ones(len(steps), bool)
    earliest = np.inf
    for number in sorted({number for _, number in attempts}, reverse=True):
        mine = of == number
        keep[mine & (steps >= earliest)] = False
        earliest = min(earliest, steps[mine].min())
    return order[keep[order]]


def _place(folder: RunFolder, rank: int) -> str:
    """Return the folder for the columns of a rank."""
    try:
        return column_folder(folder, rank)
    except OSError:  # a full disk, or a home that is not writable
        return _scratch(key(folder), rank)


def _scratch(name: str, rank: int) -> str:
    """Return a folder in memory that is deleted with this process."""
    root = _scratches.setdefault(
        name, tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    )
    return make_private(os.path.join(root.name, f"rank-{rank}"))


_scratches: dict[str, tempfile.TemporaryDirectory[str]] = {}


# --- conversion


def _convert(where: str, path: str) -> ColumnsIndex:
    """Convert the new records of a journal, and return the index."""
    index = _read_index(where)
    head = _head_of(path)
    if index is None or not _continues(index, head, path) or not _is_whole(index, where):
        _clear(where)
        index = ColumnsIndex(secrets.token_hex(4))
    index.head = head
    while True:
        part = journal.read(path, index.offset, _CHUNK)
        if part.offset == index.offset:
            break
        _append(where, index, part.records)
        index.offset = part.offset
        index.damaged += part.damaged
        _write_index(where, index)
    return index


def _append(where: str, index: ColumnsIndex, records: list[Any]) -> None:
    """Add records to the files and to the index."""
    found: dict[str, array[float]] = {}
    others: list[bytes] = []
    for record in records:
        if not isinstance(record, dict):
            continue
        kind = record.get("kind")
        if kind is None or kind == SYSTEM:
            _add_numbers(index, found, record, kind == SYSTEM)
        else:
            others.append(json.dumps(record).encode() + b"\n")
    for name, rows in found.items():
        column = index.metrics[name]
        _write(where, f"{index.token}-{column.file}.bin", column.points * _WIDTH * 8, rows)
        column.points += len(rows) // _WIDTH
        column.last = rows[-1] if rows else column.last  # empty if no value was a number
    if others:
        data = b"".join(others)
        _write(where, f"{index.token}-others.jsonl", index.others, data)
        index.others += len(data)


def _add_numbers(
    index: ColumnsIndex, found: dict[str, array[float]], record: dict[str, Any], automatic: bool
) -> None:
    time: Any = record.get("time")
    step, attempt = record.get("step"), record.get("attempt", 1)
    values = record.get("values")
    if not isinstance(values, dict):
        return
    for name, value in values.items():
        column = index.metrics.get(name)
        if column is None:
            column = MetricColumn(len(index.metrics), automatic=automatic)
            index.metrics[name] = column
        rows = found.get(name)
        if rows is None:
            rows = found[name] = array("d")
        row = column.points + len(rows) // _WIDTH
        if not column.attempts or column.attempts[-1][1] != attempt:
            column.attempts.append([row, attempt])
        try:
            rows.extend((row if step is None else step, time, value))
        except TypeError:  # a record of another program, with different types
            del rows[len(rows) - len(rows) % _WIDTH :]


def _write(where: str, name: str, size: int, data: Any) -> None:
    """Write ``data`` after the first ``size`` bytes of a file."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
    with open(os.open(os.path.join(where, name), flags, 0o600), "wb") as file:
        file.truncate(size)  # discards the rest of a killed process's write
        file.seek(size)
        file.write(data)


# --- the index


def _read_index(where: str) -> ColumnsIndex | None:
    try:
        with open(os.path.join(where, "index.json"), "rb") as file:
            return ColumnsIndex.from_json(json.loads(file.read()))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_index(where: str, index: ColumnsIndex) -> None:
    temporary = os.path.join(where, f"index.{os.getpid()}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    with open(os.open(temporary, flags, 0o600), "w") as file:
        json.dump(index.to_json(), file)
    os.replace(temporary, os.path.join(where, "index.json"))


def _is_current(index: ColumnsIndex, path: str) -> bool:
    """Return whether the journal has no new records."""
    return _size(path) == index.offset and index.head == _head_of(path)


def _continues(index: ColumnsIndex, head: str, path: str) -> bool:
    """Return whether the journal is still the converted journal, perhaps with more records."""
    size = int(index.head.partition(":")[0] or 0)
    return index.offset <= _size(path) and index.head == _head_of(path, size)


def _is_whole(index: ColumnsIndex, where: str) -> bool:
    """Return whether the files have at least the lengths in the index."""
    wanted = {
        f"{index.token}-{each.file}.bin": each.points * _WIDTH * 8
        for each in index.metrics.values()
    }
    wanted[f"{index.token}-others.jsonl"] = index.others
    return all(_size(os.path.join(where, name)) >= size for name, size in wanted.items())


def _head_of(path: str, most: int = _HEAD) -> str:
    """Return the digest of up to ``most`` bytes at the beginning of a file, and their number."""
    try:
        with open(path, "rb") as file:
            data = file.read(most)
    except FileNotFoundError:
        data = b""
    return f"{len(data)}:{hashlib.blake2b(data, digest_size=8).hexdigest()}"


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except FileNotFoundError:
        return 0


def _clear(where: str) -> None:
    for name in os.listdir(where):
        if name != "lock":
            os.unlink(os.path.join(where, name))


@contextlib.contextmanager
def _locked(where: str) -> Iterator[None]:
    """Hold the lock of the columns, so that only one process converts."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    descriptor = os.open(os.path.join(where, "lock"), flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
