"""The base of all models: a transformer that adds a column of predictions for each label."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.ml import Model
from pyspark.ml.functions import array_to_vector
from pyspark.ml.param import TypeConverters
from pyspark.sql import functions as F
from pyspark.sql import types as T

from farandole.data.spark_names import quote
from farandole.errors import DataError, SettingsError
from farandole.estimators.spark.classification import PARAMS as CLASSES
from farandole.estimators.spark.classification import ClassColumns
from farandole.estimators.spark.fields import field_error, field_of
from farandole.estimators.spark.params import Declared, Row, declare, names
from farandole.estimators.spark.persistence import Persistent
from farandole.estimators.spark.predictions import predicted, predicted_by_row
from farandole.estimators.spark.validate import array_of
from farandole.estimators.spec import OutputKind

MODEL = (
    Row("history", None, "the metrics of each epoch"),
    Row("model", None, "the trained model"),
    Row("feature_columns", None, "the model's input columns", names, ("FeatureCols",)),
    Row(
        "label_columns",
        None,
        "the label columns of training",
        names,
        ("LabelColoumns", "LabelCols"),
    ),
    Row("output_cols", None, "columns of predictions; default: <label>__output", names),
    Row("run_id", None, "name of the run in the store", TypeConverters.toString),
    Row("batch_size", 1024, "batch size for the model", TypeConverters.toInt),
    Row(
        "_metadata",
        None,
        "shapes of columns and outputs in training",
        TypeConverters.identity,
        ("Metadata",),
    ),
)


@declare((*MODEL, *CLASSES))
class DistributedModel(Model, Declared, Persistent):  # type: ignore[misc]
    """The base class of models. A subclass for a framework provides ``loader``."""

    def __init__(self, **values: Any) -> None:
        Model.__init__(self)
        Declared.__init__(self, **values)

    def loader(self) -> Any:
        """Return a function without arguments that returns the model, for Spark's workers.

        The model is a function of arrays, one for each input, that returns a tuple of arrays, one
        for each output.
        """
        raise NotImplementedError

    def getOutputCols(self) -> list[str]:
        """Return the names of the prediction columns."""
        names: Sequence[str] | None = self.getOrDefault("output_cols")
        return list(names or [f"{name}__output" for name in self.getOrDefault("label_columns")])

    def own_prediction(self) -> Callable[[Any, Any], Any] | None:
        """Return a user subclass's prediction function of the model and a row; None without one."""
        return None

    def _transform(self, dataset: Any) -> Any:
        function = self.own_prediction()
        if function is not None:
            return predicted_by_row(
                dataset, self.getOrDefault("model"), function, self.getOutputCols()
            )
        features, labels = self.getOrDefault("feature_columns"), self.getOrDefault("label_columns")
        for name in features:
            if field_of(dataset, name) is None:
                raise field_error(dataset, "Feature", name)
        self._check_texts(dataset, features)
        outputs = self.getOutputCols()
        if len(outputs) != len(labels):
            raise SettingsError(
                f"output_cols={outputs} must have one column for each label: {labels}"
            )
        columns = [_array(dataset, name) for name in features]
        shapes = self._shapes(dataset, columns)
        returns = [_returned(shape) for shape in shapes]
        rows = self.getOrDefault("batch_size")
        classes = self._class_columns()
        classes.check(labels, outputs)
        finished = {
            name: (index, self._finished(dataset, label, kind))
            for index, (name, label, kind) in enumerate(zip(outputs, labels, returns, strict=True))
        }
        for name, make in classes.made(shapes[0]).items():
            finished[name] = (0, make)
        return predicted(
            dataset,
            dict(zip(features, columns, strict=True)),
            self.loader(),
            returns,
            rows,
            finished,
            (self.getOrDefault("_metadata") or {}).get("options", {}),
        )

    def _class_columns(self) -> ClassColumns:
        kind = (self.getOrDefault("_metadata") or {}).get("output_kind")
        return ClassColumns.of(self, None if kind is None else OutputKind(*kind))

    def _check_texts(self, dataset: Any, features: Sequence[str]) -> None:
        """Raise DataError for text if the model was trained on numbers."""
        dtypes = (self.getOrDefault("_metadata") or {}).get("dtypes", {})
        for name in features:
            if (
                isinstance(field_of(dataset, name).dataType, T.StringType)
                and dtypes.get(name, "object") != "object"
            ):
                raise DataError(
                    f"Feature column {name} holds text, but the model was trained on numbers"
                    f" ({dtypes[name]}). Cast it, or use the same stages before the model as in"
                    " training (a StringIndexer, for example)"
                )

    def _shapes(self, dataset: Any, columns: Sequence[Any]) -> list[Sequence[int]]:
        """Return the shape of a row of each output: from training, or from the first row."""
        known = (self.getOrDefault("_metadata") or {}).get("outputs")
        labels = self.getOrDefault("label_columns")
        if known is None:
            row = dataset.select(*columns).first()
            if row is None:
                return [()] * len(labels)
            import numpy as np

            known = [
                np.asarray(each).shape[1:]
                for each in self.loader()()(*(np.asarray([value]) for value in row))
            ]
        if len(known) != len(labels):
            raise DataError(
                f"the model has {len(known)} outputs for {len(labels)} label columns: {labels}"
            )
        return list(known)

    def _finished(self, dataset: Any, label: str, kind: str) -> Callable[[Any], Any]:
        """Return a function that converts a prediction to the label's form.

        Numbers get the label's type. Several numbers become a vector, as Spark ML's evaluators
        require, or an array if the label is one.
        """
        # from training, because labels may be missing now
        kept = (self.getOrDefault("_metadata") or {}).get("labels", {}).get(label)
        field = field_of(dataset, label)
        if kept is None and field is not None:
            kept = {T.FloatType: "float32", T.ArrayType: "list"}.get(type(field.dataType))
        if kind == "double":
            return (
                (lambda column: column.cast("float"))
                if kept == "float32"
                else (lambda column: column)
            )
        if kind == "array<double>" and kept != "list":
            return lambda column: array_to_vector(column)
        return lambda column: column


# the name in Horovod's models
DistributedModel.outputCols = DistributedModel.output_cols


def _returned(shape: Sequence[int]) -> str:
    """Return the Spark type of an output. An array of one number becomes a number."""
    if tuple(shape) in ((), (1,)):
        return "double"
    kind = "double"
    for _ in shape:
        kind = f"array<{kind}>"
    return kind


def _array(dataset: Any, name: str) -> Any:
    kind = field_of(dataset, name).dataType
    column = F.col(quote(name))
    return array_of(column) if kind.typeName() in ("vectorudt", "vector") else column
