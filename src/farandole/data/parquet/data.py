"""Parquet files as data to train on: a handle that any process can open."""

from __future__ import annotations

import contextlib
import copy
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from farandole.base.optional import require
from farandole.data import paths
from farandole.data.parquet import weights
from farandole.data.parquet.columns import (
    Column,
    ColumnOptions,
    check_names,
    column_of,
    first_null,
    values,
)
from farandole.data.parquet.file_version import FileVersion, file_version
from farandole.data.parquet.location import RowLocation, null_error
from farandole.data.parquet.sources import fragments, keys
from farandole.errors import DataError, counted, did_you_mean

if TYPE_CHECKING:
    from farandole.base.types import Array

_PURPOSE = "reading Parquet"
_ASKING = 16  # threads that ask for facts about files
_AT_ONCE = 1 << 20  # bytes of a row group that are decoded at once
_IDLE = 4  # files that stay open
_BUFFER = 1 << 20  # bytes of a column that are read from a disk at once
_SWOLLEN = 2  # times as large as in its file, a value whose size only the file knows


class RowGroup(NamedTuple):
    """``row``: the first one's number in its file."""

    file: int
    number: int
    rows: int
    row: int
    size: int  # bytes in memory, about


class Scan(NamedTuple):
    """What files hold, as far as their footers tell. All ranks read by the one that the handle
    brought along, so that they agree.
    """

    files: tuple[str, ...]
    # of each file: the values in its path, as in year=2024/part.parquet
    keys: tuple[dict[str, Any], ...]
    columns: tuple[Column, ...]
    groups: tuple[RowGroup, ...]
    stamps: tuple[FileVersion, ...]  # of each file, when the handle was made

    @property
    def rows(self) -> int:
        return sum(group.rows for group in self.groups)

    @property
    def bytes(self) -> int:
        return sum(group.size for group in self.groups)

    def blocks(self, together: int) -> list[tuple[RowGroup, ...]]:
        """Row groups that are read together: as many as fit into ``together`` bytes."""
        found: list[list[RowGroup]] = []
        size = 0
        for group in self.groups:
            if not found or size + group.size > together:
                found.append([])
                size = 0
            found[-1].append(group)
            size += group.size
        return [tuple(block) for block in found]


