"""Search for the best batch size and number of threads for a model, on a sample of its rows."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from farandole.base.optional import require
from farandole.data.parquet.columns import ColumnOptions, check_names
from farandole.errors import DataError, counted
from farandole.inference.models import Execution, Model, open_model, pack_with
from farandole.inference.returns import DEFAULT, parse
from farandole.inference.stream import PredictOptions, Predictor, predictions

SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_ENOUGH = 0.97  # fraction of the best rate that suffices: a smaller batch needs less memory
_TIMES = 3  # measurements of each setting, alternating with the others
_LEAST = 0.02  # minimum seconds of one measurement


class Measured(NamedTuple):
    """A measured setting. ``rate``: rows per second of one process, the median of the
    measurements.
    """

    batch_size: int
    threads: int
    rate: float


class TuningResult(NamedTuple):
    """The measurements and the choice. Pass ``options`` to ``predict_udf``, ``transform`` or
    ``predict_parquet``: ``predict_udf(model, **tuned.options)``.
    """

    batch_size: int
    threads: int
    arrow_rows: int
    tasks: int
    measured: tuple[Measured, ...]

    @property
    def options(self) -> dict[str, int]:
        return {"batch_size": self.batch_size, "threads": self.threads}

    @property
    def conf(self) -> dict[str, str]:
        """Return Spark settings: a core for each thread of a task, and Arrow batches of at least
        one model batch.
        """
        return {
            "spark.task.cpus": str(self.threads),
            "spark.sql.execution.arrow.maxRecordsPerBatch": str(self.arrow_rows),
        }

    def __str__(self) -> str:
        best = max(each.rate for each in self.measured)
        lines = ["batch size  threads  rows/s of one process"]
        for each in self.measured:
            mark = (
                "  <- chosen"
                if (each.batch_size, each.threads) == (self.batch_size, self.threads)
                else ""
            )
            lines.append(
                f"{each.batch_size:>10}  {each.threads:>7}  {each.rate:>12.0f}"
                f" ({each.rate / best:.0%}){mark}"
            )
        tasks, threads = counted(self.tasks, "task"), counted(self.threads, "thread")
        fill = "fills" if self.tasks == 1 else "fill"
        lines.append(f"{tasks} of {threads} {fill} this machine")
        return "\n".join(lines)


def tune(
    model: Any,
    sample: Any,
    *,
    inputs: Sequence[str] | None = None,
    returns: Any = None,
    seconds: float = 20.0,
    sizes: Sequence[int] = SIZES,
    threads: Sequence[int] | None = None,
    device: str = "cpu",
    shapes: Mapping[str, Any] | None = None,
    dtypes: Mapping[str, Any] | None = None,
    fill: Mapping[str, Any] | None = None,
    decode: Mapping[str, Callable[[bytes], Any]] | None = None,
    stack: bool = False,
    **options: Any,
) -> TuningResult:
    """Measure a model on a sample of its rows, on this machine, and choose the batch size and the
    threads of a process.

    ``sample``: an Arrow table, a pandas or Spark DataFrame (its first 10,000 rows), or a dict of
    columns. ``inputs``: the model's input columns; default: all. ``seconds``: approximate duration.
    ``sizes``, ``threads``: values to try; default: powers of 2, and 1, 2, 4 ... cores. Measure on
    an idle machine like the executors. Other arguments: as for ``predict_udf``.

    The choice has the highest rate of rows per core and, within 3 percent of it, the smallest batch
    size. Raises the errors of ``predict_udf``, and DataError for an empty sample.
    """
    packed = pack_with(model, options)
    if options:
        raise TypeError(f"tune() has no argument {next(iter(options))!r}")
    table = _table(sample)
    names = tuple(inputs or table.column_names)
    if not table.num_rows:
        raise DataError("the sample has no rows")
    column_options = ColumnOptions.of(shapes, dtypes, fill, decode)
    check_names(column_options, names)
    predict_options = PredictOptions(
        names, parse(returns or packed.returns or DEFAULT), 1, column_options, stack=stack
    )
    columns = [table.column(name).combine_chunks() for name in names]
    cores = len(os.sched_getaffinity(0))
    counts = threads or [count for count in (1, 2, 4, 8, 16, 32) if count <= cores]
    settings = [(size, count) for count in counts for size in sizes]
    rates = _rates(packed, columns, predict_options, settings, seconds, device)
    measured = tuple(
        Measured(size, count, rates[size, count])
        for size, count in settings
        if (size, count) in rates
    )
    chosen = choose(measured)
    return TuningResult(
        batch_size=chosen.batch_size,
        threads=chosen.threads,
        arrow_rows=max(chosen.batch_size, 10_000),
        tasks=cores // chosen.threads,
        measured=measured,
    )


def choose(measured: Sequence[Measured]) -> Measured:
    """Return the setting with the highest rate per thread; among nearly equal rates, the smallest
    batch. Pure.
    """
    best = max(each.rate / each.threads for each in measured)
    good = [each for each in measured if each.rate / each.threads >= _ENOUGH * best]
    return min(good, key=lambda each: (each.threads, each.batch_size))


def _rates(
    model: Model,
    columns: Sequence[Any],
    predict_options: PredictOptions,
    settings: Sequence[tuple[int, int]],
    seconds: float,
    device: str,
) -> dict[tuple[int, int], float]:
    """Return the rows per second of each setting.

    Settings alternate, so that disturbances affect all of them. Some frameworks fix a process's
    number of threads, so settings with the same number are consecutive.
    """
    began, by_setting = time.monotonic(), {}
    counts = list(dict.fromkeys(count for _, count in settings))
    for number, count in enumerate(counts):
        mine = [size for size, each in settings if each == count]
        predict = open_model(model, Execution(count, device))
        until = began + seconds * (number + 1) / len(counts)
        samples: dict[int, list[float]] = {size: [] for size in mine}
        for turn in range(_TIMES + 1):
            for size in mine:
                if turn > 1 and time.monotonic() > until:
                    continue
                rate = _rate(
                    predict, columns, predict_options._replace(batch_size=size, threads=count)
                )
                if turn:  # the first turn is a warm-up
                    samples[size].append(rate)
        by_setting.update(
            {(size, count): statistics.median(rates) for size, rates in samples.items()}
        )
    return by_setting


def _rate(predict: Predictor, columns: Sequence[Any], predict_options: PredictOptions) -> float:
    """Return the rate over at least one batch, and over enough time to measure."""
    rows, began = 0, time.perf_counter()
    while not rows or time.perf_counter() - began < _LEAST:
        rows += sum(
            len(each)
            for each in predictions(
                _sample_batch(columns, predict_options.batch_size),
                predict,
                predict_options,
                "the sample",
            )
        )
    return rows / (time.perf_counter() - began)


def _sample_batch(columns: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """Yield one batch of the sample's rows, repeating a sample that is too short."""
    rows = len(columns[0])
    yield [
        column.take(np.arange(size) % rows) if size > rows else column.slice(0, size)
        for column in columns
    ]


def _table(sample: Any) -> Any:
    pa = require("pyarrow", "tune()")
    if isinstance(sample, pa.Table):
        return sample
    if isinstance(sample, Mapping):
        return pa.table(
            {
                name: column if isinstance(column, pa.Array) else _column(column)
                for name, column in sample.items()
            }
        )
    if hasattr(sample, "sparkSession"):
        sample = sample.limit(10_000)
        return (
            sample.toArrow()
            if hasattr(sample, "toArrow")
            else pa.Table.from_pandas(sample.toPandas())
        )
    return pa.Table.from_pandas(sample, preserve_index=False)


def _column(values: Any) -> Any:
    pa = require("pyarrow", "tune()")
    return pa.array(list(values) if getattr(values, "ndim", 1) > 1 else values)
