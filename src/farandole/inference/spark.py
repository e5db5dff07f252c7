"""Predictions as a column of a Spark DataFrame."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

from farandole.base.optional import require
from farandole.base.pickled import dumps
from farandole.data.parquet.arrow_types import innermost, is_list
from farandole.data.parquet.columns import ColumnOptions, check_names
from farandole.data.validate import as_int
from farandole.errors import DataError, SettingsError, counted
from farandole.inference.models import MODEL_OPTIONS, Execution, Model, open_model, pack
from farandole.inference.returns import DEFAULT, Type, arrow_type, parse
from farandole.inference.stream import (
    BATCH_SIZE,
    ERROR,
    PREDICTION,
    Chunk,
    PredictOptions,
    predictions,
)
from farandole.job.report.spark import session

_PURPOSE = "inference"
ARCHIVE = "farandole-inference.zip"
_WHOLE = {"tinyint": "int8", "smallint": "int16", "int": "int32", "bigint": "int64"}
_WHOLE_LISTS = rf"^(array<)+({'|'.join(_WHOLE)})>"
_DIGITS = 2.0**53  # from here on, floating numbers leave whole ones out
_DECIMAL = re.compile(r"decimal\(\d+,(\d+)\)")
_STRUCTS = (  # Spark's vectors and images, as structs
    "type tinyint, size int, indices array<int>, values array<double>",
    "origin string, height int, width int, nChannels int, mode int, data binary",
)
_sent_along: dict[
    str, Any
] = {}  # by Spark application: the folder of its archive, which executors fetch when they start
# of a Python worker: the digests of models that were there when objects were frozen
_settled: set[str] = set()
ByColumn = Mapping[str, Any] | Sequence[Any]


class _PredictTask(NamedTuple):
    """What a task needs to know, beside the content of the model."""

    model: Model
    returns: Type
    batch_size: int
    inputs: tuple[str, ...] | None
    options: dict[str, Any]  # shapes, dtypes, fill and decode: by name, or one for each column
    errors: str
    key: bool
    stack: bool
    threads: int | None
    device: str | None
    cure: str = ""


def predict_udf(
    model: Any,
    *,
    returns: Any = None,
    batch_size: int = BATCH_SIZE,
    inputs: Sequence[str] | None = None,
    shapes: ByColumn | None = None,
    dtypes: ByColumn | None = None,
    fill: ByColumn | None = None,
    decode: ByColumn | None = None,
    stack: bool = False,
    errors: str = "raise",
    key: bool = False,
    threads: int | None = None,
    device: str | None = None,
    **options: Any,
) -> Any:
    """A model as a function of columns: ``df.withColumn("scores",
    predict_udf(model)("features"))``.

    ``model``: a torch module, a Keras or ONNX model, a function on arrays (columns are its
    arguments), a function without arguments that gives one of these, or a path: a file of torch,
    ``.keras``, ``.onnx``, the folder of a SavedModel. It is sent to each executor once, and opened
    once in each Python worker. ``returns``: the type of a row's prediction, as Spark writes it.
    Default: what the model tells, otherwise "array<float>". ``batch_size``: rows that the model
    gets at once, whatever Arrow's batches are. ``inputs``: names for the columns, by which Keras,
    ONNX and SavedModels find their inputs. ``shapes``, ``dtypes``, ``fill``, ``decode``: of
    columns, by their names in ``inputs``, or one for each in order; see
    ``farandole.data.from_parquet``. Floating numbers get the model's own dtype. ``stack``: columns
    are numbers, and together one array ``[rows, columns]``. ``errors``: "raise" ends the query with
    one error, which names the row; "column" gives a struct of prediction and error, one of which is
    null. ``key``: the last column does not go to the model, but into messages, as the name of a
    row. ``threads``: of the model, and to decode; default: spark.task.cpus. ``device``: default:
    the GPU that Spark gave to the task, otherwise "cpu". ``options``: ``custom_objects`` (Keras),
    ``signature`` (SavedModel), ``trust_pickle`` (files that name code to run).

    Raises SettingsError for a model or options that cannot be used.
    """
    if errors not in ("raise", "column"):
        raise SettingsError(f"errors={errors!r} must be 'raise' or 'column'")
    packed = pack(model, **options)
    given = {"shapes": shapes, "dtypes": dtypes, "fill": fill, "decode": decode}
    job = _PredictTask(
        packed._replace(content=b""),
        parse(returns or packed.returns or DEFAULT),
        as_int("batch_size", batch_size, 1),
        None if inputs is None else tuple(inputs),
        {name: value for name, value in given.items() if value is not None},
        errors,
        key,
        stack,
        threads,
        device,
    )
    return _function(job, packed.content)


def predict_udf_from_loader(
    loader: Any, *, returns: str, batch_size: int, inputs: Sequence[str], cure: str, **read: Any
) -> Any:
    """``predict_udf`` for those who say themselves, as ``cure``, what to do about a row that fails,
    for their users cannot give ``errors``. ``read``: shapes, dtypes, fill and decode.
    """
    packed, read = pack(loader), {name: value for name, value in read.items() if value is not None}
    job = _PredictTask(
        packed._replace(content=b""),
        parse(returns),
        as_int("batch_size", batch_size, 1),
        tuple(inputs),
        read,
        "raise",
        False,
        False,
        None,
        None,
        cure,
    )
    return _function(job, packed.content)


def _function(job: _PredictTask, content: bytes) -> Any:
    if job.inputs is not None:
        _how(job, len(job.inputs) + job.key, 1)  # here, so that what is wrong is told early
    kind = str(job.returns)
    column = kind if job.errors == "raise" else f"struct<{PREDICTION}:{kind},{ERROR}:string>"
    facts = dumps(job), _sent(content), sent_archive()
    return _udf(lambda masked: _task(*facts, masked), column, once=job.errors == "column")


def transform(
    frame: Any,
    model: Any,
    *,
    inputs: str | Sequence[str],
    output: str | Sequence[str] = PREDICTION,
    key: str | None = None,
    errors: str = "raise",
    **options: Any,
) -> Any:
    """A DataFrame with predictions beside its columns.

    ``inputs``: the names of the columns that the model gets. ``output``: the name of the new
    column; several, where ``returns`` is a struct: one for each of its fields. ``key``: a column
    that names rows in errors. With ``errors="column"`` there is one more column, "prediction_error"
    (the first output's name with "_error"). ``options``: those of ``predict_udf``.
    """
    from pyspark.sql import functions

    names = [inputs] if isinstance(inputs, str) else list(inputs)
    outputs = [output] if isinstance(output, str) else list(output)
    packed = pack(model, **{name: options.pop(name) for name in MODEL_OPTIONS if name in options})
    kind = parse(options.pop("returns", None) or packed.returns or DEFAULT)
    fields = [name for name, _ in kind.fields]
    if not isinstance(output, str) and len(fields) != len(outputs):
        raise SettingsError(
            f"output={outputs} names {counted(len(outputs), 'column')}, and returns='{kind}' has "
            f"{counted(len(fields), 'field')}"
        )
    function = predict_udf(
        packed, returns=str(kind), inputs=names, key=key is not None, errors=errors, **options
    )
    found = function(*(_column(frame, name) for name in [*names, *([] if key is None else [key])]))
    if errors == "raise" and isinstance(output, str):
        return frame.withColumn(output, found)
    whole = unused(frame)
    top = _quoted(whole) if errors == "raise" else f"{whole}.{PREDICTION}"
    columns = {outputs[0]: top}
    if not isinstance(output, str):
        columns = {
            name: f"{top}.{_quoted(field)}" for name, field in zip(outputs, fields, strict=True)
        }
    if errors == "column":
        columns[f"{outputs[0]}_error"] = f"{whole}.{ERROR}"
    frame = frame.withColumn(whole, found)
    return frame.withColumns({name: functions.col(path) for name, path in columns.items()}).drop(
        whole
    )


def unused(frame: Any) -> str:
    """A name that no column of ``frame`` has, in whatever case."""
    taken, name = {column.lower() for column in frame.columns}, "__farandole_prediction"
    while name in taken:
        name += "_"
    return name


def task(job_bytes: bytes, content: Any, masked: bool, batches: Iterator[Any]) -> Iterator[Any]:
    """Of a Python worker: the columns of one partition to its predictions. ``batches``: what Spark
    gives to an Arrow or pandas function in the form of iterators; what comes out is of the same
    kind. ``masked``: after the columns come as many that hold their types where they are null, or
    such lists.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    job: _PredictTask = cloudpickle.loads(job_bytes)
    columns = (each if isinstance(each, tuple) else (each,) for each in batches)
    first = next(columns, None)
    if first is None:
        return
    threads = job.threads or context.cpus()
    how = _how(job, len(first) // (1 + masked), threads)
    execution = Execution(threads, job.device or device_of(context))
    predict = open_model(job.model, execution, _folder(), lambda: _content(content))
    _spare_the_collector(job.model.digest)
    arrow = isinstance(first[0], require("pyarrow", _PURPOSE).Array)
    chunks: Iterator[Chunk] = itertools.chain([first], columns)
    if not arrow:
        chunks = (_chunk(each, masked, how) for each in chunks)
    found = predictions(chunks, predict, how, f"partition {context.partitionId()}")
    yield from found if arrow else map(_pandas, found)


def _how(job: _PredictTask, columns: int, threads: int) -> PredictOptions:
    names = job.inputs or tuple(f"input {number}" for number in range(columns - job.key))
    if len(names) + job.key != columns:
        raise SettingsError(
            f"predict_udf is given {counted(columns, 'column')}, and"
            f" inputs={list(names)}{' and a key' * job.key} names {len(names) + job.key}"
        )
    options = {
        name: _by_name(name, job.options.get(name, {}), names) for name in ColumnOptions._fields
    }
    column_options = ColumnOptions(**options)
    check_names(column_options, names)
    return PredictOptions(
        names,
        job.returns,
        job.batch_size,
        column_options,
        job.errors,
        job.key,
        job.stack,
        threads,
        job.cure,
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
            f"{option}={value!r} has {len(value)} for {counted(len(names), 'column')}"
            f" ({', '.join(names)})"
        )
    return {name: each for name, each in zip(names, value, strict=True) if each is not None}


# The driver's side.


def _udf(task_of: Callable[[bool], Callable[..., Any]], kind: str, *, once: bool) -> Any:
    """Spark 4.1 and later hand over Arrow's arrays, others what pandas makes of them, for which
    null is a NaN, and whole numbers beside it are floats, in lists, too. So a column goes along
    that holds the type of what is null, and that of lists of whole numbers, but in SQL.
    ``task_of``: the task, with such columns or without. ``once``: a filter on the result is no
    reason to compute it before the filter and again behind it, where whether a row fails hangs on
    the rows before it (the first list of a column tells how long all are).
    """
    from pyspark.sql import functions

    def made(found: Any) -> Any:
        return found.asNondeterministic() if once else found

    # that type hints are preferred: hints name the type, and here it is an argument
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*preferred to specify type hints", UserWarning)
        if hasattr(functions, "arrow_udf"):
            return made(
                functions.arrow_udf(task_of(False), kind, functions.ArrowUDFType.SCALAR_ITER)
            )
        plain, masked = (
            made(functions.pandas_udf(task_of(each), kind, functions.PandasUDFType.SCALAR_ITER))
            for each in (False, True)
        )

    @functools.wraps(plain)  # with what registers it for SQL
    def call(*columns: Any) -> Any:
        kinds = [functions.typeof(each) for each in columns]
        told = [
            functions.isnull(each) | kind.rlike(_WHOLE_LISTS)
            for each, kind in zip(columns, kinds, strict=True)
        ]
        return masked(*columns, *(functions.when(*each) for each in zip(told, kinds, strict=True)))

    return call


def _task(
    job: bytes, content: Any, archive: str, masked: bool
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """For the executors. A function inside a function is sent whole: Farandole need not be there to
    read it. Another version that may be there does not count: what the driver has pickled is for
    its own.
    """

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import sys

        if archive and "farandole" not in sys.modules:
            from pyspark import SparkFiles

            sys.path.insert(0, SparkFiles.get(archive))
        from farandole.inference.spark import task

        return task(job, content, masked, batches)

    return run


def _sent(content: bytes) -> Any:
    context = session.context()
    return content if context is None or not content else context.broadcast(content)


def sent_archive() -> str:
    """The name of a file with Farandole itself, which executors on other machines get."""
    context = session.context()
    if context is None or context.master.startswith("local"):
        return ""
    if context.applicationId not in _sent_along:
        from farandole.job.launch.agents.bundle import archive

        folder = tempfile.TemporaryDirectory(prefix="farandole-spark-")
        path = os.path.join(folder.name, ARCHIVE)
        with open(path, "wb") as file:
            file.write(archive())
        context.addFile(path)
        _sent_along[context.applicationId] = folder
    return ARCHIVE


def _column(frame: Any, name: str) -> Any:
    """The column of this name; the field of a struct ("a.b") where there is none."""
    from pyspark.sql import functions

    nested = "." in name and name.lower() not in {each.lower() for each in frame.columns}
    return functions.col(name if nested else _quoted(name))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


# The workers' side.


def _content(content: Any) -> bytes:
    """The model's file, of which this process keeps no copy."""
    if isinstance(content, bytes):
        return content
    found: bytes = content.value
    with contextlib.suppress(AttributeError):
        del content._value  # Spark reads its own file again, should another model ask
    return found


def _spare_the_collector(digest: str) -> None:
    """Spark's daemon collects garbage after each task. It would look at every object of a framework
    each time, which takes longer than many a task. What a model before this one has left is
    collected first.
    """
    if digest not in _settled:
        _settled.add(digest)
        gc.unfreeze()
        gc.collect()
        gc.freeze()


def _folder() -> str | None:
    """The one that Spark has for files of this application on this executor, and removes with
    it.
    """
    from pyspark import SparkFiles

    found = str(SparkFiles.getRootDirectory())
    return found if os.access(found, os.W_OK) else None


def device_of(context: Any) -> str:
    """The GPU that Spark assigned to the task, or the CPU."""
    gpu = context.resources().get("gpu")
    return f"cuda:{gpu.addresses[0]}" if gpu is not None and gpu.addresses else "cpu"


def _chunk(columns: Sequence[Any], masked: bool, how: PredictOptions) -> Chunk:
    """Columns as pandas has them, with those that hold the types of some of their rows, as
    Arrow's.
    """
    number = len(columns) // (1 + masked)
    told = columns[number:] if masked else [None] * number
    names = [*how.inputs, ""]  # a key is for messages alone
    return [_arrow(*each) for each in zip(columns[:number], told, names, strict=False)]


def _arrow(column: Any, kinds: Any = None, name: str = "") -> Any:
    """A column as pandas has it: a Series, and for structs a DataFrame. ``kinds``: its type, where
    it is told. ``name``: of the model's input. DataError for whole numbers that have lost digits.
    """
    pa = require("pyarrow", _PURPOSE)
    if hasattr(column, "columns"):
        return _struct(column)
    if kinds is None or column.dtype.kind != "f":
        found = pa.Array.from_pandas(column)
        kind = _widest(found.type)
        if (pa.types.is_null(kind) or _of_floats(kind)) and (told := _told(kinds)):
            kind = _named(told)
            _check_digits(found, kind, name)
        return found if found.type == kind else found.cast(kind)
    null, whole = kinds.notna().to_numpy(), _WHOLE.get(_told(kinds))
    values = column.to_numpy()
    if whole is not None:
        values = np.where(null, 0, values)
        _check_digits(pa.array(values), pa.type_for_alias(whole), name)
        values = values.astype(whole)
    return pa.array(values, mask=null, from_pandas=False)


def _told(kinds: Any) -> str:
    """The type that ``kinds`` names, "" for none."""
    there = None if kinds is None else kinds.first_valid_index()
    return "" if there is None else str(kinds[there])


def _of_floats(kind: Any) -> bool:
    """Whether an Arrow type is that of lists of floating numbers."""
    types = require("pyarrow", _PURPOSE).types
    return bool(is_list(types, kind) and types.is_floating(innermost(types, kind)))


def _check_digits(found: Any, kind: Any, name: str) -> None:
    """DataError for floating numbers so large that whole numbers, which they were, have lost
    digits. ``kind``: what they were.
    """
    pa, pc = require("pyarrow", _PURPOSE), require("pyarrow.compute", _PURPOSE)
    if not name or not pa.types.is_integer(innermost(pa.types, kind)):
        return
    while is_list(pa.types, found.type):
        found = found.flatten()
    largest = pc.max(pc.abs(found)).as_py() if len(found) - found.null_count else 0
    if largest >= _DIGITS:
        raise DataError(
            f"column {name!r} holds null beside whole numbers of 2^53 and more, of which Spark"
            f" before 4.1 hands over {largest:.0f} and the like, with other digits: fill the nulls"
            " (df.fillna; in an array F.transform(column, lambda x: F.coalesce(x, F.lit(0)))),"
            " leave such rows out, or use Spark 4.1"
        )


def _named(kind: str) -> Any:
    """The Arrow type of a type that Spark names, for a column without any value; null for what
    models do not take.
    """
    pa = require("pyarrow", _PURPOSE)
    if decimal := _DECIMAL.fullmatch(kind):
        return pa.decimal128(38, int(decimal[1]))
    try:
        return arrow_type(parse(kind))
    except SettingsError:
        return pa.null()


def _widest(kind: Any) -> Any:
    """The type with Spark's largest number of digits, where it is one of decimals: Arrow takes as
    many as the values at hand need, and those of a column's other rows may need more.
    """
    pa = require("pyarrow", _PURPOSE)
    if pa.types.is_decimal(kind):
        return pa.decimal128(38, kind.scale)
    return pa.list_(_widest(kind.value_type)) if pa.types.is_list(kind) else kind


def _struct(columns: Any) -> Any:
    """A row of pandas is never null: one without any value stands for it. The types of a vector's
    or image's fields do not depend on what the rows hold.
    """
    pa = require("pyarrow", _PURPOSE)
    known = ({each.name: each.type for each in arrow_type(parse(kind))} for kind in _STRUCTS)
    kinds = next((kinds for kinds in known if kinds.keys() == {*columns}), {})
    fields = [
        pa.array(columns[name], kinds[name], from_pandas=True) if kinds else _arrow(columns[name])
        for name in columns
    ]
    return pa.StructArray.from_arrays(
        fields, [*columns], mask=pa.array(columns.isna().all(axis=1).to_numpy())
    )


def _pandas(array: Any) -> Any:
    """What Spark takes from a pandas function: a Series, and for structs a DataFrame."""
    series, frame = _as_they_are()

    def made(each: Any) -> Any:
        return series(each.to_pandas(types_mapper=require("pandas", _PURPOSE).ArrowDtype))

    if not require("pyarrow", _PURPOSE).types.is_struct(array.type):
        return made(array)
    return frame(
        {field.name: made(each) for field, each in zip(array.type, array.flatten(), strict=True)}
    )


@functools.cache
def _as_they_are() -> tuple[Any, Any]:
    """A Series and a DataFrame that hold Arrow's own arrays, which know null from NaN, and integers
    beside null, until Spark has them. Of lists and structs Spark makes Python's objects (by
    ``apply``), in which NaN would become null.
    """
    pandas = require("pandas", _PURPOSE)

    class Series(pandas.Series):  # type: ignore[misc, name-defined]
        @property
        def _constructor(self) -> Any:
            return Series

        def apply(self, *_: Any, **__: Any) -> Any:
            return self

    class Frame(pandas.DataFrame):  # type: ignore[misc, name-defined]
        @property
        def _constructor_sliced(self) -> Any:
            return Series

    return Series, Frame