class ParquetData:
    """Data in Parquet files. Made by ``from_parquet`` and ``from_spark``; may be pickled, and
    captured by a training function.

    ``numpy``, ``torch``, ``keras`` and ``tensorflow`` give this rank's batches, for any framework.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Sequence[str],
        *,
        columns: Sequence[str] | None = None,
        features: str | Sequence[str] | None = None,
        labels: str | Sequence[str] | None = None,
        weight: str | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
        dtypes: Mapping[str, Any] | None = None,
        fill: Mapping[str, Any] | None = None,
        decode: Mapping[str, Callable[[bytes], Any]] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.path = os.fspath(path) if isinstance(path, os.PathLike) else path
        self.features = (
            (features,)
            if isinstance(features, str)
            else None
            if features is None
            else tuple(features)
        )
        self.labels = (labels,) if isinstance(labels, str) else tuple(labels or ())
        self.weight = weight
        self.storage_options = dict(storage_options) if storage_options else None
        self._columns = None if columns is None else tuple(columns)
        self._wanted = ColumnOptions.of(shapes, dtypes, fill, decode)
        for option, names in (("columns", self._columns), ("features", self.features)):
            if names == ():
                raise DataError(f"{option}=[] names no column; leave it out, and all are read")
        if columns is not None and features is not None:
            raise DataError(
                f"columns={list(columns)} and features={features!r} say the same: give one of them"
            )

    def __repr__(self) -> str:
        return f"ParquetData({self.path!r})"

    @cached_property
    def scan(self) -> Scan:
        """What the files hold. Read once, from their footers; travels along when the handle is
        pickled.
        """
        return _scan(self)

    @property
    def wanted(self) -> ColumnOptions:
        """``shapes``, ``dtypes``, ``fill`` and ``decode``, as they were given."""
        return self._wanted

    @property
    def rows(self) -> int:
        """Of all ranks."""
        return self.scan.rows

    @property
    def columns(self) -> tuple[Column, ...]:
        """Those that are read: name, kind, dtype and shape of a row."""
        return self.scan.columns

    def where(self, file: str, row: int = 0) -> RowLocation:
        """Rows of a file, for errors about them."""
        return RowLocation(file, row)

    def selected(self, known: Sequence[str], source: str = "") -> list[str]:
        """The names of the columns that are read, of all ``known``. ``source``: what has them, for
        the error.
        """
        others = {*self.labels, self.weight}
        chosen = self.features or self._columns or [name for name in known if name not in others]
        names = list(
            dict.fromkeys([*chosen, *self.labels, *([self.weight] if self.weight else [])])
        )
        for name in names:
            if name not in known:
                what = (
                    "Label column"
                    if name in self.labels
                    else "Weight column"
                    if name == self.weight
                    else "Column"
                )
                near = did_you_mean(name, known)
                raise DataError(
                    f"{what} {name} does not exist in {source or self.path} (it has"
                    f" {', '.join(known)}){near}"
                )
        return names

    def only(self, names: Sequence[str]) -> ParquetData:
        """These columns of the same files, of those that are read."""
        found = copy.copy(self)
        found.scan = self.scan._replace(
            columns=tuple(each for each in self.columns if each.name in names)
        )
        found.features, found.labels, found.weight, found._columns = None, (), None, tuple(names)
        return found

    def batch(self, arrays: Mapping[str, Array], weight: Array | None = None) -> Any:
        """Columns as a training loop takes them: a dict; with labels ``(inputs, labels)``, and with
        a weight ``(inputs, labels, weight)``, where one column stands for itself and several are a
        dict.
        """
        special = {*self.labels, self.weight}
        inputs = {name: array for name, array in arrays.items() if name not in special}
        weights = () if weight is None else (weight,)
        if not self.labels:
            return (inputs, *weights) if weights else inputs
        chosen = [{name: arrays[name] for name in self.features} if self.features else inputs]
        chosen.append({name: arrays[name] for name in self.labels})
        return (
            *(next(iter(part.values())) if len(part) == 1 else part for part in chosen),
            *weights,
        )

    def numpy(self, batch_size: int, **options: Any) -> Any:
        """A ``Reader``: this rank's batches as numpy arrays, which JAX takes as they are."""
        from farandole.data.parquet.reader import Reader

        return Reader(self, batch_size, **options)

    def torch(self, batch_size: int, **options: Any) -> Any:
        """A ``torch.utils.data.IterableDataset`` of this rank's batches: iterate over it, or give
        it to a DataLoader with ``batch_size=None``. ``options``: see ``Reader``.
        """
        from farandole.data.parquet.feeds.torch import TorchBatches

        return TorchBatches(self.numpy(batch_size, **options))

    def keras(self, batch_size: int, **options: Any) -> Any:
        """A ``keras.utils.PyDataset`` of this rank's batches, for ``fit`` on any backend. Options:
        see ``Reader``.
        """
        from farandole.data.parquet.feeds.keras import KerasBatches

        return KerasBatches(self.numpy(batch_size, **options))

    def tensorflow(self, batch_size: int, **options: Any) -> Any:
        """A ``tf.data.Dataset`` of this rank's batches. ``options``: see ``Reader``."""
        from farandole.data.parquet.feeds.tensorflow import dataset

        return dataset(self.numpy(batch_size, **options))


def from_parquet(path: str | os.PathLike[str] | Sequence[str], **options: Any) -> ParquetData:
    """Parquet files as data to train on.

    ``path``: a file, a folder (also one with key=value folders in it), a list of these, or a URL:
    s3://, gs://, abfs://, hdfs://, dbfs:/, or any that fsspec knows. ``storage_options``: arguments
    for fsspec. ``columns``: those that are read (default: all); or ``features``, ``labels`` and
    ``weight``: names of columns, for batches ``(inputs, labels)`` or ``(inputs, labels, weight)``.
    ``shapes={name: shape}``: of a row's list, vector, image or bytes; default: the type's own, or
    the first row's. ``dtypes={name: dtype}``: default: the file's own. ``fill={name: value}``: for
    null, and for the end of lists that are shorter than their shape. ``decode={name: function}``:
    makes an array of the bytes of one row (an image), in threads.

    Raises DataError for files, columns and types that cannot be used, and for nulls that footers
    tell of.
    """
    data = ParquetData(path, **options)
    _ = data.scan  # here, so that what is wrong is told before training starts
    return data


