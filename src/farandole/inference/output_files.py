"""Assignment of rows to the files of predictions: pure, and independent of the number of
processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

FILE_BYTES = 128 << 20  # approximate size of a file's rows in memory


class InputFile(NamedTuple):
    """An input file.

    ``bytes``: approximate size of its columns in memory. ``written``: the file's modification time
    in nanoseconds. ``size``: the file's size; both are -1 if unknown. ``keys``: the partition keys
    in its path, such as year=2024/part.parquet.
    """

    path: str
    rows: int
    bytes: int
    written: int = -1
    keys: tuple[tuple[str, Any], ...] = ()
    size: int = -1


class OutputFile(NamedTuple):
    """A file of the output: rows ``begin`` to ``end - 1`` of the input file with index
    ``source``.
    """

    number: int
    source: int
    begin: int
    end: int

    @property
    def name(self) -> str:
        return f"part-{self.number:05d}.parquet"


def plan_files(sources: Sequence[InputFile], rows: int) -> list[OutputFile]:
    """Return the files for all rows, in order, with at most ``rows`` rows each, and fewer if rows
    are large. An input without rows has one empty output file, so that its columns are written,
    too.
    """
    planned: list[OutputFile] = []
    for index, source in enumerate(sources):
        most = rows_within(source, rows, FILE_BYTES)
        for begin in range(0, source.rows, most):
            end = min(begin + most, source.rows)
            planned.append(OutputFile(len(planned), index, begin, end))
    return planned or [OutputFile(0, 0, 0, 0)]


def rows_within(source: InputFile, rows: int, size: int) -> int:
    """Return the number of rows that fit into ``size`` bytes, from 1 to ``rows``."""
    each = source.bytes / max(source.rows, 1)
    return max(1, min(rows, int(size / max(each, 1e-9))))


def share(todo: Sequence[OutputFile], rank: int, size: int) -> list[OutputFile]:
    """Return a rank's files. Neighbouring files go to different ranks, so that all ranks finish at
    about the same time.
    """
    return list(todo[rank::size])
