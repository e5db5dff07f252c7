"""Predictions for Parquet files, by several processes: what is written stays, if the job ends
early.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as fs
import pyarrow.parquet as pq

from farandole.data import paths
from farandole.data.parquet.columns import ColumnOptions, check_names
from farandole.data.parquet.fragments import fragments, keys
from farandole.data.scratch import scratch_folder
from farandole.data.validate import as_int
from farandole.errors import DataError, SettingsError, counted, did_you_mean
from farandole.inference.models import MODEL_OPTIONS, Execution, Model, open_model, pack
from farandole.inference.output_files import InputFile, OutputFile, plan_files, rows_within, share
from farandole.inference.parquet.column_metadata import Field, described, for_spark, of_file
from farandole.inference.parquet.int96 import UNIT, instants
from farandole.inference.parquet.target import Target, check_apart, mark
from farandole.inference.recut import Slice, take
from farandole.inference.returns import DEFAULT, Type, parse
from farandole.inference.stream import (
    BATCH_SIZE,
    PREDICTION,
    PredictOptions,
    Predictor,
    predictions,
)
from farandole.inference.versions import identity, identity_of
from farandole.job.config import Placement

ROWS = 1 << 17  # of a file of the output
_READ, _READ_BYTES = 1 << 14, 4 << 20  # that are read at once
_BUFFER = 1 << 20  # bytes of each column that are read from a disk at once
_GROUP_BYTES = 16 << 20  # of a row group of the output


class Summary(NamedTuple):
    """``rows``: of the output. ``resumed``: files that were there already. ``seconds``: of this
    call.
    """

    rows: int
    files: int
    resumed: int
    seconds: float

    def __str__(self) -> str:
        before = f", {self.resumed} of them from before" if self.resumed else ""
        return (
            f"{counted(self.rows, 'row')} in {counted(self.files, 'file')}{before},"
            f" {self.seconds:.1f} s"
        )


class _PredictJob(NamedTuple):
    """What a rank needs to know."""

    model: Model
    how: PredictOptions
    sources: tuple[InputFile, ...]
    schema: Any  # of all input files: each column has one type
    described: dict[str, Field]  # columns of the input, by Spark
    where: tuple[str, dict[str, Any]]  # a path of the input, and options of its file system
    keep: tuple[str, ...]
    key: str | None
    names: tuple[str, ...]  # of the new columns
    apart: bool  # the fields of a struct are columns
    output: str
    mark: str  # of what decides about it
    todo: tuple[OutputFile, ...]
    # with the model's file, until all ranks have opened it; one rank has its own for as long
    folder: str | None
    threads: int
    device: str


def predict_parquet(
    model: Any,
    input: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    np: int = 1,
    inputs: str | Sequence[str] | None = None,
    output_columns: str | Sequence[str] = PREDICTION,
    keep: Sequence[str] | None = None,
    returns: Any = None,
    batch_size: int = BATCH_SIZE,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dtypes: Mapping[str, Any] | None = None,
    fill: Mapping[str, Any] | None = None,
    decode: Mapping[str, Callable[[bytes], Any]] | None = None,
    stack: bool = False,
    errors: str = "raise",
    key: str | None = None,
    threads: int = 0,
    device: str = "cpu",
    rows_per_file: int = ROWS,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Summary:
    """Predictions for all rows of Parquet files, written to the folder ``output``, by ``np``
    processes of this machine.

    ``input``: a file, a folder, a list of these or a URL. ``inputs``: the columns that the model
    gets; default: the only one, or the only one that holds arrays. A column that only some files
    have is null in the others; one whose types differ has the widest of them. ``output_columns``:
    the name of the new column, or of several, for the fields of a struct. ``keep``: columns of the
    input that are written beside; default: all. ``threads``: of each process; default: the cores
    shared out. ``device``: "cuda" gives each process a GPU of its own. ``rows_per_file``: at most;
    files keep the order of rows. Other arguments: those of ``predict_udf``; ``storage_options``: of
    fsspec's file system.

    A file of the output appears when it is complete. Called again after it ended early, with the
    same arguments (``np`` may differ), it goes on with the files that are missing. ``overwrite``
    begins anew.

    Raises SettingsError and DataError for what cannot be used, and for an output that holds
    something else; DataError (with several processes JobFailedError, with its text) for the first
    row that fails.
    """
    began = time.monotonic()
    packed = pack(model, **{name: options.pop(name) for name in MODEL_OPTIONS if name in options})
    if options:
        raise TypeError(f"predict_parquet() has no argument {next(iter(options))!r}")
    np, threads = as_int("np", np, 1), as_int("threads", threads, 0)
    rows_per_file = as_int("rows_per_file", rows_per_file, 1)
    output = os.fspath(output)
    files, first = fragments(input, storage_options)
    schema = _merged(files, first)
    given = [
        os.fspath(each) for each in ([input] if isinstance(input, (str, os.PathLike)) else input)
    ]
    check_apart(given, [file.path for file in files] if paths.local(given[0]) else [], output)
    columns = _inputs(inputs, schema, key)
    kept = _once(
        _known(schema.names if keep is None else keep, schema, "keep"), "keep", "name it once"
    )
    kind = parse(returns or packed.returns or DEFAULT)
    names = _names(output_columns, kind, kept, errors)
    column_options = ColumnOptions.of(shapes, dtypes, fill, decode)
    check_names(column_options, columns)
    count = threads or max(1, len(os.sched_getaffinity(0)) // np)
    how = PredictOptions(
        tuple(columns),
        kind,
        as_int("batch_size", batch_size, 1),
        column_options,
        errors,
        key is not None,
        stack,
        count,
    )
    where = (given[0], dict(storage_options or {}))
    sources = tuple(_source(file, paths.arrow_filesystem(*where)[0]) for file in files)
    every = plan_files(sources, rows_per_file)
    apart = not isinstance(output_columns, str)
    facts = _facts(packed, how, sources, kept, names, rows_per_file, apart)
    target = Target(output, storage_options, mark(facts))
    target.begin(facts, overwrite)
    todo = tuple(piece for piece in every if not target.has(piece))
    np = min(np, len(todo))
    with scratch_folder("farandole-predict") if np > 1 else contextlib.nullcontext() as folder:
        sent = packed if folder is None else packed._replace(content=b"")
        job = _PredictJob(
            sent,
            how,
            sources,
            schema,
            described(files, schema),
            where,
            tuple(kept),
            key,
            tuple(names),
            apart,
            output,
            mark(facts),
            todo,
            folder,
            count,
            device,
        )
        if folder is not None and packed.content:
            Path(folder, packed.file_name).write_bytes(packed.content)
        try:
            _run(job, np)
        except BaseException:
            with contextlib.suppress(OSError):
                # what ranks were writing that another one's failure, or a signal, has ended
                target.clean()
            raise
    _compare(sources, paths.arrow_filesystem(*where)[0])
    target.finish(every)
    return Summary(
        sum(each.rows for each in sources),
        len(every),
        len(every) - len(todo),
        time.monotonic() - began,
    )


def _merged(files: Sequence[Any], first: Any) -> Any:
    """The columns of all files, so that all files of the output have the same ones. A type is the
    widest that files have, and a column that a file does not have is null there. DataError where no
    type holds both.
    """
    own = {name for file in files for name in file.physical_schema.names}
    found, last = pa.schema([field for field in first if field.name not in own]), None  # of paths
    for file in files:
        if last is not None and file.physical_schema.equals(last):
            continue
        last = file.physical_schema
        try:
            found = pa.unify_schemas([found, instants(file)], promote_options="permissive")
        except pa.ArrowException as error:
            raise DataError(
                f"{file.path}: a column has another type than in {files[0].path}, and none holds"
                f" both ({error}): convert one of the files, or predict for them one by one"
            ) from None
    names = dict.fromkeys([*first.names, *found.names])
    return pa.schema([found.field(name) for name in names])


def _facts(
    model: Model,
    how: PredictOptions,
    sources: Sequence[InputFile],
    kept: Sequence[str],
    names: Sequence[str],
    rows: int,
    apart: bool,
) -> dict[str, Any]:
    """What decides about the output, as JSON has it. A model of a file is known by its version."""
    chosen = {
        name: value for name, value in model.options if name not in ("trust_pickle", "backend")
    }
    decode = {
        name: identity_of(function) for name, function in sorted(how.column_options.decode.items())
    }
    facts = {
        "model": model.identity or identity(model.content),
        "options of the model": {name: _plain(value) for name, value in chosen.items()},
        "input": [each._asdict() for each in sources],
        "columns": {
            "inputs": how.inputs,
            "keep": kept,
            "output": names,
            "returns": str(how.returns),
            "apart": apart,
        },
        "options": [*map(str, (how.column_options[:3], decode, how.stack, how.errors, rows))],
    }
    return dict(json.loads(json.dumps(facts, default=str)))


def _plain(value: Any) -> str:
    return identity(value) if isinstance(value, bytes) else str(value)


def _source(file: Any, system: Any) -> InputFile:
    metadata = file.metadata
    size = sum(
        metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)
    )
    written, length = _version(file.path, system)
    return InputFile(
        file.path, metadata.num_rows, size, written, tuple(sorted(keys(file).items())), length
    )


def _version(path: str, system: Any) -> tuple[int, int]:
    """When a file was written, and its size."""
    found = system.get_file_info(path)
    return (-1 if found.mtime_ns is None else found.mtime_ns), (
        -1 if found.size is None else found.size
    )


def _compare(sources: Sequence[InputFile], system: Any) -> None:
    """DataError for a file of the input that was written anew while it was read."""
    for source in sources:
        if _version(source.path, system) != (source.written, source.size):
            raise DataError(
                f"{source.path} was written anew while it was read: some predictions are of its"
                " rows before. Say overwrite (--overwrite)"
            )


def _known(names: Sequence[str], schema: Any, option: str) -> list[str]:
    for name in names:
        if name not in schema.names:
            near = did_you_mean(name, schema.names)
            raise SettingsError(
                f"{option}: the input has no column {name!r} (it has"
                f" {', '.join(schema.names)}){near}"
            )
    return list(names)


def _once(names: list[str], option: str, cure: str) -> list[str]:
    """``names``. SettingsError for one that is there twice."""
    if doubled := [name for number, name in enumerate(names) if name in names[:number]]:
        raise SettingsError(f"{option} names {doubled[0]!r} twice: {cure}")
    return names


def _inputs(inputs: str | Sequence[str] | None, schema: Any, key: str | None) -> list[str]:
    """The columns that the model gets."""
    if key is not None:
        _known([key], schema, "key")
    if inputs is not None:
        names = _known([inputs] if isinstance(inputs, str) else inputs, schema, "inputs")
        return _once(names, "inputs", "name it once, and use it twice in the model")
    others = [field for field in schema if field.name != key]
    arrays = [field for field in others if pa.types.is_nested(field.type)]
    chosen = others if len(others) == 1 else arrays
    if len(chosen) != 1:
        raise SettingsError(
            f"the input has columns {', '.join(schema.names)}: say which of them the model gets"
            " (inputs=, --columns)"
        )
    return [chosen[0].name]


def _names(output: str | Sequence[str], kind: Type, kept: Sequence[str], errors: str) -> list[str]:
    """Of the new columns."""
    names = [output] if isinstance(output, str) else list(output)
    if errors not in ("raise", "column"):
        raise SettingsError(f"errors={errors!r} must be 'raise' or 'column'")
    if not isinstance(output, str) and len(names) != len(kind.fields):
        raise SettingsError(
            f"{len(names)} output columns are named, and returns='{kind}' has {len(kind.fields)}"
            " fields"
        )
    if errors == "column":
        names.append(f"{names[0]}_error")
    if doubled := [name for number, name in enumerate(names) if name in names[:number]]:
        raise SettingsError(
            f"two new columns are named {doubled[0]!r}: give other names with output_columns="
        )
    if taken := [name for name in names if name in kept]:
        raise SettingsError(
            f"the input has a column {taken[0]!r} already: name another one with output_columns="
        )
    return names


def _run(job: _PredictJob, np: int) -> None:
    if np <= 1:
        _work(job, 0, 1)
        return
    from farandole.job.launch import api

    api.run(_on_rank, (job,), np=np, launcher="local")


def _on_rank(job: _PredictJob) -> None:
    placement = Placement.from_env(os.environ)
    device = f"cuda:{placement.local_rank}" if job.device == "cuda" else job.device
    _work(job._replace(device=device), placement.rank, placement.size)


def _work(job: _PredictJob, rank: int, size: int) -> None:
    mine = share(job.todo, rank, size)
    if not mine:
        return
    predict = open_model(job.model, Execution(job.threads, job.device), job.folder)
    if job.folder is not None:
        _opened(job.folder, rank, size)
    system = paths.arrow_filesystem(*job.where)[0]
    target = Target(job.output, job.where[1], job.mark)
    about = for_spark(_empty(job).schema, job.described)
    for piece in mine:
        target.write(piece, _grouped(_tables(piece, job, predict, system)), about)


def _opened(folder: str, rank: int, size: int) -> None:
    """The last rank that has opened the model removes its file, so that a driver that is killed
    leaves none. Whatever maps it keeps it.
    """
    Path(folder, f"{rank}.opened").touch()
    if len([*Path(folder).glob("*.opened")]) == size:
        shutil.rmtree(folder, ignore_errors=True)


def _tables(piece: OutputFile, job: _PredictJob, predict: Predictor, system: Any) -> Iterator[Any]:
    """A piece's rows with their predictions, some at a time; at least one table."""
    source = job.sources[piece.file]
    if piece.begin == piece.end:
        yield _empty(job)
    columns = [*job.how.inputs, *([job.key] if job.key else [])]
    column_options = pa.schema(
        [job.schema.field(name) for name in dict.fromkeys([*job.keep, *columns])]
    )
    read = _batches(system, source, piece, column_options)
    waiting: deque[Slice[Any]] = deque()
    chunks = _kept(read, columns, job.keep, waiting)
    for found in predictions(chunks, predict, job.how, source.path, piece.begin):
        kept = [
            each.chunk.slice(each.begin, each.end - each.begin)
            for each in take(waiting, len(found))
        ]
        yield _with(pa.Table.from_batches(kept), pa.chunked_array([found]), job)


