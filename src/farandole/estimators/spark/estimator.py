"""The base of all estimators: from a DataFrame, or Parquet files, to a model."""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pyspark.ml import Estimator

from farandole.base.log import logger
from farandole.data import ParquetData, Store, from_parquet
from farandole.data.spark_names import FOLDER, shared_folder
from farandole.errors import DataError, SettingsError, did_you_mean
from farandole.estimators import mlflow
from farandole.estimators.backend import Backend, LocalBackend, SparkBackend
from farandole.estimators.batches import Batch, first
from farandole.estimators.fingerprint import plain
from farandole.estimators.nonfinite import check_nonfinite
from farandole.estimators.spark.classification import PARAMS as CLASSES
from farandole.estimators.spark.classification import ClassColumns
from farandole.estimators.spark.param_grid import ParamGridFits
from farandole.estimators.spark.params import EstimatorParams, declare
from farandole.estimators.spark.persistence import Persistent
from farandole.estimators.spark.write import padded, prepared
from farandole.estimators.spec import (
    Columns,
    OutputKind,
    Reading,
    Result,
    Spec,
    Watching,
    direction,
)
from farandole.estimators.trainers import rank
from farandole.job.report import pickling
from farandole.job.spark import session

_MEMORY = 64 << 20  # bytes of rows in a rank, which shares the machine's memory with Spark
FINGERPRINT = (
    "batch_size",
    "feature_cols",
    "label_cols",
    "sample_weight_col",
    "categorical_cols",
    "loss_weights",
    "random_seed",
    "shuffle",
    "scale_lr",
    "backward_passes_per_step",
    "train_steps_per_epoch",
    "validation",
    "transformation_fn",
)
OF_DATA = (
    "feature_cols",
    "label_cols",
    "sample_weight_col",
    "validation",
    "random_seed",
    "store",
    "data_options",
    "transformation_fn",
    "transformation_edit_fields",
    "transformation_removed_fields",
)
POOLS = ("thread", "dummy", "process")
Pair = tuple[ParquetData, ParquetData | None]


