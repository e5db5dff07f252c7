"""Rows as tensors for a PyTorch model, and the device of this rank."""

from __future__ import annotations

from typing import Any

import torch

import farandole.torch as hvd
from farandole.estimators.batches import Batch
from farandole.estimators.loaders.torch import floating, inputs_of, label_of, tensor_of
from farandole.estimators.spec import Spec
from farandole.estimators.trainers.rank import gpu_index


def device_of_rank(use_gpu: bool) -> torch.device:
    """Return this rank's GPU if ``use_gpu`` is set and there is a GPU, otherwise the CPU."""
    if use_gpu and torch.cuda.is_available():
        return torch.device("cuda", gpu_index(hvd.local_rank(), torch.cuda.device_count()))
    return torch.device("cpu")


def tensors(batch: Batch, spec: Spec, model: Any, device: Any) -> tuple[list[Any], list[Any], Any]:
    """Return inputs, labels and weights as tensors. Inputs are floats, except for categories."""
    whole = [name in spec.payload["categories"] for name in spec.columns.features]
    inputs = inputs_of(batch.inputs, whole, spec.payload["input_shapes"], floating(model), device)
    labels = [label_of(label, model).to(device) for label in batch.labels]
    return inputs, labels, None if batch.weight is None else tensor_of(batch.weight).to(device)
