"""The columns and row groups of files, from their footers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

from farandole.base.optional import require
from farandole.data.parquet import weights
from farandole.data.parquet.arrays import first_null
from farandole.data.parquet.columns import Column, ColumnOptions, check_names
from farandole.data.parquet.describe import column_of
from farandole.data.parquet.file_version import FileVersion, file_version
from farandole.data.parquet.fragments import fragments, keys
from farandole.data.parquet.location import RowLocation, null_error
from farandole.data.parquet.python_values import KINDS
from farandole.errors import DataError

_PURPOSE = "reading Parquet"
BUFFER = 1 << 20  # bytes of a column read from disk at a time
_ASKING = 16  # threads that query file information
_SWOLLEN = 2  # estimated growth in memory of values whose size only the file knows


class RowGroup(NamedTuple):
    """A row group. ``row``: the number of its first row in the file."""

    file: int
    number: int
    rows: int
    row: int
    size: int  # approximate bytes in memory


class Scan(NamedTuple):
    """The contents of files, from their footers. All ranks use the scan that came with the handle,
    so that they agree.
    """

    files: tuple[str, ...]
    # by file: the partition keys in its path, such as year=2024/part.parquet
    keys: tuple[dict[str, Any], ...]
    columns: tuple[Column, ...]
    groups: tuple[RowGroup, ...]
    versions: tuple[FileVersion, ...]  # by file, when the handle was made

    @property
    def rows(self) -> int:
        return sum(group.rows for group in self.groups)

    @property
    def bytes(self) -> int:
        return sum(group.size for group in self.groups)

    def blocks(self, together: int) -> list[tuple[RowGroup, ...]]:
        """Return row groups that are read together: as many as fit into ``together`` bytes."""
        blocks: list[list[RowGroup]] = []
        size = 0
        for group in self.groups:
            if not blocks or size + group.size > together:
                blocks.append([])
                size = 0
            blocks[-1].append(group)
            size += group.size
        return [tuple(block) for block in blocks]


def scan_files(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    storage_options: Mapping[str, Any] | None,
    selected: Callable[[Sequence[str]], list[str]],
    options: ColumnOptions,
    weight: str | None,
    location: Callable[[str, int], RowLocation],
    *,
    everything: bool,
    objects: bool = False,
) -> Scan:
    """Scan the files of ``path``: their footers and a first row.

    ``selected``: returns the columns to read, given all names. ``everything``: all columns are
    read, so each file must have all of them. ``objects``: columns that are not single numbers, and
    numbers with nulls, are read as Python objects.
    """
    files, schema = fragments(path, storage_options)
    # object stores have a high latency for each file
    with ThreadPoolExecutor(min(len(files), _ASKING)) as pool:
        versions = tuple(pool.map(lambda file: checked_version(file.filesystem, file.path), files))
    names = selected(schema.names)
    check_names(options, names)
    start = location(files[0].path, 0)
    head: dict[str, Any] = {}

    def first(name: str) -> Any:
        if not head:
            head.update(_first_row(files, names))
        return head.get(name)

    columns = tuple(
        column_of(name, schema.field(name).type, options, partial(first, name), start, objects)
        for name in names
    )
    if objects:
        columns = tuple(_nullable(column, files) for column in columns)
    for column in columns:
        if column.name == weight:
            weights.check_column(column, start)
    _check_types(files, schema, names)
    if everything:
        _check_all(files, schema.names)
    return Scan(
        files=tuple(file.path for file in files),
        keys=tuple(keys(file) for file in files),
        columns=columns,
        groups=_groups(files, columns, location),
        versions=versions,
    )


def checked_version(system: Any, path: str) -> FileVersion:
    """Return the current version of a file. Raises DataError if it cannot be read."""
    try:
        return file_version(system, path)
    except OSError as error:
        raise DataError(f"{path} cannot be read as Parquet: {error}") from error


def _first_row(files: Sequence[Any], names: Sequence[str]) -> dict[str, Any]:
    pq = require("pyarrow.parquet", _PURPOSE)
    for file in files:
        group = next((each.id for each in file.row_groups if each.num_rows), None)
        if group is None:
            continue
        own = [name for name in names if name in file.physical_schema.names]
        # a dataset scan would decode far more than one row, in several threads
        with file.open() as opened:
            rows = pq.ParquetFile(opened, metadata=file.metadata, buffer_size=BUFFER)
            for batch in rows.iter_batches(1, row_groups=[group], columns=own, use_threads=False):
                return dict(batch.to_pylist()[0])
    return {}


def _check_types(files: Sequence[Any], schema: Any, names: Sequence[str]) -> None:
    for file in files:
        known = keys(file)
        for name in names:
            if name in known:
                continue
            if name not in file.physical_schema.names:
                other = next(
                    each.path
                    for each in files
                    if name in {*each.physical_schema.names, *keys(each)}
                )
                raise RowLocation(file.path).error(
                    name, None, f"it is missing here, but exists in {other}"
                )
            kind, expected = file.physical_schema.field(name).type, schema.field(name).type
            if kind != expected:
                other = next(
                    (each.path for each in files if schema.field(name) in [*each.physical_schema]),
                    file.path,
                )
                text = f"its type is {kind} here, but {expected} in {other}; convert one of them"
                raise RowLocation(file.path).error(name, None, f"{text}, or leave the column out")


def _check_all(files: Sequence[Any], names: Sequence[str]) -> None:
    """Raise DataError for a column missing from the first file, if all columns are read."""
    for file in files:
        if more := [name for name in file.physical_schema.names if name not in names]:
            other = next(each.path for each in files if more[0] not in each.physical_schema.names)
            cure = "select the columns to read with columns= or features="
            raise RowLocation(file.path).error(more[0], None, f"{other} does not have it; {cure}")


def _nullable(column: Column, files: Sequence[Any]) -> Column:
    """Return a column of numbers as one of objects, if a footer reports nulls."""
    if column.kind != "number" or column.fill is not None:
        return column
    for file in files:
        metadata = file.metadata
        for index in range(metadata.num_columns):
            if metadata.schema.column(index).path != column.name:
                continue
            groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
            found = [group.column(index).statistics for group in groups]
            if any(each is not None and each.has_null_count and each.null_count for each in found):
                return column._replace(kind="object", dtype="object", shape=())
    return column


def _groups(
    files: Sequence[Any], columns: Sequence[Column], location: Callable[[str, int], RowLocation]
) -> tuple[RowGroup, ...]:
    fixed = sum(column.width for column in columns)
    sized = [column.name for column in columns if not column.width]
    strict = [column.name for column in columns if column.fill is None and column.kind not in KINDS]
    names = {column.name for column in columns}
    groups = []
    for file_number, file in enumerate(files):
        row, metadata = 0, file.metadata
        inside = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
        # a column's name may have a dot
        top = [path if path in names else path.split(".")[0] for path in inside]
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            size = group.num_rows * fixed
            for index, name in enumerate(top):
                if name in sized:
                    size += _SWOLLEN * int(group.column(index).total_uncompressed_size)
                if name in strict and inside[index] == name:
                    _check_nulls(file, number, group.column(index), name, location(file.path, row))
            if group.num_rows:
                groups.append(RowGroup(file_number, number, group.num_rows, row, size))
            row += group.num_rows
    return tuple(groups)


def _check_nulls(file: Any, index: int, chunk: Any, name: str, location: RowLocation) -> None:
    """Raise NullError, with the row, if the footer reports nulls."""
    statistics = chunk.statistics
    if statistics is not None and statistics.has_null_count and statistics.null_count:
        column = (
            file.subset(row_group_ids=[index]).to_table(columns=[name]).column(0).combine_chunks()
        )
        if column.null_count:  # not nulls of a struct field whose path looks like the name
            raise null_error(name, first_null(column), location)