def _kept(
    batches: Iterator[Any], columns: Sequence[str], keep: Sequence[str], waiting: deque[Slice[Any]]
) -> Iterator[Any]:
    """The model's columns of each batch; those that are kept wait for its predictions."""
    for batch in batches:
        waiting.append(Slice(batch.select(list(keep)), 0, batch.num_rows))
        yield [batch.column(name) for name in columns]


def _grouped(tables: Iterator[Any]) -> Iterator[Any]:
    """Tables of the size of a row group."""
    waiting: list[Any] = []
    for table in tables:
        waiting.append(table)
        if sum(each.nbytes for each in waiting) >= _GROUP_BYTES:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def _batches(system: Any, source: InputFile, piece: OutputFile, schema: Any) -> Iterator[Any]:
    """Rows of a piece, from the row groups that hold them. A row group is not read as a whole,
    where it is near.
    """
    constant = dict(source.keys)
    own = [name for name in schema.names if name not in constant]
    rows = rows_within(source, _READ, _READ_BYTES)
    near = isinstance(system, fs.LocalFileSystem)
    how = {
        "pre_buffer": not near,
        "buffer_size": _BUFFER if near else 0,
        "coerce_int96_timestamp_unit": UNIT,
    }
    with pq.ParquetFile(source.path, filesystem=system, **how) as file:
        row, about = 0, of_file(file.metadata.metadata)
        for number in range(file.metadata.num_row_groups):
            end = row + file.metadata.row_group(number).num_rows
            if row < piece.end and end > piece.begin:
                found = file.iter_batches(rows, row_groups=[number], columns=own, use_threads=False)
                for batch in _within(found, piece.begin - row, piece.end - row):
                    yield _completed(batch, constant, schema, source.path, about)
            row = end


