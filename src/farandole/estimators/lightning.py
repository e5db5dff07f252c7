"""``LightningEstimator``: a LightningModule (Lightning 2), trained on a DataFrame."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from farandole.base.log import logger
from farandole.errors import SettingsError
from farandole.estimators.batches import Batch
from farandole.estimators.fingerprint import digest
from farandole.estimators.loaders.torch import floating, inputs_of
from farandole.estimators.spark.params import Row, declare
from farandole.estimators.spec import Columns, Result, Spec, Watching
from farandole.estimators.torch import TorchEstimator, TorchModel
from farandole.estimators.trainers.lightning.check import check
from farandole.estimators.trainers.lightning.packages import package_of
from farandole.estimators.trainers.lightning.trainer import train
from farandole.estimators.trainers.torch.state import opened
from farandole.estimators.trainers.torch.trainer import train as train_plain

EXTRA = (
    Row("num_gpus", None, "no effect: each rank has one device"),
    Row("logger", None, "a Lightning logger, for rank 0"),
    Row("log_every_n_steps", 50, "steps between log lines"),
    Row("loader_num_epochs", None, "no effect: data is read epoch by epoch"),
    Row("terminate_on_nan", False, "stop training at a NaN or infinite gradient"),
    Row("profiler", None, "a Lightning profiler"),
    Row("trainer_args", None, "additional arguments for lightning.pytorch.Trainer"),
    Row("debug_data_loader", False, "no effect"),
    Row("train_async_data_loader_queue_size", None, "no effect: see train_reader_num_workers"),
    Row("val_async_data_loader_queue_size", None, "no effect: see val_reader_num_workers"),
)
GONE = {
    "training_epoch_end": "on_train_epoch_end",
    "validation_epoch_end": "on_validation_epoch_end",
}


@declare(EXTRA)
class LightningEstimator(TorchEstimator):
    """Trains ``model``, a LightningModule (of ``lightning`` or ``pytorch_lightning``) with
    ``configure_optimizers`` and ``training_step``.

    A batch is a dict of tensors by column name. A plain ``torch.nn.Module`` is trained as in
    TorchEstimator.
    """

    _prefix = "lightning"

    @property
    def train(self) -> Callable[[Spec], Result | None]:  # type: ignore[override]
        return train if self._module() is not None else train_plain

    def _module(self) -> Any:
        model = self.getOrDefault("model")
        return None if package_of(model) is None else model

    def payload(self) -> dict[str, Any]:
        if self._module() is None:
            return super().payload()
        value = self.getOrDefault
        for name in (
            "optimizer",
            "loss",
            "loss_weights",
            "loss_constructors",
            "train_minibatch_fn",
        ):
            if value(name) is not None:
                raise SettingsError(
                    f"Parameter `{name}` cannot be specified with a `LightningModule`: it has"
                    " its own"
                )
        if "dataloader_iter" in inspect.signature(self._module().training_step).parameters:
            raise SettingsError(
                f"{type(self._module()).__name__}.training_step takes dataloader_iter, which may"
                " yield any number of batches, but a step here is one batch of each rank. Use the"
                " arguments (batch, batch_idx)"
            )
        for name, now in GONE.items():
            if callable(getattr(self._module(), name, None)):
                raise SettingsError(
                    f"{type(self._module()).__name__} has {name}(outputs), which Lightning 2 does"
                    " not call. Collect the outputs of the steps in an attribute, and use it in"
                    f" {now}()"
                )
        if value("backward_passes_per_step") != 1:
            raise SettingsError(
                "backward_passes_per_step is not supported. Use"
                " trainer_args={'accumulate_grad_batches': n}"
            )
        for name in ("metrics", "label_shapes"):
            if value(name):
                logger.warning(
                    "%s has no effect: a LightningModule logs its own metrics and reshapes its"
                    " labels",
                    name,
                )
        return {
            "model": self._module(),
            "categories": tuple(value("categorical_cols") or ()),
            "numbers": tuple(value("continuous_cols") or ()),
            "input_shapes": value("input_shapes"),
            "callbacks": list(value("callbacks") or ()),
            "trainer_args": dict(value("trainer_args") or {}),
            "terminate_on_nan": value("terminate_on_nan"),
            **{name: value(name) for name in ("logger", "log_every_n_steps", "profiler")},
        }

    def facts(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        if self._module() is None:
            return super().facts(payload)
        hyperparameters = dict(self._module().hparams)
        held = {
            name: value
            for name, value in hyperparameters.items()
            if isinstance(value, bool | int | float | str)
        }
        return {"hparams": held, "model": digest(repr(self._module()))}

    def check(self, spec: Spec, batch: Batch) -> list[tuple[int, ...]] | None:
        if self._module() is None:
            return super().check(spec, batch)
        return check(spec, batch, self._module())

    def _watching(self, validated: bool) -> Watching:
        """Make the validation loss optional, because modules choose the values they log."""
        return super()._watching(validated)._replace(required=self.isSet("monitor"))

    def model_of(self, result: Result, spec: Spec, metadata: dict[str, Any]) -> TorchModel:
        if self._module() is None:
            return super().model_of(result, spec, metadata)
        model = copy.deepcopy(self._module())
        model.load_state_dict(opened(result.weights)["model"])
        return LightningModel(
            history=result.history,
            model=model,
            feature_columns=list(spec.columns.features),
            label_columns=list(spec.columns.labels),
            input_shapes=self.getOrDefault("input_shapes"),
            run_id=spec.run_id,
            _metadata={**metadata, "categories": self._whole(spec, metadata["dtypes"])},
        )

    def _columns(self) -> Columns:
        return super()._columns()._replace(by_name=self._module() is not None)

    def _whole(self, spec: Spec, dtypes: Mapping[str, str]) -> tuple[str, ...]:
        """Return the features that the module takes as integers, in predictions as in training."""
        whole = spec.payload["categories"]
        if spec.columns.by_row:
            own = [
                name
                for name in spec.columns.features
                if np.dtype(dtypes.get(name, "float")).kind in "iu"
            ]
            whole = (*whole, *(name for name in own if name not in spec.payload["numbers"]))
        return tuple(dict.fromkeys(whole))


class LightningModel(TorchModel):
    """A trained module: ``transform(df)`` adds predictions of its ``forward``. If a subclass
    overrides ``get_prediction_fn``, predictions come from that function, row by row.
    """

    def get_prediction_fn(self) -> Callable[[Any, Any], Any]:
        """Return a function of the model and a row (a Spark Row, or a dict) that returns the
        model's outputs.
        """
        names, shapes = self.getOrDefault("feature_columns"), self.getOrDefault("input_shapes")
        categories = (self.getOrDefault("_metadata") or {}).get("categories", ())

        def predict(model: Any, row: Any) -> Any:
            arrays = [
                np.asarray([row[name]], None if name in categories else np.float64)
                for name in names
            ]
            whole = [name in categories for name in names]
            with torch.no_grad():
                return model(
                    *inputs_of(arrays, whole, shapes, floating(model), torch.device("cpu"))
                )

        return predict

    def own_prediction(self) -> Callable[[Any, Any], Any] | None:
        changed = type(self).get_prediction_fn is not LightningModel.get_prediction_fn
        return self.get_prediction_fn() if changed else None
