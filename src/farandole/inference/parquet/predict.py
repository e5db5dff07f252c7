"""Predictions for Parquet files, by several processes. Completed files remain if the job ends
early.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle

from farandole.data import paths
from farandole.data.parquet.columns import ColumnOptions, check_names
from farandole.data.parquet.fragments import fragments, keys
from farandole.data.scratch import scratch_folder
from farandole.data.validate import as_int
from farandole.errors import DataError, counted
from farandole.inference.models import Model, pack_with
from farandole.inference.output_files import InputFile, plan_files
from farandole.inference.parquet.column_metadata import described
from farandole.inference.parquet.columns import (
    input_columns,
    kept_columns,
    merged_schema,
    output_names,
)
from farandole.inference.parquet.rank import PredictJob, run_ranks
from farandole.inference.parquet.target import Target, check_apart, mark
from farandole.inference.returns import DEFAULT, parse
from farandole.inference.stream import BATCH_SIZE, PREDICTION, PredictOptions
from farandole.inference.versions import identity, identity_of, identity_of_model

ROWS = 1 << 17  # rows of an output file


class Summary(NamedTuple):
    """The summary of a call. ``rows``: the rows of the output. ``resumed``: the number of files
    that already existed. ``seconds``: the duration of this call.
    """

    rows: int
    files: int
    resumed: int
    seconds: float

    def __str__(self) -> str:
        before = f", {self.resumed} of them written earlier" if self.resumed else ""
        return (
            f"{counted(self.rows, 'row')} in {counted(self.files, 'file')}{before},"
            f" {self.seconds:.1f} s"
        )


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
    model_version: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Summary:
    """Predict all rows of Parquet files with ``np`` processes of this machine, and write the
    predictions to the folder ``output``.

    ``input``: a file, a folder, a list of these or a URL. ``inputs``: the model's input columns;
    default: the only column, or the only column of arrays. A column missing from some files is null
    in them; a column with different types has the widest of them. ``output_columns``: the name of
    the new column, or the names of several for the fields of a struct. ``keep``: input columns to
    copy to the output; default: all. ``threads``: threads per process; default: an equal share of
    the cores. ``device``: "cuda" assigns each process its own GPU. ``rows_per_file``: the maximum
    number of rows in a file; files keep the order of rows. ``storage_options``: options for
    fsspec's file system. Other arguments: as for ``predict_udf``.

    An output file appears once it is complete. After an interruption, a call with the same
    arguments (``np`` may differ) resumes with the missing files. ``overwrite``: start from the
    beginning. Two model objects are the same model if their weights, code and constants are equal.
    ``model_version``: a name that identifies the model instead, for objects that differ in each
    process.

    Raises SettingsError and DataError for unusable arguments, files and columns, and for an output
    folder with other contents; DataError (with several processes JobFailedError, with its text) for
    the first row that fails.
    """
    began = time.monotonic()
    packed = _identified(pack_with(model, options), model, model_version)
    if options:
        raise TypeError(f"predict_parquet() has no argument {next(iter(options))!r}")
    np = as_int("np", np, 1)
    threads = as_int("threads", threads, 0) or max(1, len(os.sched_getaffinity(0)) // np)
    rows_per_file = as_int("rows_per_file", rows_per_file, 1)
    output = os.fspath(output)
    files, first = fragments(input, storage_options)
    schema = merged_schema(files, first)
    input_paths = [
        os.fspath(path) for path in ([input] if isinstance(input, (str, os.PathLike)) else input)
    ]
    near = paths.local(input_paths[0]) is not None
    check_apart(input_paths, [file.path for file in files] if near else [], output)
    columns = input_columns(inputs, schema, key)
    kept = kept_columns(keep, schema)
    kind = parse(returns or packed.returns or DEFAULT)
    names = output_names(output_columns, kind, kept, errors)
    column_options = ColumnOptions.of(shapes, dtypes, fill, decode)
    check_names(column_options, columns)
    predict_options = PredictOptions(
        inputs=tuple(columns),
        returns=kind,
        batch_size=as_int("batch_size", batch_size, 1),
        column_options=column_options,
        errors=errors,
        key=key is not None,
        stack=stack,
        threads=threads,
    )
    job = PredictJob(
        model=packed,
        options=predict_options,
        input_path=input_paths[0],
        storage_options=dict(storage_options or {}),
        schema=schema,
        spark_fields=described(files, schema),
        keep=tuple(kept),
        key=key,
        output=output,
        names=tuple(names),
        unpacked=not isinstance(output_columns, str),
        device=device,
    )
    sources = tuple(_source(file, job.input_system()) for file in files)
    return _predict(job._replace(sources=sources), np, rows_per_file, overwrite, began)


def _predict(
    job: PredictJob, np: int, rows_per_file: int, overwrite: bool, began: float
) -> Summary:
    """Write the missing files, with up to ``np`` processes."""
    facts = _facts(job, rows_per_file)
    job = job._replace(mark=mark(facts))
    target = Target(job.output, job.storage_options, job.mark)
    target.begin(facts, overwrite)
    every = plan_files(job.sources, rows_per_file)
    todo = tuple(file for file in every if not target.has(file))
    try:
        _run(job._replace(todo=todo), min(np, len(todo)))
    except BaseException:
        with contextlib.suppress(OSError):
            # removes unfinished files of ranks ended by another rank's failure or a signal
            target.clean()
        raise
    _check_unchanged(job.sources, job.input_system())
    target.finish(every)
    return Summary(
        rows=sum(source.rows for source in job.sources),
        files=len(every),
        resumed=len(every) - len(todo),
        seconds=time.monotonic() - began,
    )


def _run(job: PredictJob, np: int) -> None:
    """Predict on ``np`` ranks. Several ranks receive the model as a file, which they map."""
    if np <= 1:
        run_ranks(job, np)
        return
    with scratch_folder("farandole-predict") as folder:
        if job.model.content:
            Path(folder, job.model.file_name).write_bytes(job.model.content)
        sent = job.model._replace(content=b"")
        run_ranks(job._replace(model=sent, model_folder=folder), np)


def _facts(job: PredictJob, rows_per_file: int) -> dict[str, Any]:
    """Return the facts that determine the output, as JSON. Models in files are identified by their
    version.
    """
    model, options = job.model, job.options
    chosen = {
        name: value
        for name, value in model.options
        if name not in ("trust_pickle", "backend")
        # the version also covers the user's classes
        and not (name == "custom_objects" and "version" in model.identity)
    }
    decoders = sorted(options.column_options.decode.items())
    decode = {name: identity_of(function) for name, function in decoders}
    reading = (options.column_options[:3], decode, options.stack, options.errors, rows_per_file)
    facts = {
        "model": model.identity,
        "options of the model": {name: _plain(value) for name, value in chosen.items()},
        "input": [source._asdict() for source in job.sources],
        "columns": {
            "inputs": options.inputs,
            "keep": job.keep,
            "output": job.names,
            "returns": str(options.returns),
            "apart": job.unpacked,
        },
        "options": [*map(str, reading)],
    }
    return dict(json.loads(json.dumps(facts, default=str)))


def _identified(packed: Model, model: Any, version: str | None) -> Model:
    """Return the packed model with an identity that is equal in all processes."""
    if version is not None:
        return packed._replace(identity={"version": version})
    if packed.identity:  # a file has one
        return packed
    parts = (
        identity(packed.content)
        if isinstance(model, Model)
        else identity_of_model(model, packed.content)
    )
    return packed._replace(identity=parts)


def _plain(value: Any) -> Any:
    return identity_of(cloudpickle.loads(value)) if isinstance(value, bytes) else str(value)


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
    """Return the modification time and the size of a file."""
    info = system.get_file_info(path)
    return (-1 if info.mtime_ns is None else info.mtime_ns), (
        -1 if info.size is None else info.size
    )


def _check_unchanged(sources: Sequence[InputFile], system: Any) -> None:
    """Raise DataError for an input file overwritten during reading."""
    for source in sources:
        if _version(source.path, system) != (source.written, source.size):
            raise DataError(
                f"{source.path} was overwritten while it was read, so some predictions belong to"
                " its earlier rows. Rerun with overwrite (--overwrite)"
            )
