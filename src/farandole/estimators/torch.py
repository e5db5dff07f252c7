"""``TorchEstimator``: a PyTorch model, trained on a DataFrame."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from farandole.base.pickled import dumps
from farandole.errors import SettingsError
from farandole.estimators.batches import Batch
from farandole.estimators.fingerprint import digest, plain
from farandole.estimators.loaders.torch import Loader
from farandole.estimators.spark.estimator import DistributedEstimator
from farandole.estimators.spark.model import DistributedModel
from farandole.estimators.spark.params import Row, declare, shapes
from farandole.estimators.spec import OutputKind, Result, Spec
from farandole.estimators.trainers.torch.check import check
from farandole.estimators.trainers.torch.losses import (
    constructor,
    losses,
    output_kind,
    refuse_class,
)
from farandole.estimators.trainers.torch.state import opened
from farandole.estimators.trainers.torch.trainer import train

EXTRA = (
    Row("input_shapes", None, "shapes of inputs, with -1 or without the rows", shapes),
    Row("loss_constructors", None, "functions that return losses, instead of loss"),
    Row(
        "train_minibatch_fn",
        None,
        "function of model, optimizer, transform_outputs, loss_fn, inputs, labels and"
        " sample_weights that takes a step and returns outputs and loss",
    ),
    Row("data_module", None, "no effect: farandole.data reads the rows"),
)
_UNPICKLED = "optimizer's own"  # the file next to the parameters that stores these


@declare(EXTRA)
class TorchEstimator(DistributedEstimator):
    """Trains ``model``, a ``torch.nn.Module``, with ``optimizer`` (of its parameters, or a function
    of them) and ``loss`` (a function of output and label, or the name of one in
    torch.nn.functional).

    The parameters are ``farandole.estimators.spark.params.COMMON``, and ``EXTRA`` here.
    """

    train = staticmethod(train)
    _prefix = "pytorch"

    def payload(self) -> dict[str, Any]:
        value = self.getOrDefault
        model, labels = value("model"), value("label_cols")
        if not isinstance(model, torch.nn.Module):
            raise SettingsError(
                f"model has to be an instance of torch.nn.Module, not {type(model).__name__}"
            )
        if value("loss") is not None and value("loss_constructors"):
            raise SettingsError(
                "only one of loss_constructors and loss parameters can be specified."
            )
        if value("loss") is None and not value("loss_constructors"):
            raise SettingsError(
                "Loss parameter is required, for example loss=torch.nn.functional.cross_entropy"
            )
        model, optimizer = _on_cpu(model, _optimizer(value("optimizer"), model))
        chosen = value("loss")
        if chosen is None:
            known = {
                "model": model,
                "optimizer": optimizer,
                "feature_columns": value("feature_cols"),
                "label_columns": labels,
                "input_shapes": value("input_shapes"),
                "loss_weights": value("loss_weights"),
                "batch_size": value("batch_size"),
                "epochs": value("epochs"),
            }
            chosen = [_constructed(make, known) for make in _several(value("loss_constructors"))]
        return {
            "model": model,
            "optimizer": optimizer,
            "unpickled": unpickled(optimizer),
            "losses": _for_each(losses(_several(chosen)), labels),
            "loss_weights": value("loss_weights"),
            "metrics": _metrics(value("metrics"), labels),
            "labels": tuple(labels),
            "input_shapes": value("input_shapes"),
            "label_shapes": value("label_shapes"),
            "categories": tuple(value("categorical_cols") or ()),
            "callbacks": list(value("callbacks") or ()),
            "minibatch": value("train_minibatch_fn"),
        }

    def facts(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        optimizer = payload["optimizer"]
        groups = [
            {
                name: value
                for name, value in group.items()
                if isinstance(value, bool | int | float | str | tuple)
            }
            for group in optimizer.param_groups
        ]
        return {
            "optimizer": [type(optimizer).__name__, groups],
            "loss": plain(payload["losses"]),
            "model": digest(repr(payload["model"])),
        }

    def kind_of_outputs(self, payload: Mapping[str, Any]) -> OutputKind | None:
        chosen = payload.get("losses") or [None]  # a LightningModule has its own
        return output_kind(chosen[0])

    def check(self, spec: Spec, batch: Batch) -> list[tuple[int, ...]] | None:
        return check(spec, batch)

    def model_of(self, result: Result, spec: Spec, metadata: dict[str, Any]) -> TorchModel:
        model, optimizer, unpickled = copy.deepcopy(
            [spec.payload[each] for each in ("model", "optimizer", "unpickled")]
        )
        vars(optimizer).update(unpickled)
        state = opened(result.weights)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        return TorchModel(
            history=result.history,
            model=model,
            optimizer=optimizer,
            feature_columns=list(spec.columns.features),
            label_columns=list(spec.columns.labels),
            input_shapes=self.getOrDefault("input_shapes"),
            run_id=spec.run_id,
            _metadata={**metadata, "categories": spec.payload["categories"]},
            loss=self.getOrDefault("loss"),
            loss_constructors=self.getOrDefault("loss_constructors"),
        )

    def pack(self, values: dict[str, Any]) -> dict[str, Any]:
        return _packed(values)

    @classmethod
    def unpack(cls, values: dict[str, Any]) -> dict[str, Any]:
        return _unpacked(values)


@declare(
    (
        Row("optimizer", None, "the optimizer after training"),
        EXTRA[0],
        Row("loss", None, "the loss"),
        EXTRA[1],
    )
)
class TorchModel(DistributedModel):
    """A trained PyTorch model: ``transform(df)`` adds predictions."""

    def loader(self) -> Loader:
        model, _ = _on_cpu(self.getOrDefault("model"), None)
        categories = (self.getOrDefault("_metadata") or {}).get("categories", ())
        names = self.getOrDefault("feature_columns")
        shapes, labels = self.getOrDefault("input_shapes"), self.getOrDefault("label_columns")
        return Loader(dumps(model), [name in categories for name in names], shapes, labels, names)

    def pack(self, values: dict[str, Any]) -> dict[str, Any]:
        return _packed(values)

    @classmethod
    def unpack(cls, values: dict[str, Any]) -> dict[str, Any]:
        return _unpacked(values)


def _several(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _constructed(make: Any, known: Mapping[str, Any]) -> Any:
    """Call a loss constructor with the values that its argument names request, as Horovod passes
    its local variables.
    """
    if not callable(make):
        raise SettingsError(f"loss_constructors: {make!r} is not a function that returns a loss")
    try:
        asked = inspect.signature(make).parameters.values()
    except ValueError:  # a function written in C
        return make()
    # its arguments are options of a loss
    if isinstance(make, type) and issubclass(make, torch.nn.Module):
        needs, call = constructor(make)
        if needs:
            raise SettingsError(
                f"loss_constructors: {make.__name__} is a class{needs}. Pass a function that"
                f" creates the loss, lambda: {call}; its arguments may be any of"
                f" {', '.join(known)}"
            )
        return make()
    every = any(each.kind is each.VAR_KEYWORD for each in asked)
    named = {
        each.name for each in asked if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
    }
    missing = [
        each.name
        for each in asked
        if each.name in named - set(known) and each.default is each.empty
    ]
    if missing:
        raise SettingsError(
            f"loss_constructors: {getattr(make, '__name__', make)} has the unknown arguments"
            f" {', '.join(missing)}; known arguments: {', '.join(known)}"
        )
    return make(**{name: each for name, each in known.items() if every or name in named})


def unpickled(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return state of an optimizer that its pickles and copies lack, such as LBFGS's list of
    parameters.
    """
    copied = vars(copy.copy(optimizer))
    return {
        name: value
        for name, value in vars(optimizer).items()
        if name not in copied and name != "step"
    }


