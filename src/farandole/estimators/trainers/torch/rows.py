"""Rows as a PyTorch model takes them."""

from __future__ import annotations

from typing import Any

from farandole.estimators.batches import Batch
from farandole.estimators.loaders.torch import floating, inputs_of, label_of, tensor_of
from farandole.estimators.spec import Spec


def tensors(batch: Batch, spec: Spec, model: Any, device: Any) -> tuple[list[Any], list[Any], Any]:
    """Inputs, labels and weights. Inputs are floats, but for categories."""
    whole = [name in spec.payload["categories"] for name in spec.columns.features]
    inputs = inputs_of(batch.inputs, whole, spec.payload["input_shapes"], floating(model), device)
    labels = [label_of(label, model).to(device) for label in batch.labels]
    return inputs, labels, None if batch.weight is None else tensor_of(batch.weight).to(device)
