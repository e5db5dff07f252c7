"""``KerasEstimator``: a Keras model (Keras 3 on any backend, or tf_keras), trained on a
DataFrame.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cloudpickle

from farandole.errors import SettingsError
from farandole.estimators.batches import Batch
from farandole.estimators.fingerprint import configured, digest, plain
from farandole.estimators.loaders.keras import Loader, Packed, backend_of, pack
from farandole.estimators.spark.estimator import DistributedEstimator
from farandole.estimators.spark.model import DistributedModel
from farandole.estimators.spark.params import Row, declare
from farandole.estimators.spec import Result, Spec, direction
from farandole.estimators.trainers.keras.check import by_name, check
from farandole.estimators.trainers.keras.compiling import compile_options
from farandole.estimators.trainers.keras.state import load, slots
from farandole.estimators.trainers.keras.trainer import train

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
    model's compiled ones. The parameters are ``farandole.estimators.spark.params.COMMON``, and
    ``EXTRA`` here.
    """

    train = staticmethod(train)
    _prefix = "keras"
    _greedy = True

    def payload(self) -> dict[str, Any]:
        value = self.getOrDefault
        model = value("model")
        backend_of(model)
        compiled = _compile_config(model)
        options = {name: value(name) for name in ("optimizer", "loss", "loss_weights")}
        options["metrics"] = value("metrics") or None
        if options["optimizer"] is None and "optimizer" not in compiled:
            raise SettingsError(
                "Optimizer must be provided either as a parameter or as part of a compiled model"
            )
        if options["loss"] is None and not compiled.get("loss"):
            raise SettingsError("Loss parameter is required for the model to compile")
        packed = pack(model, value("custom_objects") or {})
        optimizer = model.optimizer if options["optimizer"] is None else options["optimizer"]
        if options["optimizer"] is not None:
            options["optimizer"] = packed.package().optimizers.serialize(
                packed.package().optimizers.get(options["optimizer"])
            )
        return {
            "model": packed,
            "compiled": compiled,
            "options": options,
            "callbacks": list(value("callbacks") or ()),
            "categories": tuple(value("categorical_cols") or ()),
            "label_shapes": value("label_shapes"),
            "slots": slots(optimizer) if hasattr(optimizer, "variables") else [],
        }

    def facts(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        options, compiled = payload["options"], payload["compiled"]
        loss = options["loss"] if options["loss"] is not None else compiled.get("loss")
        layers = [
            [type(each).__name__, configured(each)]
            for each in self.getOrDefault("model")._flatten_layers()
        ]
        optimizer = options["optimizer"] or compiled.get("optimizer")
        return {"optimizer": plain(optimizer), "loss": plain(loss), "model": digest(layers)}

    def check(self, spec: Spec, batch: Batch) -> list[tuple[int, ...]]:
        model = spec.payload["model"].open()
        known = len(model.weights)
        model = by_name(spec, batch, model)
        shapes = check(spec, batch, model)
        # these rows have built the model: ranks and the result need all of its weights
        if len(model.weights) != known:
            spec.payload["model"] = pack(model, self.getOrDefault("custom_objects") or {})
        return shapes

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
        if mode is None:  # tf_keras has chosen the mode
            mode = "max" if getattr(best.monitor_op, "__name__", "") == "greater" else "min"
        return watching._replace(
            monitor=monitor, mode=direction(monitor) if mode == "auto" else mode
        )

    def model_of(self, result: Result, spec: Spec, metadata: dict[str, Any]) -> KerasModel:
        packed = spec.payload["model"]
        keras, model = packed.package(), packed.open()
        with keras.utils.custom_object_scope(cloudpickle.loads(packed.custom)):
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
        packed = dict(values)
        if "model" in packed:
            packed["model"] = _whole(packed["model"], self.getOrDefault("custom_objects"))
        return packed

    @classmethod
    def unpack(cls, values: dict[str, Any]) -> dict[str, Any]:
        return _unpacked(values)


@declare(
    (
        EXTRA[0],
        Row("_floatx", "float32", "Keras's floating-point dtype", also=("Floatx",)),
    )
)
class KerasModel(DistributedModel):
    """A trained Keras model: ``transform(df)`` adds predictions. ``getHistory()`` returns Keras's
    history, values by name.
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


def _compile_config(model: Any) -> dict[str, Any]:
    """Return a model's compile configuration; empty if it is not compiled."""
    if not getattr(model, "optimizer", None):
        return {}
    config = model.get_compile_config() or {}
    kept = ("optimizer", "loss", "loss_weights", "metrics", "weighted_metrics")
    return {name: config[name] for name in kept if config.get(name) is not None}


def _history(result: Result) -> dict[str, list[Any]]:
    from farandole.estimators.progress import named

    by_metric: dict[str, list[Any]] = {}
    for record in result.history:
        for name, number in named(record).items():
            by_metric.setdefault(name, []).append(number)
    return by_metric


def _whole(model: Any, custom: Any) -> tuple[Packed, dict[str, Any]]:
    return pack(model, custom or {}), _compile_config(model)


def _unpacked(values: dict[str, Any]) -> dict[str, Any]:
    # an estimator without a model, or the file of another class
    if not isinstance(values.get("model"), tuple):
        return values
    packed, compiled = values["model"]
    model, keras = packed.open(), packed.package()
    if compiled:
        with keras.utils.custom_object_scope(cloudpickle.loads(packed.custom)):
            model.compile(**compile_options(keras, {"compiled": compiled, "options": {}}))
    return {**values, "model": model}
