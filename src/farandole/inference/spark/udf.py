"""Models as functions of a DataFrame's columns, on the driver."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from farandole.base.pickled import dumps
from farandole.data.spark_names import quote
from farandole.data.validate import as_int
from farandole.errors import SettingsError, counted
from farandole.inference.models import pack, pack_with
from farandole.inference.returns import DEFAULT, parse
from farandole.inference.spark.archive import sent_archive
from farandole.inference.spark.pandas_columns import INTEGER_LISTS
from farandole.inference.spark.task import ByColumn, PredictTask, predict_options
from farandole.inference.stream import BATCH_SIZE, ERROR, PREDICTION
from farandole.job.spark import session


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
    """Return a model as a function of columns: ``df.withColumn("scores",
    predict_udf(model)("features"))``.

    ``model``: a torch module, a Keras or ONNX model, a function on arrays (columns are its
    arguments), a function without arguments that returns one of these, or a path: a file of torch,
    ``.keras``, ``.onnx``, the folder of a SavedModel. It is sent to each executor once, and opened
    once in each Python worker. ``returns``: the type of a row's prediction, in Spark's notation;
    default: the model's declared type, otherwise "array<float>". ``batch_size``: rows per call of
    the model, independent of Arrow's batches. ``inputs``: names for the columns, by which Keras,
    ONNX and SavedModels find their inputs. ``shapes``, ``dtypes``, ``fill``, ``decode``: options of
    the columns, by their names in ``inputs``, or a list in their order; see
    ``farandole.data.from_parquet``. Floats are converted to the model's dtype. ``stack``: combine
    columns of numbers into one array ``[rows, columns]``. ``errors``: "raise" ends the query with
    an error that names the row; "column" returns a struct of prediction and error, one of them
    null. ``key``: the last column identifies rows in messages and is not a model input.
    ``threads``: threads of the model and for decoding; default: spark.task.cpus. ``device``:
    default: the GPU that Spark assigned to the task, otherwise "cpu". ``options``:
    ``custom_objects`` (Keras), ``signature`` (SavedModel), ``trust_pickle`` (files that name code
    to run).

    Raises SettingsError for an unusable model or option.
    """
    if errors not in ("raise", "column"):
        raise SettingsError(f"errors={errors!r} must be 'raise' or 'column'")
    packed = pack(model, **options)
    by_column = {"shapes": shapes, "dtypes": dtypes, "fill": fill, "decode": decode}
    job = PredictTask(
        model=packed._replace(content=b""),
        returns=parse(returns or packed.returns or DEFAULT),
        batch_size=as_int("batch_size", batch_size, 1),
        inputs=None if inputs is None else tuple(inputs),
        options={name: value for name, value in by_column.items() if value is not None},
        errors=errors,
        key=key,
        stack=stack,
        threads=threads,
        device=device,
    )
    return _function(job, packed.content)


def predict_udf_from_loader(
    loader: Any, *, returns: str, batch_size: int, inputs: Sequence[str], cure: str, **read: Any
) -> Any:
    """Make a function of columns like ``predict_udf``, for callers that do not expose ``errors``.

    ``cure``: advice about a failing row, for the error. ``read``: shapes, dtypes, fill and decode.
    """
    packed = pack(loader)
    job = PredictTask(
        model=packed._replace(content=b""),
        returns=parse(returns),
        batch_size=as_int("batch_size", batch_size, 1),
        inputs=tuple(inputs),
        options={name: value for name, value in read.items() if value is not None},
        cure=cure,
    )
    return _function(job, packed.content)


def _function(job: PredictTask, content: bytes) -> Any:
    if job.inputs is not None:  # mistakes are reported here, before Spark runs
        predict_options(job, len(job.inputs) + job.keys, threads=1)
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
    """Return a DataFrame with additional columns of predictions.

    ``inputs``: the names of the model's input columns. ``output``: the name of the new column, or
    several names, one for each field of a struct in ``returns``. ``key``: a column that identifies
    rows in errors. ``errors="column"`` adds a column "prediction_error" (the first output's name
    with "_error"). ``options``: as for ``predict_udf``.
    """
    from pyspark.sql import functions

    names = [inputs] if isinstance(inputs, str) else list(inputs)
    outputs = [output] if isinstance(output, str) else list(output)
    packed = pack_with(model, options)
    kind = parse(options.pop("returns", None) or packed.returns or DEFAULT)
    fields = [name for name, _ in kind.fields]
    if not isinstance(output, str) and len(fields) != len(outputs):
        raise SettingsError(
            f"output={outputs} names {counted(len(outputs), 'column')}, but returns='{kind}' has"
            f" {counted(len(fields), 'field')}"
        )
    function = predict_udf(
        packed, returns=str(kind), inputs=names, key=key is not None, errors=errors, **options
    )
    predicted = function(
        *(_column(frame, name) for name in [*names, *([] if key is None else [key])])
    )
    if errors == "raise" and isinstance(output, str):
        return frame.withColumn(output, predicted)
    whole = unused(frame)
    top = quote(whole) if errors == "raise" else f"{whole}.{PREDICTION}"
    columns = {outputs[0]: top}
    if not isinstance(output, str):
        columns = {
            name: f"{top}.{quote(field)}" for name, field in zip(outputs, fields, strict=True)
        }
    if errors == "column":
        columns[f"{outputs[0]}_error"] = f"{whole}.{ERROR}"
    frame = frame.withColumn(whole, predicted)
    return frame.withColumns({name: functions.col(path) for name, path in columns.items()}).drop(
        whole
    )


def unused(frame: Any) -> str:
    """Return a name that no column of ``frame`` has, ignoring case."""
    taken, name = {column.lower() for column in frame.columns}, "__farandole_prediction"
    while name in taken:
        name += "_"
    return name


def _udf(task_of: Callable[[bool], Callable[..., Any]], kind: str, *, once: bool) -> Any:
    """Return a Spark function for the task.

    Spark 4.1 and later pass Arrow arrays. Earlier versions pass pandas columns, in which null is
    NaN and integers next to null are floats, even in lists, so additional columns hold the types of
    null values and of lists of integers, except in SQL.

    ``task_of``: returns the task, with or without such columns. ``once``: whether Spark must not
    compute the result twice (before and after a filter), because a row's success depends on earlier
    rows (the first list of a column determines the length of all).
    """
    from pyspark.sql import functions

    def made(function: Any) -> Any:
        return function.asNondeterministic() if once else function

    # the warning prefers type hints, but here the type is an argument
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

    @functools.wraps(plain)  # adds the attribute that registers it for SQL
    def call(*columns: Any) -> Any:
        kinds = [functions.typeof(each) for each in columns]
        masks = [
            functions.when(functions.isnull(column) | kind.rlike(INTEGER_LISTS), kind)
            for column, kind in zip(columns, kinds, strict=True)
        ]
        return masked(*columns, *masks)

    return call


def _task(
    job: bytes, content: Any, archive: str, masked: bool
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return the task for the executors.

    A nested function is sent by value, so executors can unpickle it without Farandole. A different
    installed version is not used, because the driver's pickles need the driver's version.
    """

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import sys

        if archive and "farandole" not in sys.modules:
            from pyspark import SparkFiles

            sys.path.insert(0, SparkFiles.get(archive))
        from farandole.inference.spark.task import task

        return task(job, content, masked, batches)

    return run


def _sent(content: bytes) -> Any:
    context = session.context()
    return content if context is None or not content else context.broadcast(content)


def _column(frame: Any, name: str) -> Any:
    """Return the column of this name, or the field of a struct ("a.b") if there is no such
    column.
    """
    from pyspark.sql import functions

    nested = "." in name and name.lower() not in {each.lower() for each in frame.columns}
    return functions.col(name if nested else quote(name))
