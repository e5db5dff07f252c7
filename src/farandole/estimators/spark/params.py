"""Parameters common to all estimators, with Horovod's names, defaults and accessors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pyspark.ml.param import Param, Params, TypeConverters

from farandole.errors import SettingsError, did_you_mean


class Row(NamedTuple):
    """A parameter. ``takes``: a converter, which raises TypeError for unsuitable values. ``also``:
    names of additional accessors.
    """

    name: str
    default: Any
    doc: str
    takes: Callable[[Any], Any] = TypeConverters.identity
    also: tuple[str, ...] = ()


_int, _bool, _text = TypeConverters.toInt, TypeConverters.toBoolean, TypeConverters.toString
_number = TypeConverters.toFloat


def names(value: Any) -> list[str]:
    """Return one name or several as a list."""
    return [value] if isinstance(value, str) else list(TypeConverters.toListString(value))


def shapes(value: Any) -> list[Any]:
    return [None if shape is None else TypeConverters.toListInt(shape) for shape in value]


COMMON = (
    Row(
        "num_proc",
        None,
        "number of ranks; default: Spark's default parallelism, or 1 without Spark",
        _int,
    ),
    Row(
        "min_num_proc",
        None,
        "minimum number of ranks with which training continues when ranks are lost; default: a"
        " lost rank ends training",
        _int,
    ),
    Row(
        "max_num_proc",
        None,
        "maximum number of ranks of an elastic training; default: num_proc",
        _int,
    ),
    Row("store", None, "store of the runs' checkpoints, and of the data during training"),
    Row("backend", None, "runs the ranks, instead of num_proc"),
    Row("model", None, "the model"),
    Row("optimizer", None, "the optimizer"),
    Row("loss", None, "the loss, or one for each label"),
    Row("loss_weights", None, "weights of the losses", TypeConverters.toListFloat),
    Row("sample_weight_col", None, "column with the weight of each row", _text),
    Row("metrics", [], "metrics"),
    Row("feature_cols", None, "the model's input columns, in order", names),
    Row(
        "label_cols",
        None,
        "the label columns, in the order of the model's outputs",
        names,
    ),
    Row("continuous_cols", None, "columns of numbers, passed to the model as floats", names),
    Row("categorical_cols", None, "columns of categories, passed to the model as integers", names),
    Row(
        "validation",
        None,
        "fraction of the rows (0 to 1) used for validation, or a column: rows above 0 are used"
        " for validation",
    ),
    Row("gradient_compression", None, "a Compression of the framework's module"),
    Row(
        "compress_sparse_cols",
        False,
        "no effect: sparse vectors are always sent in sparse form",
        _bool,
    ),
    Row("batch_size", 32, "batch size of each rank", _int),
    Row("val_batch_size", None, "batch size for validation; default: batch_size", _int),
    Row("epochs", 1, "epochs", _int),
    Row("verbose", 1, "0: no output; 1: a line for each epoch", _int),
    Row("callbacks", [], "callbacks of the framework"),
    Row(
        "random_seed",
        None,
        "seed of the order, the split, and the random numbers of layers; default: 0",
        _int,
    ),
    Row(
        "shuffle_buffer_size",
        None,
        "no effect: rows are shuffled as well as memory permits",
        _int,
        ("ShufflingBufferSize",),
    ),
    Row("shuffle", True, "use a new order of rows in each epoch", _bool),
    Row(
        "partitions_per_process",
        10,
        "no effect: ranks share the rows exactly, regardless of the files",
        _int,
    ),
    Row("run_id", None, "name of the run; an existing run in the store is continued", _text),
    Row("train_steps_per_epoch", None, "batches in an epoch; default: all", _int),
    Row("validation_steps_per_epoch", None, "batches in a validation; default: all", _int),
    Row(
        "transformation_fn",
        None,
        "function that takes and returns a pandas DataFrame with the rows of a batch; used in"
        " training only, not in transform()",
    ),
    Row("transformation_edit_fields", None, "columns that it adds: (name, dtype, shape, nullable)"),
    Row("transformation_removed_fields", None, "columns that it removes", names),
    Row(
        "train_reader_num_workers",
        2,
        "number of prefetching threads",
        _int,
        ("TrainReaderNumWorker",),
    ),
    Row(
        "val_reader_num_workers",
        2,
        "number of prefetching threads for validation",
        _int,
        ("ValReaderNumWorker",),
    ),
    Row(
        "reader_pool_type",
        "thread",
        "'thread', or 'dummy' to read on demand",
        _text,
    ),
    Row(
        "label_shapes",
        None,
        "shapes of labels, with -1 for the rows or without that dimension",
        shapes,
    ),
    Row(
        "inmemory_cache_all",
        False,
        "keep all rows in the memory of each rank",
        _bool,
        ("InMemoryCacheAll",),
    ),
    Row(
        "use_gpu",
        True,
        "use the GPU of the rank's Spark task, or the GPU with the rank's local number, if there"
        " is one",
        _bool,
    ),
    Row("mp_start_method", None, "no effect: readers are threads", _text),
    Row(
        "backward_passes_per_step",
        1,
        "number of batches whose gradients are accumulated for a step",
        _int,
    ),
    Row(
        "tensorflow_dataset_prefetch_buffer_size",
        0,
        "no effect: see train_reader_num_workers",
        _int,
    ),
    # Farandole's own.
    Row(
        "scale_lr",
        True,
        "multiply the learning rate by the number of ranks, as in Horovod",
        _bool,
    ),
    Row(
        "monitor",
        None,
        "metric that determines the best epoch; default: val_loss if there is validation",
        _text,
    ),
    Row(
        "mode",
        "auto",
        "'min' or 'max': which values of monitor are better; 'auto': derived from its name",
        _text,
    ),
    Row("patience", None, "stop after this number of epochs without improvement", _int),
    Row("min_delta", 0.0, "smallest change that counts as an improvement", _number),
    Row(
        "data_options",
        None,
        "options for reading columns: shapes, dtypes, fill, decode, storage_options",
    ),
)


def camel(name: str) -> str:
    """Convert ``num_proc`` to ``NumProc``."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def declare(rows: tuple[Row, ...]) -> Callable[[type], type]:
    """Return a class decorator that adds a Param and its accessors ``setX`` and ``getX`` for each
    row.
    """

    def declared(cls: type) -> type:
        for row in rows:
            setattr(cls, row.name, Param(Params._dummy(), row.name, row.doc, row.takes))
            for accessor in (camel(row.name), *row.also):
                for name, accessor_of in ((f"set{accessor}", _setter), (f"get{accessor}", _getter)):
                    if name not in vars(cls):  # unless the class has its own accessor
                        setattr(cls, name, accessor_of(row.name, accessor))
        cls._rows = (*getattr(cls, "_rows", ()), *rows)  # type: ignore[attr-defined]
        return cls

    return declared


