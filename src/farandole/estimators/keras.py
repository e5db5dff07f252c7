"""``KerasEstimator``: a Keras model (Keras 3 on any backend, or tf_keras), trained on a
DataFrame.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farandole.base.log import logger
from farandole.errors import SettingsError
from farandole.estimators.batches import Batch
from farandole.estimators.fingerprint import configured, digest, plain
from farandole.estimators.loaders.keras import (
    Loader,
    Packed,
    backend_of,
    pack,
    text_features,
)
from farandole.estimators.loaders.keras_arguments import (
    compiled_arguments,
    open_arguments,
    pack_arguments,
)
from farandole.estimators.spark.estimator import DistributedEstimator
from farandole.estimators.spark.model import DistributedModel
from farandole.estimators.spark.params import Row, declare
from farandole.estimators.spec import Columns, OutputKind, Result, Spec, direction
from farandole.estimators.trainers.keras.check import by_name, check
from farandole.estimators.trainers.keras.compiling import compile_options, output_kind
from farandole.estimators.trainers.keras.state import load, slots
from farandole.estimators.trainers.keras.trainer import train

_COMPILING = ("optimizer", "loss", "metrics")  # parameters that are arguments of compile()
_ARGUMENTS = "arguments of compile"  # the file that stores these parameters
EXTRA = (
    Row("custom_objects", {}, "custom classes and functions of the model, by name"),
    Row("checkpoint_callback", None, "a BestModelCheckpoint, instead of monitor and mode"),
    Row("data_module", None, "no effect: farandole.data reads the rows"),
    Row("backend_env", {}, "environment variables of the ranks"),
)


@declare(EXTRA)
class KerasEstimator(DistributedEstimator):
    """Trains ``model``, a Keras model.

    ``optimizer``, ``loss``, ``loss_weights`` and ``metrics``: as for ``compile``; default: the
    model's compiled ones. ``farandole.estimators.spark.params.COMMON`` and ``EXTRA`` list all
    parameters.
    """

    train = staticmethod(train)
    _prefix = "keras"
    _greedy = True

    def payload(self) -> dict[str, Any]:
        value = self.getOrDefault
        model = value("model")
        backend_of(model)
        compiled = compiled_arguments(model)
        options = {name: value(name) for name in (*_COMPILING, "loss_weights") if value(name)}
        if "optimizer" not in {**compiled, **options}:
            raise SettingsError(
                "Optimizer must be provided either as a parameter or as part of a compiled model"
            )
        if not {**compiled, **options}.get("loss"):
            raise SettingsError("Loss parameter is required for the model to compile")
        packed = pack(model, value("custom_objects") or {})
        keras, optimizer = packed.package(), {**compiled, **options}["optimizer"]
        if "optimizer" in options:
            with packed.scope():
                options["optimizer"] = keras.optimizers.get(options["optimizer"])
        known = packed.objects()
        arguments = {
            name: pack_arguments(keras, given, known)
            for name, given in (("compiled", compiled), ("options", options))
        }
        return {
            "model": packed,
            **arguments,
            "callbacks": list(value("callbacks") or ()),
            "categories": tuple(value("categorical_cols") or ()),
            "label_shapes": value("label_shapes"),
            "slots": slots(optimizer) if hasattr(optimizer, "variables") else [],
        }

    def facts(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        packed = payload["model"]
        with packed.scope():
            options = compile_options(packed.package(), payload)
        layers = [
            [type(each).__name__, configured(each)]
            for each in self.getOrDefault("model")._flatten_layers()
        ]
        optimizer = packed.package().optimizers.serialize(options["optimizer"])
        return {
            "optimizer": plain(optimizer),
            "loss": plain(options["loss"]),
            "model": digest(layers),
        }

    def kind_of_outputs(self, payload: Mapping[str, Any]) -> OutputKind | None:
        packed = payload["model"]
        with packed.scope():
            return output_kind(compile_options(packed.package(), payload)["loss"])

    def check(self, spec: Spec, batch: Batch) -> list[tuple[int, ...]]:
        model = spec.payload["model"].open()
        known = len(model.weights)
        model = by_name(spec, batch, model)
        shapes = check(spec, batch, model)
        # these rows built the model: pack all its weights, for the ranks and the result
        if len(model.weights) != known:
            spec.payload["model"] = pack(model, self.getOrDefault("custom_objects") or {})
        return shapes

    def _columns(self) -> Columns:
        columns = super()._columns()
        return columns._replace(texts=text_features(self.getOrDefault("model"), columns.features))

    def env(self) -> dict[str, str]:
        variables = {
            name: str(value) for name, value in (self.getOrDefault("backend_env") or {}).items()
        }
        backend = backend_of(self.getOrDefault("model"))
        return {**Packed(b"", b"", backend).env(), **variables}

    def _watching(self, validated: bool) -> Any:
        watching = super()._watching(validated)
        best = self.getOrDefault("checkpoint_callback")
        monitor = getattr(best, "monitor", None)
        if monitor is None:
            return watching
        if monitor.startswith("val_") and not validated:
            raise SettingsError(
                f"checkpoint_callback watches {monitor!r}, but there is no validation. Set"
                " validation"
            )
        mode = getattr(best, "mode", None)
        if mode is None:  # tf_keras keeps only the operator of its mode
            mode = "max" if getattr(best.monitor_op, "__name__", "") == "greater" else "min"
        return watching._replace(
            monitor=monitor, mode=direction(monitor) if mode == "auto" else mode
        )

    def model_of(self, result: Result, spec: Spec, metadata: dict[str, Any]) -> KerasModel:
        packed = spec.payload["model"]
        keras, model = packed.package(), packed.open()
        with packed.scope():
            model.compile(**compile_options(keras, spec.payload))
        load(model, result.weights)
        return KerasModel(
            history=_history(result),
            model=model,
            feature_columns=list(spec.columns.features),
            label_columns=list(spec.columns.labels),
            custom_objects=self.getOrDefault("custom_objects"),
            run_id=spec.run_id,
            _metadata={**metadata, "categories": spec.payload["categories"]},
            _floatx=keras.backend.floatx(),
        )

    def pack(self, values: dict[str, Any]) -> dict[str, Any]:
        if "model" not in values:
            return values
        packed = dict(values)
        packed["model"] = _whole(packed["model"], self.getOrDefault("custom_objects"))
        own = {name: packed.pop(name) for name in _COMPILING if name in packed}
        keras = packed["model"][0].package()
        return {**packed, _ARGUMENTS: pack_arguments(keras, own)}

    @classmethod
    def unpack(cls, values: dict[str, Any]) -> dict[str, Any]:
        opened = _unpacked(values)
        arguments = opened.pop(_ARGUMENTS, None)
        if arguments is None:
            return opened
        packed = values["model"][0]
        with packed.scope():
            return {**opened, **open_arguments(packed.package(), arguments)}


@declare(
    (
        EXTRA[0],
        Row("_floatx", "float32", "Keras's floating-point dtype", also=("Floatx",)),
    )
)
class KerasModel(DistributedModel):
    """A trained Keras model: ``transform(df)`` adds predictions. ``getHistory()`` returns the
    history as in Keras: a list of values for each name.
    """

    def loader(self) -> Loader:
        packed = pack(self.getOrDefault("model"), self.getOrDefault("custom_objects") or {})
        categories = (self.getOrDefault("_metadata") or {}).get("categories", ())
        features, labels = (self.getOrDefault(f"{what}_columns") for what in ("feature", "label"))
        return Loader(packed, features, categories, labels)

    def pack(self, values: dict[str, Any]) -> dict[str, Any]:
        return {**values, "model": _whole(values["model"], self.getOrDefault("custom_objects"))}

    @classmethod
    def unpack(cls, values: dict[str, Any]) -> dict[str, Any]:
        return _unpacked(values)


def _history(result: Result) -> dict[str, list[Any]]:
    from farandole.estimators.progress import named

    by_metric: dict[str, list[Any]] = {}
    for record in result.history:
        for name, number in named(record).items():
            by_metric.setdefault(name, []).append(number)
    return by_metric


def _whole(model: Any, custom: Any) -> tuple[Packed, bytes]:
    packed = pack(model, custom or {})
    arguments = compiled_arguments(model)
    return packed, pack_arguments(packed.package(), arguments, packed.objects())


def _unpacked(values: dict[str, Any]) -> dict[str, Any]:
    # an estimator without a model, or the file of another class
    if not isinstance(values.get("model"), tuple):
        return dict(values)
    packed, compiled = values["model"]
    model, keras = packed.open(), packed.package()
    try:
        with packed.scope():
            arguments = (
                keras.saving.deserialize_keras_object(compiled)  # written by earlier versions
                if isinstance(compiled, dict)
                else open_arguments(keras, compiled)
            )
            if arguments:
                model.compile(**arguments)
    # the user's classes and functions may raise anything, and predictions do not need them
    except Exception as error:
        logger.warning(
            "the model is loaded without its optimizer, loss and metrics (%s: %s). It predicts;"
            " call compile() before training it",
            type(error).__name__,
            error,
        )
    return {**values, "model": model}
