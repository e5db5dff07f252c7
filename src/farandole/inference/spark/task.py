"""Predictions of one partition, in the Python worker."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import cloudpickle

from farandole.base.optional import require
from farandole.data.parquet.columns import ColumnOptions, check_names
from farandole.errors import SettingsError, counted
from farandole.inference.models import Execution, Model, open_model
from farandole.inference.returns import Type
from farandole.inference.spark.pandas_columns import arrow_chunk, to_pandas
from farandole.inference.stream import Chunk, PredictOptions, predictions

_PURPOSE = "inference"
# in a Python worker: digests of the models loaded when objects were frozen
_settled: set[str] = set()
ByColumn = Mapping[str, Any] | Sequence[Any]


class PredictTask(NamedTuple):
    """The arguments of a task, without the model's content. ``options``: shapes, dtypes, fill and
    decode, by name, or one for each column.
    """

    model: Model
    returns: Type
    batch_size: int
    inputs: tuple[str, ...] | None
    options: dict[str, Any]
    errors: str = "raise"
    key: bool = False
    stack: bool = False
    threads: int | None = None
    device: str | None = None
    cure: str = ""

    @property
    def keys(self) -> int:
        """Return the number of columns that identify rows and are not model inputs."""
        return 1 if self.key else 0


def task(job_bytes: bytes, content: Any, masked: bool, batches: Iterator[Any]) -> Iterator[Any]:
    """Predict the rows of one partition, in a Python worker.

    ``batches``: the columns, as Spark passes them to an Arrow or pandas function on iterators; the
    result is of the same kind. ``masked``: whether the same number of columns follows, holding the
    types of null values and of lists with null.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    job: PredictTask = cloudpickle.loads(job_bytes)
    columns = (each if isinstance(each, tuple) else (each,) for each in batches)
    first = next(columns, None)
    if first is None:
        return
    threads = job.threads or context.cpus()
    options = predict_options(job, len(first) // 2 if masked else len(first), threads)
    execution = Execution(threads, job.device or device_of(context))
    predict = open_model(job.model, execution, _folder(), lambda: _content(content))
    _freeze_objects(job.model.digest)
    arrow = isinstance(first[0], require("pyarrow", _PURPOSE).Array)
    chunks: Iterator[Chunk] = itertools.chain([first], columns)
    if not arrow:
        chunks = (arrow_chunk(each, masked, options) for each in chunks)
    predicted = predictions(chunks, predict, options, f"partition {context.partitionId()}")
    yield from predicted if arrow else map(to_pandas, predicted)


def predict_options(job: PredictTask, columns: int, threads: int) -> PredictOptions:
    """Return the options for this number of columns. Raises SettingsError if ``inputs`` has a
    different number.
    """
    names = job.inputs or tuple(f"input {number}" for number in range(columns - job.keys))
    if len(names) + job.keys != columns:
        key = " and a key" if job.key else ""
        raise SettingsError(
            f"predict_udf received {counted(columns, 'column')}, but inputs={list(names)}{key}"
            f" names {len(names) + job.keys}"
        )
    options = {
        name: _by_name(name, job.options.get(name, {}), names) for name in ColumnOptions._fields
    }
    column_options = ColumnOptions(**options)
    check_names(column_options, names)
    return PredictOptions(
        inputs=names,
        returns=job.returns,
        batch_size=job.batch_size,
        column_options=column_options,
        errors=job.errors,
        key=job.key,
        stack=job.stack,
        threads=threads,
        cure=job.cure,
    )


def _by_name(option: str, value: Any, names: Sequence[str]) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise SettingsError(
            f"{option}={value!r} must be a dict by column, or a list with one for each column"
        )
    if len(value) != len(names):
        raise SettingsError(
            f"{option}={value!r} has {counted(len(value), 'value')} for"
            f" {counted(len(names), 'column')}"
            f" ({', '.join(names)})"
        )
    return {name: each for name, each in zip(names, value, strict=True) if each is not None}


def _content(content: Any) -> bytes:
    """Return the model's file content, without a copy in this process."""
    if isinstance(content, bytes):
        return content
    data: bytes = content.value
    with contextlib.suppress(AttributeError):
        del content._value  # Spark rereads its own file if another model needs it
    return data


def _freeze_objects(digest: str) -> None:
    """Exempt a framework's objects from garbage collection.

    Spark's daemon collects garbage after each task, and would visit every object of a framework
    each time, which takes longer than many tasks. Garbage of an earlier model is collected first.
    """
    if digest not in _settled:
        _settled.add(digest)
        gc.unfreeze()
        gc.collect()
        gc.freeze()


def _folder() -> str | None:
    """Return Spark's folder for files of this application on this executor, which Spark removes
    with the application.
    """
    from pyspark import SparkFiles

    folder = str(SparkFiles.getRootDirectory())
    return folder if os.access(folder, os.W_OK) else None


def device_of(context: Any) -> str:
    """Return the GPU that Spark assigned to the task, or the CPU."""
    gpu = context.resources().get("gpu")
    return f"cuda:{gpu.addresses[0]}" if gpu is not None and gpu.addresses else "cpu"
