"""Conversion of a stream of Arrow columns to a column of predictions: cuts rows into the model's
batches and finds failing rows.

This module is independent of Spark and of all frameworks.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from farandole.base.optional import require
from farandole.data.parquet.arrays import first_null, plain, undecoded, values
from farandole.data.parquet.arrow_types import UNDECODED, is_image
from farandole.data.parquet.columns import Column, ColumnOptions
from farandole.data.parquet.decoding import decoded, fitting
from farandole.data.parquet.describe import column_of
from farandole.data.parquet.location import RowLocation, null_error
from farandole.errors import DataError
from farandole.inference.isolate import BatchError, RowResult, isolate
from farandole.inference.recut import ModelBatch, recut
from farandole.inference.returns import ShapeError, Type, arrow_type, to_arrow

if TYPE_CHECKING:
    from farandole.base.types import Array

_PURPOSE = "inference"
BATCH_SIZE = 256  # rows, by default
ERROR, PREDICTION = "error", "prediction"  # fields of a column with errors
_CURE = "With errors='column' such rows become null, with the error in a column"


class Predictor(Protocol):
    """An opened model, called with arrays ``[rows, ...]`` by column name, in the columns' order."""

    floating: str | None
    """The dtype of the model's floating-point inputs; None: unchanged."""

    def __call__(self, inputs: dict[str, Array]) -> Any: ...


class PredictOptions(NamedTuple):
    """Options for predictions from columns.

    ``inputs``: the columns' names, for messages and for models with named inputs. ``errors``:
    "raise" or "column". ``key``: whether the last column identifies rows in errors and is not an
    input. ``stack``: whether all columns are numbers and form one array [rows, columns] for the
    model. ``cure``: advice about a failing row.
    """

    inputs: tuple[str, ...]
    returns: Type
    batch_size: int
    column_options: ColumnOptions
    errors: str = "raise"
    key: bool = False
    stack: bool = False
    threads: int = 1  # for decoding
    cure: str = ""  # by default, the advice is errors='column'

    @property
    def type(self) -> Any:
        """Return pyarrow's type of the resulting column."""
        pa = require("pyarrow", _PURPOSE)
        kind = arrow_type(self.returns)
        return (
            kind
            if self.errors == "raise"
            else pa.struct([pa.field(PREDICTION, kind), pa.field(ERROR, pa.string())])
        )


Chunk = Sequence[Any]  # Arrow arrays, one for each column


def predictions(
    chunks: Iterator[Chunk],
    predict: Predictor,
    options: PredictOptions,
    source: str,
    first: int = 0,
) -> Iterator[Any]:
    """Yield the predictions for all rows of ``chunks``, in order, as Arrow arrays of any length.

    ``source``: the rows' origin for messages ("partition 3", a file), and ``first``: the number of
    the first row. Raises DataError that names the first failing row, unless ``options.errors`` is
    "column".
    """
    stream = _Stream(predict, options, source, first)
    try:
        yield from stream.run(chunks)
    finally:
        stream.close()


class _Prepared(NamedTuple):
    """A batch of Arrow columns. ``arrays``: the model's inputs; None if the conversion failed."""

    batch: ModelBatch[Chunk]
    columns: Chunk
    arrays: dict[str, Array] | None