@declare(CLASSES)
class DistributedEstimator(Estimator, EstimatorParams, Persistent):  # type: ignore[misc]
    """The base class of estimators. A subclass for a framework provides ``train`` (the function for
    ranks), ``payload``, ``check`` and ``model_of``.
    """

    train: Callable[[Spec], Result | None]
    _prefix = "run"  # prefix of run ids
    _greedy = False  # whether the framework takes all visible GPUs
    _by_row = False  # whether transformation_fn takes a row, as Horovod's does

    def __init__(self, **values: Any) -> None:
        Estimator.__init__(self)
        EstimatorParams.__init__(self, **values)

    # Methods of a framework.

    def payload(self) -> dict[str, Any]:
        """Return the model and its framework options, for the ranks. Raises ValueError for missing
        or incompatible ones.
        """
        raise NotImplementedError

    def check(self, spec: Spec, batch: Batch) -> list[tuple[int, ...]] | None:
        """Run the model and the loss on ``batch``, on the driver, and return the shape of a row of
        each output; None if only training determines it.
        """
        raise NotImplementedError

    def model_of(self, result: Result, spec: Spec, metadata: dict[str, Any]) -> Any:
        """Return the trained model as a Spark ML model."""
        raise NotImplementedError

    def facts(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Return the hyperparameters in the payload as plain values by name, equal for equal
        objects.
        """
        return {}

    def kind_of_outputs(self, payload: Mapping[str, Any]) -> OutputKind | None:
        """Return the kind of classifier output that the loss expects; None for other or unknown
        losses.
        """
        return None

    def env(self) -> dict[str, str]:
        """Return environment variables for the ranks."""
        return {}

    # Training.

    def fit_on_parquet(
        self,
        train: Any = None,
        validation: Any = None,
        params: Mapping[Any, Any] | None = None,
        dataset_idx: int | None = None,
    ) -> Any:
        """Train on Parquet files, and return the model.

        ``train``, ``validation``: a path, as for ``from_parquet``, or data of ``farandole.data``;
        default: the store's folders of prepared data, numbered by ``dataset_idx``. Ranks run in
        Spark tasks if there is a session, otherwise in ``num_proc`` processes on this machine; a
        ``backend`` runs its own.
        """
        if isinstance(train, Mapping):  # Horovod's first argument
            train, params = None, train
        if params:
            return self.copy(params).fit_on_parquet(train, validation, dataset_idx=dataset_idx)
        columns, store = self._columns(), self._value("store")
        if train is None:
            if store is None:
                raise SettingsError(
                    "fit_on_parquet() needs the path of training data, or a store that contains"
                    " some"
                )
            train, held = (
                store.get_train_data_path(dataset_idx),
                store.get_val_data_path(dataset_idx),
            )
            if validation is None and self._value("validation"):
                if not store.exists(held):
                    raise SettingsError(
                        f"validation={self._value('validation')!r}, but the store has no"
                        f" validation rows in {held}. Pass dataset_idx=, the number that"
                        " prepare_data returned, or remove validation"
                    )
                validation = held
        if validation is None and self._value("validation"):
            raise SettingsError(
                f"validation={self._value('validation')!r} can only split DataFrames. For Parquet"
                " files pass the validation files: fit_on_parquet(train, validation)"
            )
        data = self._opened(train, columns, {})
        other = None if validation is None else self._opened(validation, columns, padded(data))
        for each in (data, other):
            if each is not None:
                check_nonfinite(each, columns)
        return self._train(data, other, self._backend())

    def fitMultiple(
        self, dataset: Any, paramMaps: Sequence[Mapping[Any, Any]]
    ) -> Iterator[tuple[int, Any]]:
        """Fit several parameter maps, as Spark does, but write the DataFrame only once, unless a
        map changes the rows or columns to read.
        """
        if not paramMaps or any(param.name in OF_DATA for each in paramMaps for param in each):
            return super().fitMultiple(dataset, paramMaps)  # type: ignore[no-any-return]
        estimators = [self.copy(each) for each in paramMaps]
        for each in estimators[1:]:  # the first map does so when it writes
            each._checked_columns()
        return ParamGridFits(
            estimators[0]._written(dataset), [each._trained for each in estimators]
        )

    def _fit(self, dataset: Any) -> Any:
        with self._written(dataset) as data:
            return self._trained(data)

    @contextlib.contextmanager
    def _written(self, dataset: Any) -> Iterator[Pair]:
        """Yield rows for training and for validation, as files that exist until the ``with`` block
        ends.
        """
        columns, store = self._checked_columns(), self._value("store")
        parent = dataset.sparkSession.conf.get(FOLDER, "") or None
        options = dict(self._value("data_options") or {})
        if store is not None and parent is None:
            parent = f"{store.prefix_path}/intermediate_data"  # separate from prepared data
            if "://" in parent and store.storage_options:
                options.setdefault("storage_options", store.storage_options)
        if parent is None and not shared_folder(dataset.sparkSession):
            raise SettingsError(
                "fit() writes rows to a folder that Spark and all ranks reach by the same name."
                " Pass store=Store.create('hdfs://...'), s3://, abfs://, /Volumes/... or a folder"
                f" on a shared disk, or set {FOLDER} for the session"
            )
        with prepared(
            dataset, columns, self._value("validation"), parent, options, self._seed()
        ) as data:
            yield data

    def _checked_columns(self) -> Columns:
        """Return the columns. Raises errors in parameters or the model before Spark computes."""
        columns = self._columns()
        self.payload()
        backend = self._backend(spark=True)
        if isinstance(backend, SparkBackend) and session.context() is None:
            raise SettingsError(
                "this process has no SparkContext (a session of Spark Connect has none), so ranks"
                " cannot be Spark tasks. Pass backend=LocalBackend(n), whose ranks are processes"
                " of this machine, or call fit on the cluster's driver"
            )
        if isinstance(backend, SparkBackend):
            backend.check()
        return columns

    def _trained(self, data: Pair) -> Any:
        return self._train(*data, self._backend(spark=True))

    def _train(self, data: ParquetData, validation: ParquetData | None, backend: Backend) -> Any:
        spec = self._spec(data, validation)
        if self._value("data_module") is not None:
            logger.warning(
                "data_module has no effect, because farandole.data reads the columns. Transform"
                " rows in transformation_fn, or in the DataFrame"
            )
        try:
            outputs = self.check(spec, first(data, spec.columns))
        except ImportError:  # without pyarrow: the ranks check
            outputs = None
        kind = self.kind_of_outputs(spec.payload)
        if outputs is not None:  # before training starts
            ClassColumns.of(self, kind).made(outputs[0])
        packed = pickling.pack(spec, "the training")
        one_gpu = spec.use_gpu if self._greedy else None
        results = backend.run(rank.fit, args=(self.train, packed, one_gpu), env=self.env())
        result: Result = results[0]
        mlflow.track(result.history)
        shapes = {column.name: list(column.shape) for column in data.columns}
        dtypes = {column.name: column.dtype for column in data.columns}
        labels = {
            each.name: "list" if each.kind in ("list", "ragged") else each.dtype
            for each in data.columns
        }
        metadata = {
            "outputs": outputs,
            "output_kind": None if kind is None else tuple(kind),
            "shapes": shapes,
            "dtypes": dtypes,
            "options": reading(data, spec.columns),
            "labels": {name: labels[name] for name in spec.columns.labels if name in labels},
        }
        model = self.model_of(result, spec, metadata)
        chosen = {row.name: self._value(row.name) for row in CLASSES}
        return model.setParams(**chosen) if ClassColumns.of(self, kind).names else model

    def _spec(self, data: ParquetData, validation: ParquetData | None) -> Spec:
        value, seed = self._value, self._seed()
        memory = 1 << 50 if value("inmemory_cache_all") else _MEMORY
        size = value("batch_size")

        def threads(name: str) -> int:
            return 0 if value("reader_pool_type") == "dummy" else value(name)

        run_id = value("run_id")
        payload = self.payload()
        watching = self._watching(validation is not None)
        return Spec(
            train=data,
            validation=validation,
            columns=self._columns(),
            train_reading=Reading(
                batch_size=size,
                steps=value("train_steps_per_epoch"),
                threads=threads("train_reader_num_workers"),
                memory=memory,
                shuffle=value("shuffle"),
                seed=seed,
            ),
            validation_reading=Reading(
                batch_size=value("val_batch_size") or size,
                steps=value("validation_steps_per_epoch"),
                threads=threads("val_reader_num_workers"),
                memory=memory,
            ),
            epochs=value("epochs"),
            seed=seed,
            watching=watching,
            store=value("store"),
            run_id=run_id or f"{self._prefix}_{int(time.time())}_{uuid.uuid4().hex[:8]}",
            resume=bool(run_id),
            fingerprint=self._fingerprint(data, validation, watching, payload),
            verbose=value("verbose"),
            use_gpu=value("use_gpu"),
            scale_lr=value("scale_lr"),
            backward_passes=value("backward_passes_per_step"),
            compression=value("gradient_compression"),
            payload=payload,
        )

    def _fingerprint(
        self,
        data: ParquetData,
        validation: ParquetData | None,
        watching: Watching,
        payload: Mapping[str, Any],
    ) -> dict[str, Any]:
        facts = {name: plain(self._value(name)) for name in FINGERPRINT}
        facts["columns"] = {
            column.name: [column.dtype, list(column.shape)] for column in data.columns
        }
        read = {
            name: each
            for name, each in (self._value("data_options") or {}).items()
            if name != "storage_options"
        }
        facts.update(
            self.facts(payload),
            rows=data.rows,
            validation_rows=validation.rows if validation is not None else 0,
            monitor=[watching.monitor, watching.mode],
            data_options=plain(read),
        )
        return dict(json.loads(json.dumps(facts, default=str)))

    # Parameters.

    def _value(self, name: str) -> Any:
        return self.getOrDefault(name)

    def _seed(self) -> int:
        return int(self._value("random_seed") or 0)

    def _columns(self) -> Columns:
        """Return the columns, after a check of all parameters."""
        self._check_params()
        features, labels = self._value("feature_cols"), self._value("label_cols")
        edited = self._value("transformation_edit_fields") or ()
        return Columns(
            features=tuple(features),
            labels=tuple(labels),
            weight=self._value("sample_weight_col"),
            transform=self._value("transformation_fn"),
            edited=tuple(edited),
            removed=tuple(self._value("transformation_removed_fields") or ()),
            by_row=self._by_row,
        )

    def _check_params(self) -> None:
        value = self._value
        if value("model") is None:
            raise SettingsError("Model parameter is required")
        for name in ("feature_cols", "label_cols"):
            if not value(name):
                raise SettingsError(
                    f"Parameter {name.replace('_cols', '_columns')} cannot be None or empty. Set"
                    f" {name}"
                )
        if (value("num_proc") or 1) < 1 or value("partitions_per_process") < 1:
            raise SettingsError(
                f"num_proc={value('num_proc')} and"
                f" partitions_per_process={value('partitions_per_process')} must both be > 0"
            )
        for name in (
            "batch_size",
            "val_batch_size",
            "train_steps_per_epoch",
            "validation_steps_per_epoch",
            "patience",
            "epochs",
            "backward_passes_per_step",
        ):
            if value(name) is not None and value(name) < 1:
                raise SettingsError(f"{name}={value(name)} must be at least 1")
        self._check_choices()
        self._check_named()
        labels = value("label_cols")
        ClassColumns.of(self, None).check(labels, [f"{label}__output" for label in labels])
        weights = value("loss_weights")
        if weights is not None and len(weights) != len(value("label_cols")):
            raise SettingsError(
                f"loss_weights={weights} must have one weight for each label: {value('label_cols')}"
            )

    def _check_named(self) -> None:
        """Raise SettingsError for a parameter with an unknown column, or with a wrong number of
        shapes.
        """
        value = self._value
        edited = [str(field[0]) for field in value("transformation_edit_fields") or ()]
        known = list(dict.fromkeys([*value("feature_cols"), *edited, *value("label_cols")]))
        for option in ("categorical_cols", "continuous_cols"):
            unknown = [name for name in value(option) or () if name not in known]
            if unknown and not (
                self._by_row or value("transformation_fn")
            ):  # columns from transformation_fn may have any name in Horovod
                raise SettingsError(
                    f"{option} names {unknown[0]!r}, which is not one of the columns"
                    f" ({', '.join(known)}){did_you_mean(unknown[0], known)}"
                )
        for option, of in (("input_shapes", "feature_cols"), ("label_shapes", "label_cols")):
            shapes = value(option) if self.hasParam(option) else None
            if shapes is not None and len(shapes) != len(value(of)):
                raise SettingsError(
                    f"{option}={shapes} must have one shape for each of {of}={value(of)}, in their"
                    " order; None keeps a column's own shape"
                )

    def _check_choices(self) -> None:
        validation = self._value("validation")
        if isinstance(validation, float | int) and not 0 <= validation < 1:
            raise SettingsError(f"Validation split {validation} must be in the range: [0, 1)")
        if validation is not None and not isinstance(validation, float | int | str):
            raise SettingsError(
                f'Param validation must be of type "float" or "str", found: {type(validation)}'
            )
        for name, known in (("mode", ("min", "max", "auto")), ("reader_pool_type", POOLS)):
            if self._value(name) not in known:
                raise SettingsError(
                    f"{name}={self._value(name)!r} must be one of {', '.join(known)}"
                )
        store = self._value("store")
        if store is not None and not isinstance(store, Store):
            raise SettingsError(
                f"store is a {type(store).__name__}. Create a store from its path with"
                " Store.create(path)"
            )
        if store is not None and store.prefix_path.startswith("memory:"):
            raise SettingsError(
                f"store={store.prefix_path!r} is in the memory of one process, so the ranks'"
                " checkpoints would be lost. Use a folder or a URL that all ranks reach"
            )
        options = {"shapes", "dtypes", "fill", "decode", "storage_options"}
        for name in self._value("data_options") or {}:
            if name not in options:
                raise SettingsError(
                    f"data_options={{{name!r}: ...}} is not an option{did_you_mean(name, options)}"
                )

    def _watching(self, validated: bool) -> Watching:
        monitor = self._value("monitor") or ("val_loss" if validated else "")
        if monitor.startswith("val_") and not validated:
            raise SettingsError(
                f"monitor={monitor!r} is a validation metric, but there is no validation. Set"
                " validation"
            )
        patience = self._value("patience")
        if patience is not None and not monitor:
            raise SettingsError(
                f"patience={patience} needs validation, or a metric to watch (monitor)"
            )
        mode = self._value("mode")
        if mode == "auto":
            mode = direction(monitor) if monitor else "min"
        return Watching(monitor, mode, min_delta=self._value("min_delta"), patience=patience)

    def _backend(self, spark: bool = False) -> Backend:
        backend = self._value("backend")
        if backend is not None:
            return backend  # type: ignore[no-any-return]
        num_proc, verbose = self._value("num_proc"), self._value("verbose")
        least, most = self._value("min_num_proc"), self._value("max_num_proc")
        if spark or session.context() is not None:
            bounds = {"min_num_proc": least, "max_num_proc": most}
            return SparkBackend(num_proc, verbose=verbose, **bounds)
        if least or most:
            start = num_proc or least or most
            return LocalBackend(start, min_np=least or start, max_np=most or start)
        return LocalBackend(num_proc)

    def _opened(self, source: Any, columns: Columns, shapes: Mapping[str, Any]) -> ParquetData:
        """Open the files of a path, or of data. ``shapes``: the shapes of columns that have none
        from the user.
        """
        path, own, options = source, None, dict[str, Any]()
        if isinstance(source, ParquetData):
            path, own, options = (
                source.path,
                source.storage_options,
                source.column_options._asdict(),
            )
        store = self._value("store")
        for name, value in (self._value("data_options") or {}).items():
            options[name] = {**options.get(name, {}), **value} if value else options.get(name)
        options["shapes"] = {**shapes, **(options.get("shapes") or {})}
        if not options.get("storage_options"):
            options["storage_options"] = own or (
                store.storage_options if store is not None and "://" in str(path) else None
            )
        # transformation_fn may convert values of any type to numbers
        objects = columns.transform is not None
        data = from_parquet(path, columns=columns.all, objects=objects, **options)
        if not data.rows:
            raise DataError(f"{path} has no rows")
        return data


def reading(data: ParquetData, columns: Columns) -> dict[str, list[Any]]:
    """Return how each feature was read, in order and in ``predict_udf``'s form; None for columns
    without options.
    """
    options = data.column_options._asdict()
    options["shapes"] = {**padded(data), **options["shapes"]}
    return {
        option: [by_name.get(name) for name in columns.features]
        for option, by_name in options.items()
        if any(name in by_name for name in columns.features)
    }
