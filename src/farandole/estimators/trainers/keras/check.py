"""Checks of model and losses before training starts."""

from __future__ import annotations

import contextlib
from typing import Any

from farandole.errors import SettingsError
from farandole.estimators.batches import Batch
from farandole.estimators.loaders.arrays import fits
from farandole.estimators.loaders.keras import inputs_of, output_list
from farandole.estimators.spec import Spec
from farandole.estimators.trainers.keras.compiling import compile_options, heads_of, losses_of
from farandole.estimators.trainers.keras.rows import labels_of
from farandole.estimators.trainers.shape_errors import (
    check_output_count,
    describe_columns,
    features_error,
    loss_error,
)


def _build(model: Any, batch: Batch) -> None:
    """Build a Sequential without a known input shape, for any number of rows. Other models are
    built by a call.
    """
    if not model.built and type(model).__name__ == "Sequential" and len(batch.inputs) == 1:
        model.build((None, *batch.inputs[0].shape[1:]))


def by_name(spec: Spec, batch: Batch, model: Any) -> Any:
    """Return ``model``, or a model built from these rows with a dict of features by name.

    The latter applies if the model is not built and does not accept a list of features. The saved
    model then records its inputs.
    """
    names, categories, packed = (
        spec.columns.features,
        spec.payload["categories"],
        spec.payload["model"],
    )
    if (
        model.built
        or isinstance(model, packed.package().Sequential)
        or getattr(model, "inputs", None)
    ):
        return model
    try:
        packed.open()(inputs_of(model, names, batch.inputs, categories), training=False)
    except Exception:
        other = packed.open()
        arrays = (
            inputs_of(model, [name], [each], categories)
            for name, each in zip(names, batch.inputs, strict=True)
        )
        # a model that accepts neither gets the error for a list
        with contextlib.suppress(Exception):
            other(dict(zip(names, arrays, strict=True)), training=False)
            return other
    return model


def check(spec: Spec, batch: Batch, model: Any) -> list[tuple[int, ...]]:
    """Run ``model`` and the losses once on these rows, and return the shape of a row of each
    output.
    """
    keras = spec.payload["model"].package()
    names = spec.columns.features
    try:
        _build(model, batch)
        outputs = model(
            inputs_of(model, names, batch.inputs, spec.payload["categories"]), training=False
        )
    except Exception as error:
        raise features_error(describe_columns(names, batch.inputs), error) from error
    matched, labels = output_list(outputs, spec.columns.labels), labels_of(spec, batch)
    check_output_count(matched, spec.columns.labels)
    spec.payload["heads"] = heads_of(outputs, spec.columns.labels)
    shapes = [tuple(each.shape)[1:] for each in matched]
    label_shapes = spec.payload["label_shapes"] or [None] * len(labels)
    spec.payload["label_shapes"] = [
        _like(*each) for each in zip(label_shapes, labels, shapes, strict=True)
    ]
    labels = labels_of(spec, batch)
    with spec.payload["model"].scope():
        loss = compile_options(keras, spec.payload)["loss"]
    try:
        with spec.payload["model"].scope():
            chosen = losses_of(loss, outputs, model, spec)
            functions = [keras.losses.get(each) for each in chosen]
    except (ValueError, TypeError) as error:
        raise SettingsError(f"loss={loss!r}: {error}") from error
    for name, label, output, function in zip(
        spec.columns.labels, labels, matched, functions, strict=True
    ):
        if function is None:  # an output that is not trained
            continue
        try:
            function(*(_number(keras, each) for each in (label, output)))
        except Exception as error:
            raise loss_error(
                tuple(output.shape)[1:], f"label {describe_columns([name], [label])}", error
            ) from error
    return shapes


def _number(keras: Any, value: Any) -> Any:
    """Convert a value as Keras 3 does for losses: custom functions may not accept NumPy arrays."""
    return (
        keras.ops.convert_to_tensor(value, keras.backend.floatx())
        if hasattr(keras, "ops")
        else value
    )


def _like(given: Any, label: Any, output: tuple[int, ...]) -> Any:
    """Return the shape of a label: the user's, or the output's if it fits.

    Custom metrics and losses do not match shapes: a row of labels minus a column of outputs is a
    table.
    """
    return output if given is None and fits(label.shape[1:], output) else given
