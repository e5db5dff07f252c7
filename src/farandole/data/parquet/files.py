"""The files of a scan, open for reading."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from farandole.base.optional import require
from farandole.data import paths
from farandole.data.parquet import weights
from farandole.data.parquet.arrays import values
from farandole.data.parquet.location import RowLocation
from farandole.data.parquet.python_values import KINDS, python_values
from farandole.data.parquet.scan import BUFFER, RowGroup, checked_version
from farandole.data.parquet.source import ParquetSource
from farandole.errors import DataError, counted

if TYPE_CHECKING:
    from farandole.base.types import Array

_PURPOSE = "reading Parquet"
_AT_ONCE = 1 << 20  # bytes of a row group decoded at a time
_IDLE = 4  # maximum number of idle open files


class ParquetFiles:
    """The files of a scan, opened by a rank. Thread-safe. An unpickled copy opens its own files."""

    def __init__(self, source: ParquetSource) -> None:
        self._source = source
        self._scan = source.scan
        path = source.path if isinstance(source.path, str) else source.path[0]
        self._system = paths.arrow_filesystem(str(path), source.storage_options)[0]
        self.near = isinstance(self._system, require("pyarrow.fs", _PURPOSE).LocalFileSystem)
        self._footers: dict[int, Any] = {}
        self._idle: dict[int, Any] = {}  # open files that no thread is reading
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[ParquetFiles], tuple[ParquetSource]]:
        return ParquetFiles, (self._source,)

    def read(self, block: Sequence[RowGroup]) -> dict[str, Array]:
        """Return the rows of a block in file order: an array for each column."""
        rows = sum(group.rows for group in block)
        parts = self.parts(block)
        first, begin = next(parts), 0
        if len(next(iter(first.values()))) == rows:
            # exhaust the generator, so that the file stays open for the next block
            next(parts, None)
            return first
        whole = {
            name: np.empty((rows, *array.shape[1:]), array.dtype) for name, array in first.items()
        }
        for part in itertools.chain([first], parts):
            end = begin + len(next(iter(part.values())))
            for name, array in part.items():
                whole[name][begin:end] = array
            begin = end
        return whole

    def parts(self, block: Sequence[RowGroup]) -> Iterator[dict[str, Array]]:
        """Yield the rows of a block in several parts."""
        return (part for group in block for part in self._parts(group))

    def _parts(self, group: RowGroup) -> Iterator[dict[str, Array]]:
        """Yield the rows of a row group, about a MiB at a time, because decoding takes several
        times the memory of its result.
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
                    # a remote file is fetched completely for the first batch
                    if self.near or row == group.row:
                        # after reading, so that these rows are known to be from the expected
                        # version
                        self._check(group.file)
                    yield self._arrays(batch, keys, self._source.location(path, row))
                    row += batch.num_rows
            if row < end:  # pyarrow raises no error for a truncated file
                raise OSError(f"the file ends after {counted(row - group.row, 'row')} of them")
        except (pa.ArrowException, OSError) as error:
            self._check(group.file)
            raise DataError(f"{path}, rows {row} to {end - 1}: {error}") from error

    def _arrays(
        self, batch: Any, keys: Mapping[str, Any], location: RowLocation
    ) -> dict[str, Array]:
        pa = require("pyarrow", _PURPOSE)
        arrays = {}
        for column in self._scan.columns:
            name = column.name
            if name in keys:  # null: from a folder k=__HIVE_DEFAULT_PARTITION__
                value = column.fill if keys[name] is None else keys[name]
                array = pa.array([value] * batch.num_rows)
            else:
                array = batch.column(name)
            objects = column.kind in KINDS
            arrays[name] = python_values(array) if objects else values(array, column, location)
            if name == self._source.weight:
                weights.check(arrays[name], column, location)
        return arrays

    def _check(self, number: int) -> None:
        """Raise DataError if the file has changed since the handle was made."""
        path, then = self._scan.files[number], self._scan.versions[number]
        now = checked_version(self._system, path)
        if now != then:
            raise DataError(
                f"{path} has changed since the handle was created: it was {then}, and is now"
                f" {now}. Create the handle when files are complete, and write new data to a new"
                " folder"
            )

    @contextlib.contextmanager
    def _opened(self, number: int) -> Iterator[Any]:
        """Open a file for exclusive use by this thread. Some files stay open, because opening one
        takes a tenth of the time to read a MiB.
        """
        with self._lock:
            file = self._idle.pop(number, None)
        file = file or self._open(number)
        try:
            yield file
        except BaseException:  # also when a consumer stops early
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
        """Open a file. On a remote file system, all columns are fetched at once."""
        pq = require("pyarrow.parquet", _PURPOSE)
        how = {"buffer_size": BUFFER, "pre_buffer": False} if self.near else {"pre_buffer": True}
        known = self._footers.get(number)
        file = pq.ParquetFile(
            self._scan.files[number], filesystem=self._system, metadata=known, **how
        )
        self._footers[number] = file.metadata
        return file