class _Stream:
    def __init__(
        self, predict: Predictor, options: PredictOptions, source: str, first: int
    ) -> None:
        self._predict = predict
        self._options = options
        self._source = source
        self._first = first
        self._columns: tuple[Column, ...] | None = None
        self._describing = threading.Lock()
        decodes = bool(options.column_options.decode)
        self._decoders = (
            ThreadPoolExecutor(options.threads, "farandole-decode")
            if decodes and options.threads > 1
            else None
        )
        self._ahead = ThreadPoolExecutor(1, "farandole-ahead") if decodes else None
        self._largest = 0  # rows of a chunk

    def close(self) -> None:
        for pool in (self._ahead, self._decoders):
            if pool is not None:
                pool.shutdown(cancel_futures=True)

    def run(self, chunks: Iterator[Chunk]) -> Iterator[Any]:
        """Yield arrays with about as many predictions as a chunk has rows, because few large arrays
        are cheaper than many small ones.
        """
        pa = require("pyarrow", _PURPOSE)
        done: list[Any] = []
        rows = 0
        # decoded data is many times as large, so process it one batch at a time
        together = not self._options.column_options.decode
        for prepared in self._prepared(
            recut(self._counted(chunks), _rows, self._options.batch_size, together)
        ):
            done += self._predicted(prepared)
            rows += prepared.batch.rows
            if rows >= self._largest:
                yield pa.concat_arrays(done) if len(done) > 1 else done[0]
                done, rows = [], 0
        if done:
            yield pa.concat_arrays(done)

    def _counted(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        for chunk in chunks:
            self._largest = max(self._largest, _rows(chunk))
            yield chunk

    def _prepared(self, batches: Iterator[ModelBatch[Chunk]]) -> Iterator[_Prepared]:
        """Yield prepared batches. If columns are decoded, a batch is prepared while the model runs
        on the previous one.
        """
        if self._ahead is None:
            yield from map(self._prepare, batches)
            return
        waiting: deque[Future[_Prepared]] = deque()
        for batch in batches:
            waiting.append(self._ahead.submit(self._prepare, batch))
            if len(waiting) > 1:
                yield waiting.popleft().result()
        for future in waiting:
            yield future.result()

    def _prepare(self, batch: ModelBatch[Chunk]) -> _Prepared:
        columns = _joined(batch)
        try:
            return _Prepared(batch, columns, self._arrays(columns, batch.row))
        except (DataError, BatchError):  # the search finds the failing rows
            return _Prepared(batch, columns, None)

    def _predicted(self, prepared: _Prepared) -> Iterator[Any]:
        batch, columns = prepared.batch, prepared.columns

        def arrays(begin: int, end: int) -> dict[str, Array]:
            whole = begin % self._options.batch_size == 0 and end == min(
                begin + self._options.batch_size, batch.rows
            )
            if whole and prepared.arrays is not None:
                return {name: array[begin:end] for name, array in prepared.arrays.items()}
            chosen = [column.slice(begin, end - begin) for column in columns]
            # convert again, because a failed model may have modified the first arrays
            return self._arrays(chosen, batch.row + begin)

        def call(begin: int, end: int) -> Any:
            output = self._predict(arrays(begin, end))
            try:
                return to_arrow(output, self._options.returns, end - begin)
            except ShapeError as error:
                raise BatchError(error) from None

        try:
            for begin in range(0, batch.rows, self._options.batch_size):
                for part in isolate(call, begin, min(begin + self._options.batch_size, batch.rows)):
                    yield self._result(part, prepared)
        except BatchError as error:
            raise error.args[0] from None

    def _result(self, part: RowResult, prepared: _Prepared) -> Any:
        pa = require("pyarrow", _PURPOSE)
        rows = part.end - part.begin
        if part.error is not None and self._options.errors == "raise":
            raise self._error(part, prepared) from part.error
        if self._options.errors == "raise":
            return part.found
        if part.error is None:
            predicted, why = part.found, pa.nulls(rows, pa.string())
        else:
            predicted, why = (
                pa.nulls(rows, arrow_type(self._options.returns)),
                pa.array([_text(part.error)], pa.string()),
            )
        return pa.StructArray.from_arrays([predicted, why], fields=list(self._options.type))

    def _error(self, part: RowResult, prepared: _Prepared) -> DataError:
        row = self._first + prepared.batch.row + part.begin
        named = f"row {row} of {self._source}"
        if self._options.key:
            named = f"the row with key {prepared.columns[-1][part.begin].as_py()!r} ({named})"
        return DataError(
            f"prediction failed on {named}: {_text(part.error)}. {self._options.cure or _CURE}"
        )

    # Arrow columns as the model's arrays.

    def _arrays(self, columns: Chunk, row: int) -> dict[str, Array]:
        location = RowLocation(self._source, self._first + row)
        chosen = columns[: len(self._options.inputs)]
        with self._describing:
            if self._columns is None:
                self._columns = self._described(chosen, location)
            described = self._columns
        arrays = {
            column.name: self._value(array, column, location)
            for array, column in zip(chosen, described, strict=True)
        }
        if self._options.stack:
            return {self._options.inputs[0]: np.stack(list(arrays.values()), axis=1)}
        return arrays

    def _described(self, columns: Chunk, location: RowLocation) -> tuple[Column, ...]:
        """Describe the columns from the first batch. Null rows are reported later, one by one."""
        types = require("pyarrow", _PURPOSE).types
        described = []
        batch = [column.slice(0, self._options.batch_size) for column in columns]
        for name, array in zip(self._options.inputs, batch, strict=True):
            if array.null_count == len(array) and name not in self._options.column_options.fill:
                raise null_error(name, first_null(array), location)
            bad = undecoded(array) if is_image(types, array.type) else np.zeros(0, bool)
            if bad.any() and (bad | plain(array.is_null())).all():
                raise location.error(name, int(np.argmax(bad)), UNDECODED)
            described.append(self._column(name, array, location))
        floating = [np.dtype(column.dtype).kind == "f" for column in described]
        if self._options.stack and any(floating):  # one array of all columns
            floating = [True] * len(described)
        return tuple(
            column._replace(dtype=self._predict.floating or column.dtype)
            if of_model and column.name not in self._options.column_options.dtypes
            else column
            for column, of_model in zip(described, floating, strict=True)
        )

    def _column(self, name: str, array: Any, location: RowLocation) -> Column:
        try:
            column = column_of(
                name, array.type, self._options.column_options, _first(array), location
            )
        except DataError as error:
            if name in self._options.column_options.decode:
                raise  # the row's bytes cause the error
            raise BatchError(error) from None  # the type causes the error, in every row
        if self._options.stack and column.kind != "number":
            text = (
                f"{array.type} is not a number, but stack=True combines columns of numbers into"
                " one array"
            )
            raise BatchError(location.error(name, None, text))
        return column

    def _value(self, array: Any, column: Column, location: RowLocation) -> Array:
        rows = values(array, column, location)
        if column.kind != "encoded":
            return rows
        every = self._decoders.map if self._decoders else map
        return np.stack(
            [
                *every(
                    lambda number: self._decoded(rows[number], column, location, number),
                    range(len(rows)),
                )
            ]
        )

    def _decoded(self, value: Any, column: Column, location: RowLocation, number: int) -> Array:
        try:
            return fitting(decoded(value, column), column)
        except DataError as error:
            raise location.error(column.name, number, str(error)) from error.__cause__


def _first(array: Any) -> Callable[[], Any]:
    """Return a function that finds a row with a representative shape.

    This is the first row that is not null, has the most frequent length and, in a column of images,
    is decodable.
    """

    def first() -> Any:
        if not len(array):
            return None
        there = plain(array.is_valid())
        if is_image(require("pyarrow", _PURPOSE).types, array.type):
            there = there & ~undecoded(array)
        lengths = _lengths(array)
        if lengths is not None and there.any():
            distinct, counts = np.unique(lengths[there], return_counts=True)
            there = there & (lengths == distinct[np.argmax(counts)])
        return array[int(np.argmax(there))].as_py()

    return first


def _lengths(array: Any) -> Array | None:
    """Return the lengths of lists and of Spark's vectors; None for other types."""
    pa, pc = require("pyarrow", _PURPOSE), require("pyarrow.compute", _PURPOSE)
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        return plain(pc.list_value_length(array).fill_null(0))
    if pa.types.is_struct(array.type) and {"size", "values"} <= {
        field.name for field in array.type
    }:
        values_there = pc.list_value_length(pc.struct_field(array, "values"))
        return plain(pc.coalesce(pc.struct_field(array, "size"), values_there).fill_null(0))
    return None


def _rows(chunk: Chunk) -> int:
    return len(chunk[0])


def _joined(batch: ModelBatch[Chunk]) -> Chunk:
    """Return the columns of a batch, without a copy if it is in one chunk."""
    if len(batch.slices) == 1:
        one = batch.slices[0]
        return [column.slice(one.begin, one.end - one.begin) for column in one.chunk]
    count = len(batch.slices[0].chunk)
    return [
        _concatenated(
            [each.chunk[index].slice(each.begin, each.end - each.begin) for each in batch.slices]
        )
        for index in range(count)
    ]


def _concatenated(arrays: Sequence[Any]) -> Any:
    """Concatenate arrays. A pandas column has a different type in chunks with nulls (float64, not
    int64) or only nulls; the first type of actual values applies to all.
    """
    pa = require("pyarrow", _PURPOSE)
    kinds = [array.type for array in arrays]
    kind = next((each for each in kinds if not pa.types.is_null(each)), kinds[0])
    return pa.concat_arrays([array if array.type == kind else array.cast(kind) for array in arrays])


def _text(error: BaseException | None) -> str:
    """Return an error's text in one line, without the class names of Farandole's errors."""
    kind = "" if isinstance(error, DataError) else f"{type(error).__name__}: "
    return f"{kind}{error}".strip().replace(os.linesep, " ")
