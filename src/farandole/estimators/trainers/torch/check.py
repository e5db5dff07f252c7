"""Checks of model and loss before training starts."""

from __future__ import annotations

import copy

import torch

from farandole.errors import DataError
from farandole.estimators.batches import Batch
from farandole.estimators.loaders.torch import naming
from farandole.estimators.spec import Spec
from farandole.estimators.trainers.shape_errors import describe_columns, features_error, loss_error
from farandole.estimators.trainers.torch.losses import Objective
from farandole.estimators.trainers.torch.tensors import tensors


def check(spec: Spec, batch: Batch) -> list[tuple[int, ...]]:
    """Run model and loss once on these rows, and return the shape of a row of each output.

    Raises DataError for rows that do not fit.
    """
    model = copy.deepcopy(spec.payload["model"]).eval()
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    objective = Objective(spec)
    with torch.no_grad():
        try:
            inputs, labels, weights = tensors(batch, spec, model, device)
            with naming(model, spec.columns.features, inputs):
                outputs = model(*inputs)
        except DataError:  # its message is sufficient
            raise
        except Exception as error:  # raised by the user's model
            cure = (
                "input_shapes reshapes them; columns in categorical_cols are passed as integers,"
                " others as floats"
            )
            raise features_error(
                describe_columns(spec.columns.features, batch.inputs), error, cure=cure
            ) from error
        matched, labels = objective.matched(outputs, labels)
        shapes = [tuple(each.shape[1:]) for each in matched]
        try:
            loss = objective.for_batch(1.0)(matched, labels, weights)
        except Exception as error:
            described = f"labels {describe_columns(objective.labels, labels)}"
            raise loss_error(shapes, described, error) from error
    if loss.numel() != 1:
        raise DataError(
            f"the loss returned a tensor of shape {tuple(loss.shape)}, but must return one number,"
            " the mean over the batch"
        )
    return shapes
