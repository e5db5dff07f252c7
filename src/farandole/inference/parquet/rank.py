"""The work of one rank: the rows of its files, with their predictions."""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as fs
import pyarrow.parquet as pq

from farandole.data import paths
from farandole.errors import DataError
from farandole.inference.models import Execution, Model, open_model
from farandole.inference.output_files import InputFile, OutputFile, rows_within, share
from farandole.inference.parquet.column_metadata import Field, for_spark, of_file
from farandole.inference.parquet.int96 import UNIT
from farandole.inference.parquet.target import Target
from farandole.inference.recut import Slice, take
from farandole.inference.stream import PredictOptions, Predictor, predictions
from farandole.job.config import Placement

_READ_ROWS = 1 << 14  # maximum rows read at once
_READ_BYTES = 4 << 20
_BUFFER = 1 << 20  # bytes of each column read from disk at a time
_GROUP_BYTES = 16 << 20  # a row group of the output


class PredictJob(NamedTuple):
    """The arguments of a rank.

    ``input_path``: one of the input paths. ``storage_options``: options of the input's and output's
    file systems. ``schema``: the columns of all input files, each with one type. ``spark_fields``:
    Spark's descriptions of the input columns. ``names``: the names of the new columns.
    ``unpacked``: whether the fields of a struct become columns. ``mark``: a digest of the facts
    that determine the output. ``model_folder``: holds the model's file until all ranks have opened
    it; a single rank has the model itself.
    """

    model: Model
    options: PredictOptions
    input_path: str
    storage_options: dict[str, Any]
    schema: Any
    spark_fields: dict[str, Field]
    keep: tuple[str, ...]
    key: str | None
    output: str
    names: tuple[str, ...]
    unpacked: bool
    device: str
    sources: tuple[InputFile, ...] = ()
    mark: str = ""
    todo: tuple[OutputFile, ...] = ()
    model_folder: str | None = None

    def input_system(self) -> Any:
        """Return pyarrow's file system of the input."""
        return paths.arrow_filesystem(self.input_path, self.storage_options)[0]


def run_ranks(job: PredictJob, np: int) -> None:
    """Predict on ``np`` processes of this machine, including this one."""
    if np <= 1:
        _work(job, 0, 1)
        return
    from farandole.job.launch import api

    api.run(_on_rank, (job,), np=np, launcher="local")


def _on_rank(job: PredictJob) -> None:
    placement = Placement.from_env(os.environ)
    device = f"cuda:{placement.local_rank}" if job.device == "cuda" else job.device
    _work(job._replace(device=device), placement.rank, placement.size)


def _work(job: PredictJob, rank: int, size: int) -> None:
    mine = share(job.todo, rank, size)
    if not mine:
        return
    predict = open_model(job.model, Execution(job.options.threads, job.device), job.model_folder)
    if job.model_folder is not None:
        _remove_when_opened(job.model_folder, rank, size)
    system = job.input_system()
    target = Target(job.output, job.storage_options, job.mark)
    metadata = for_spark(_empty(job).schema, job.spark_fields)
    for file in mine:
        target.write(file, _grouped(_tables(file, job, predict, system)), metadata)


def _remove_when_opened(folder: str, rank: int, size: int) -> None:
    """Remove the model's file once all ranks have opened it, so that a killed driver leaves none.
    Mapped memory stays valid.
    """
    Path(folder, f"{rank}.opened").touch()
    if len([*Path(folder).glob("*.opened")]) == size:
        shutil.rmtree(folder, ignore_errors=True)


def _tables(file: OutputFile, job: PredictJob, predict: Predictor, system: Any) -> Iterator[Any]:
    """Yield the rows of a file with their predictions, in several tables, at least one."""
    source = job.sources[file.source]
    if file.begin == file.end:
        yield _empty(job)
    columns = [*job.options.inputs, *([job.key] if job.key else [])]
    names = dict.fromkeys([*job.keep, *columns])
    schema = pa.schema([job.schema.field(name) for name in names])
    read = _batches(system, source, file, schema)
    waiting: deque[Slice[Any]] = deque()
    chunks = _kept(read, columns, job.keep, waiting)
    for predicted in predictions(chunks, predict, job.options, source.path, file.begin):
        kept = [
            each.chunk.slice(each.begin, each.end - each.begin)
            for each in take(waiting, len(predicted))
        ]
        yield _with(pa.Table.from_batches(kept), pa.chunked_array([predicted]), job)