def _setter(name: str, accessor: str) -> Callable[[Any, Any], Any]:
    def setter(self: Any, value: Any) -> Any:
        self._set_checked({name: value})
        return self

    setter.__name__ = f"set{accessor}"
    setter.__doc__ = f"Set ``{name}`` and return the object."
    return setter


def _getter(name: str, accessor: str) -> Callable[[Any], Any]:
    def getter(self: Any) -> Any:
        return self.getOrDefault(name)

    getter.__name__ = f"get{accessor}"
    getter.__doc__ = f"Return the value of ``{name}``."
    return getter


class Declared(Params):  # type: ignore[misc]
    """Params made by ``declare``: their defaults and keyword values."""

    _rows: tuple[Row, ...] = ()

    def __init__(self, **values: Any) -> None:
        super().__init__()
        for row in self._rows:
            self._defaultParamMap[getattr(self, row.name)] = row.default
        self._set_checked(values)

    def _set_checked(self, values: dict[str, Any]) -> None:
        known = [row.name for row in self._rows]
        for name, value in values.items():
            if name not in known:
                near = did_you_mean(name, known)
                raise TypeError(f"{type(self).__name__} has no parameter {name!r}{near}")
            if value is None:
                self.clear(getattr(self, name))
            else:
                self._set(**{name: value})

    def setParams(self, **values: Any) -> Any:
        """Set parameters by name (None restores the default), and return the object."""
        self._set_checked(values)
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("set", "get")):
            near = did_you_mean(
                name, [each for each in dir(type(self)) if each.startswith(name[:3])]
            )
            raise AttributeError(f"{type(self).__name__} has no {name}{near}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


@declare(COMMON)
class EstimatorParams(Declared):
    """The parameters common to all estimators."""

    def _set_checked(self, values: dict[str, Any]) -> None:
        super()._set_checked(values)
        if self.isSet("backend") and self.isSet("num_proc"):
            raise SettingsError(
                'At most one of parameters "backend" and "num_proc" may be specified'
            )
        bounds = [name for name in ("min_num_proc", "max_num_proc") if self.isSet(name)]
        if self.isSet("backend") and bounds:
            raise SettingsError(
                f"{bounds[0]}={self.getOrDefault(bounds[0])} has no effect on a backend. Pass the"
                " bounds to the backend: LocalBackend(4, min_np=2, max_np=4)"
            )