def _scan(data: ParquetData) -> Scan:
    files, schema = fragments(data.path, data.storage_options)
    # object stores take their time for each
    with ThreadPoolExecutor(min(len(files), _ASKING)) as pool:
        stamps = tuple(pool.map(lambda each: _stamp(each.filesystem, each.path), files))
    names = data.selected(schema.names)
    wanted = data._wanted
    check_names(wanted, names)
    where = data.where(files[0].path)
    head: dict[str, Any] = {}

    def first(name: str) -> Any:
        if not head:
            head.update(_first_row(files, names))
        return head.get(name)

    columns = tuple(
        column_of(name, schema.field(name).type, wanted, partial(first, name), where)
        for name in names
    )
    for column in columns:
        if column.name == data.weight:
            weights.check_column(column, where)
    _check_types(files, schema, names)
    if data.features is None and data._columns is None:
        _check_all(files, schema.names)
    return Scan(
        tuple(each.path for each in files),
        tuple(keys(each) for each in files),
        columns,
        _groups(files, columns, data.where),
        stamps,
    )


def _stamp(system: Any, path: str) -> FileVersion:
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
        # a scan of the dataset would decode far more than a row, in several threads
        with file.open() as opened:
            rows = pq.ParquetFile(opened, metadata=file.metadata, buffer_size=_BUFFER)
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
                    name, None, f"it is missing, while {other} has it"
                )
            kind, expected = file.physical_schema.field(name).type, schema.field(name).type
            if kind != expected:
                other = next(
                    (each.path for each in files if schema.field(name) in [*each.physical_schema]),
                    file.path,
                )
                text = (
                    f"its type is {kind}, but {expected} in {other}: write one of them with the"
                    " other's type"
                )
                raise RowLocation(file.path).error(name, None, f"{text}, or leave the column out")


def _check_all(files: Sequence[Any], names: Sequence[str]) -> None:
    """DataError for a column that the first file does not have, where all columns are to be
    read.
    """
    for file in files:
        if more := [name for name in file.physical_schema.names if name not in names]:
            other = next(each.path for each in files if more[0] not in each.physical_schema.names)
            cure = "say which columns are read, with columns= or features="
            raise RowLocation(file.path).error(more[0], None, f"{other} does not have it: {cure}")


def _groups(
    files: Sequence[Any], columns: Sequence[Column], where: Callable[[str, int], RowLocation]
) -> tuple[RowGroup, ...]:
    fixed = sum(column.width for column in columns)
    sized = [column.name for column in columns if not column.width]
    strict = [column.name for column in columns if column.fill is None]
    names = {column.name for column in columns}
    found = []
    for number, file in enumerate(files):
        row, metadata = 0, file.metadata
        inside = [metadata.schema.column(place).path for place in range(metadata.num_columns)]
        # a name may have a dot
        top = [path if path in names else path.split(".")[0] for path in inside]
        for index in range(metadata.num_row_groups):
            group = metadata.row_group(index)
            size = group.num_rows * fixed
            for place, name in enumerate(top):
                if name in sized:
                    size += _SWOLLEN * int(group.column(place).total_uncompressed_size)
                if name in strict and inside[place] == name:
                    _check_nulls(file, index, group.column(place), name, where(file.path, row))
            if group.num_rows:
                found.append(RowGroup(number, index, group.num_rows, row, size))
            row += group.num_rows
    return tuple(found)


def _check_nulls(file: Any, index: int, chunk: Any, name: str, where: RowLocation) -> None:
    """Raise NullError, with the row, if the footer says that there are nulls."""
    statistics = chunk.statistics
    if statistics is not None and statistics.has_null_count and statistics.null_count:
        column = (
            file.subset(row_group_ids=[index]).to_table(columns=[name]).column(0).combine_chunks()
        )
        if column.null_count:  # not those of the field of a struct whose path reads like the name
            raise null_error(name, first_null(column), where)