def _packed(values: dict[str, Any]) -> dict[str, Any]:
    """Return parameters in their written form."""
    optimizer = values.get("optimizer")
    return (
        {**values, _UNPICKLED: unpickled(optimizer)}
        if isinstance(optimizer, torch.optim.Optimizer)
        else values
    )


def _unpacked(values: dict[str, Any]) -> dict[str, Any]:
    """Restore written parameters, including those written without the state of ``unpickled`` (older
    versions).
    """
    values_found = dict(values)
    held = values_found.pop(_UNPICKLED, {})
    if held:
        vars(values_found["optimizer"]).update(held)
    return values_found


def _for_each(losses: list[Any], labels: list[str]) -> list[Any]:
    """Return a loss for each label, from one for all labels or one for each."""
    if len(losses) == 1:
        return losses * len(labels)
    if len(losses) != len(labels):
        raise SettingsError(
            f"List of losses must be length {len(labels)}, one for each label, not {len(losses)}"
        )
    return losses


def _metrics(metrics: Any, labels: list[str]) -> list[list[Callable[..., Any]]]:
    """Return functions of output and label, for each label."""
    given = _several(metrics or [])
    found = (
        given
        if given and all(isinstance(each, list | tuple) for each in given)
        else [given] * len(labels)
    )
    if len(found) != len(labels):
        raise SettingsError(
            f"List of metrics must be length {len(labels)}, one for each label, not {len(found)}"
        )
    for each in (each for group in found for each in group):
        if isinstance(each, type) and issubclass(each, torch.nn.Module):
            refuse_class("metrics", each)
        if not callable(each):
            raise SettingsError(f"metrics: {each!r} is not a function of output and label")
    return [list(group) for group in found]


def _optimizer(optimizer: Any, model: torch.nn.Module) -> torch.optim.Optimizer:
    if optimizer is None:
        raise SettingsError(
            "Optimizer is required, for example optimizer=torch.optim.SGD(model.parameters(),"
            " lr=0.01)"
        )
    bound = (
        optimizer
        if isinstance(optimizer, torch.optim.Optimizer)
        else optimizer(model.parameters())
        if callable(optimizer)
        else None
    )
    if not isinstance(bound, torch.optim.Optimizer):
        raise SettingsError(
            f"optimizer is {type(optimizer).__name__}. Pass a torch optimizer, or a function of"
            " parameters"
        )
    own = {id(parameter) for parameter in model.parameters()}
    for group in bound.param_groups:
        if any(id(parameter) not in own for parameter in group["params"]):
            raise SettingsError(
                "the optimizer has parameters that do not belong to this model. Create it from"
                " model.parameters(), or pass a function: optimizer=lambda parameters:"
                " torch.optim.SGD(parameters, lr=0.01)"
            )
    return bound


def _on_cpu(model: torch.nn.Module, optimizer: Any) -> tuple[torch.nn.Module, Any]:
    """Return both in host memory: unchanged if they already are, otherwise copies."""
    tensors = [*model.parameters(), *model.buffers()]
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return model, optimizer
    model, optimizer = copy.deepcopy((model, optimizer))
    model.cpu()
    if optimizer is not None:
        optimizer.load_state_dict(optimizer.state_dict())  # moves its state to its parameters
    return model, optimizer