def _within(batches: Iterator[Any], begin: int, end: int) -> Iterator[Any]:
    """Rows ``begin`` to ``end - 1`` of batches; those after them are not read."""
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
    """With the columns that stand in the file's path, as in year=2024/part.parquet, and those that
    only other files have, which are null. ``about``: metadata of the columns. DataError for a value
    that the type of all files does not hold.
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
            f"{path}, column {name!r}: it is {column.type} here, and {kind} for all files: {error}"
        ) from None


def _empty(job: _PredictJob) -> Any:
    """The columns, without a row."""
    kept = pa.schema([job.schema.field(name) for name in job.keep]).empty_table()
    return _with(kept, pa.chunked_array([], job.how.type), job)


def _with(table: Any, column: Any, job: _PredictJob) -> Any:
    """Kept columns, and the new ones."""
    columns = [_field(column, 0), _field(column, 1)] if job.how.errors == "column" else [column]
    if job.apart:
        fields = len(job.how.returns.fields)
        columns[:1] = [_field(columns[0], number) for number in range(fields)]
    for name, each in zip(job.names, columns, strict=True):
        table = table.append_column(name, each)
    return table


def _field(column: Any, number: int) -> Any:
    """A field of a struct, null where the struct is."""
    kind = column.type.field(number).type
    return pa.chunked_array([pc.struct_field(chunk, number) for chunk in column.chunks], kind)