def _kept(
    batches: Iterator[Any], columns: Sequence[str], keep: Sequence[str], waiting: deque[Slice[Any]]
) -> Iterator[Any]:
    """Yield the model's columns of each batch, and queue its kept columns until the predictions
    arrive.
    """
    for batch in batches:
        waiting.append(Slice(batch.select(list(keep)), 0, batch.num_rows))
        yield [batch.column(name) for name in columns]


def _grouped(tables: Iterator[Any]) -> Iterator[Any]:
    """Yield tables of the size of a row group."""
    waiting: list[Any] = []
    for table in tables:
        waiting.append(table)
        if sum(each.nbytes for each in waiting) >= _GROUP_BYTES:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def _batches(system: Any, source: InputFile, target: OutputFile, schema: Any) -> Iterator[Any]:
    """Yield a file's rows from their row groups. Local row groups are read in parts."""
    constant = dict(source.keys)
    own = [name for name in schema.names if name not in constant]
    rows = rows_within(source, _READ_ROWS, _READ_BYTES)
    near = isinstance(system, fs.LocalFileSystem)
    reading = {
        "pre_buffer": not near,
        "buffer_size": _BUFFER if near else 0,
        "coerce_int96_timestamp_unit": UNIT,
    }
    with pq.ParquetFile(source.path, filesystem=system, **reading) as file:
        row = 0
        about = of_file(file.metadata.metadata)
        for number in range(file.metadata.num_row_groups):
            end = row + file.metadata.row_group(number).num_rows
            if row < target.end and end > target.begin:
                batches = file.iter_batches(
                    rows, row_groups=[number], columns=own, use_threads=False
                )
                for batch in _within(batches, target.begin - row, target.end - row):
                    yield _completed(batch, constant, schema, source.path, about)
            row = end


def _within(batches: Iterator[Any], begin: int, end: int) -> Iterator[Any]:
    """Yield rows ``begin`` to ``end - 1`` of batches; later rows are not read."""
    row = 0
    for batch in batches:
        first, last = max(begin - row, 0), min(end - row, batch.num_rows)
        if first < last:
            yield batch.slice(first, last - first)
        row += batch.num_rows
        if row >= end:
            return


def _completed(
    batch: Any, constant: Mapping[str, Any], schema: Any, path: str, about: Mapping[bytes, bytes]
) -> Any:
    """Add the columns in the file's path, such as year=2024/part.parquet, and null columns for
    columns that only other files have.

    ``about``: the columns' metadata. Raises DataError for a value that does not fit the common type
    of all files.
    """
    columns = []
    for name, kind in zip(schema.names, schema.types, strict=True):
        if name in constant:
            columns.append(pa.array([constant[name]] * batch.num_rows, kind))
        elif name not in batch.schema.names:
            columns.append(pa.nulls(batch.num_rows, kind))
        else:
            columns.append(_as(batch.column(name), kind, name, path))
    return pa.RecordBatch.from_arrays(columns, schema.names, metadata=about)


def _as(column: Any, kind: Any, name: str, path: str) -> Any:
    if column.type == kind:
        return column
    try:
        return column.cast(kind)
    except pa.ArrowException as error:
        raise DataError(
            f"{path}, column {name!r} has type {column.type} here, but {kind} in all files: {error}"
        ) from None


def _empty(job: PredictJob) -> Any:
    """Return the columns without rows."""
    kept = pa.schema([job.schema.field(name) for name in job.keep]).empty_table()
    return _with(kept, pa.chunked_array([], job.options.type), job)


def _with(table: Any, column: Any, job: PredictJob) -> Any:
    """Return the kept columns and the new columns."""
    columns = [_field(column, 0), _field(column, 1)] if job.options.errors == "column" else [column]
    if job.unpacked:
        fields = len(job.options.returns.fields)
        columns[:1] = [_field(columns[0], number) for number in range(fields)]
    for name, each in zip(job.names, columns, strict=True):
        table = table.append_column(name, each)
    return table


def _field(column: Any, number: int) -> Any:
    """Return a field of a struct, null where the struct is null."""
    kind = column.type.field(number).type
    return pa.chunked_array([pc.struct_field(chunk, number) for chunk in column.chunks], kind)