class ParquetFiles:
    """The files of a scan, opened by a rank. May be used by several threads. A pickle opens its
    own.
    """

    def __init__(self, data: ParquetData) -> None:
        self._data, self._scan = data, data.scan
        several = data.path if isinstance(data.path, str) else data.path[0]
        self._system = paths.arrow_filesystem(str(several), data.storage_options)[0]
        self.near = isinstance(self._system, require("pyarrow.fs", _PURPOSE).LocalFileSystem)
        self._footers: dict[int, Any] = {}
        self._idle: dict[int, Any] = {}  # open files that no thread reads
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[ParquetFiles], tuple[ParquetData]]:
        return ParquetFiles, (self._data,)

    def read(self, block: Sequence[RowGroup]) -> dict[str, Array]:
        """The rows of a block, as they lie in the files: an array for each column."""
        rows = sum(group.rows for group in block)
        parts = self.parts(block)
        found, begin = next(parts), 0
        if len(next(iter(found.values()))) == rows:
            next(parts, None)  # to its end, where the file is kept for the next block
            return found
        whole = {
            name: np.empty((rows, *array.shape[1:]), array.dtype) for name, array in found.items()
        }
        for part in itertools.chain([found], parts):
            end = begin + len(next(iter(part.values())))
            for name, array in part.items():
                whole[name][begin:end] = array
            begin = end
        return whole

    def parts(self, block: Sequence[RowGroup]) -> Iterator[dict[str, Array]]:
        """The rows of a block, some at a time."""
        return (part for group in block for part in self._parts(group))

    def _parts(self, group: RowGroup) -> Iterator[dict[str, Array]]:
        """The rows of a row group, some MiB at a time: decoding takes several times the memory of
        what it gives.
        """
        pa = require("pyarrow", _PURPOSE)
        path, keys = self._scan.files[group.file], self._scan.keys[group.file]
        names = [column.name for column in self._scan.columns if column.name not in keys]
        rows = max(1, min(group.rows, group.rows * _AT_ONCE // max(group.size, 1)))
        row, end = group.row, group.row + group.rows
        try:
            with self._opened(group.file) as file:
                for batch in file.iter_batches(
                    rows, row_groups=[group.number], columns=names, use_threads=False
                ):
                    # from far away all is read for the first batch
                    if self.near or row == group.row:
                        # after reading: these rows are of the file that the handle knows
                        self._check(group.file)
                    yield self._arrays(batch, keys, self._data.where(path, row))
                    row += batch.num_rows
            if row < end:  # pyarrow raises nothing where a file ends early
                raise OSError(f"it ends with {counted(row - group.row, 'row')} of them")
        except (pa.ArrowException, OSError) as error:
            self._check(group.file)
            raise DataError(f"{path}, rows {row} to {end - 1}: {error}") from error

    def _arrays(self, batch: Any, keys: Mapping[str, Any], where: RowLocation) -> dict[str, Array]:
        pa = require("pyarrow", _PURPOSE)
        found = {}
        for column in self._scan.columns:
            name = column.name
            if name in keys:  # null: of a folder k=__HIVE_DEFAULT_PARTITION__
                value = column.fill if keys[name] is None else keys[name]
                array = pa.array([value] * batch.num_rows)
            else:
                array = batch.column(name)
            found[name] = values(array, column, where)
            if name == self._data.weight:
                weights.check(found[name], column, where)
        return found

    def _check(self, number: int) -> None:
        """DataError if the file is not that which the handle was made of."""
        path, then = self._scan.files[number], self._scan.stamps[number]
        now = _stamp(self._system, path)
        if now != then:
            raise DataError(
                f"{path} has changed since the handle was made: it was {then}, and is {now}. Make"
                " the handle when files are complete, and write new data to a new folder"
            )

    @contextlib.contextmanager
    def _opened(self, number: int) -> Iterator[Any]:
        """A file, for this thread alone. Some stay open: opening one takes a tenth of the time of a
        MiB.
        """
        with self._lock:
            file = self._idle.pop(number, None)
        file = file or self._open(number)
        try:
            yield file
        except BaseException:  # also where a reader breaks off
            file.close()
            raise
        with self._lock:
            spare = self._idle.pop(number, None)
            self._idle[number] = file
            if spare is None and len(self._idle) > _IDLE:
                spare = self._idle.pop(next(iter(self._idle)))
        if spare is not None:
            spare.close()

    def _open(self, number: int) -> Any:
        """Of a file on a far file system what is needed is asked for at once."""
        pq = require("pyarrow.parquet", _PURPOSE)
        how = {"buffer_size": _BUFFER, "pre_buffer": False} if self.near else {"pre_buffer": True}
        known = self._footers.get(number)
        found = pq.ParquetFile(
            self._scan.files[number], filesystem=self._system, metadata=known, **how
        )
        self._footers[number] = found.metadata
        return found
