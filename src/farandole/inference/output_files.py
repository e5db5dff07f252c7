"""Which rows go into which file of predictions: pure, and the same for any number of processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

FILE_BYTES = 128 << 20  # of a piece's rows in memory, about


class InputFile(NamedTuple):
    """An input file. ``bytes``: of its columns in memory, about. ``written``: when, in nanoseconds,
    and ``size``: of the file; -1: nobody says. ``keys``: the values in its path, as in
    year=2024/part.parquet.
    """

    path: str
    rows: int
    bytes: int
    written: int = -1
    keys: tuple[tuple[str, Any], ...] = ()
    size: int = -1


class OutputFile(NamedTuple):
    """Rows ``begin`` to ``end - 1`` of input file ``file``: one file of the output."""

    number: int
    file: int
    begin: int
    end: int

    @property
    def name(self) -> str:
        return f"part-{self.number:05d}.parquet"


def plan_files(sources: Sequence[InputFile], rows: int) -> list[OutputFile]:
    """All rows of all files, in order: at most ``rows`` in a piece, and fewer where they are large.
    An input without rows is one empty piece, so that its columns are written, too.
    """
    found: list[OutputFile] = []
    for file, source in enumerate(sources):
        most = rows_within(source, rows, FILE_BYTES)
        for begin in range(0, source.rows, most):
            found.append(OutputFile(len(found), file, begin, min(begin + most, source.rows)))
    return found or [OutputFile(0, 0, 0, 0)]


def rows_within(source: InputFile, rows: int, size: int) -> int:
    """How many rows of a file are ``rows`` at most, and ``size`` bytes; at least one."""
    each = source.bytes / max(source.rows, 1)
    return max(1, min(rows, int(size / max(each, 1e-9))))


def share(todo: Sequence[OutputFile], rank: int, size: int) -> list[OutputFile]:
    """A rank's pieces: neighbours go to different ranks, so that the last ones end together."""
    return list(todo[rank::size])
