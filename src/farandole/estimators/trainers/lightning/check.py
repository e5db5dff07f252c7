"""Checks of the module before training starts."""

from __future__ import annotations

import copy
from typing import Any

import torch

from farandole.estimators.batches import Batch
from farandole.estimators.loaders.torch import output_list
from farandole.estimators.spec import Spec
from farandole.estimators.trainers.lightning.rows import given
from farandole.estimators.trainers.shape_errors import check_output_count, features_error


def check(spec: Spec, batch: Batch, module: Any) -> list[tuple[int, ...]] | None:
    """Call ``module`` once on these rows, and return the shape of a row of each output.

    None if only training determines it. Raises DataError for rows that do not fit.
    """
    names, labels = spec.columns.features, spec.columns.labels
    if batch.others and not set(names) <= set(batch.others):
        # transformation_fn has made other columns from the features, and only training_step knows
        # them
        return None
    module = copy.deepcopy(module).eval()
    try:
        with torch.no_grad():
            columns = given(batch, spec, module)
            outputs = module(*(columns[name] for name in names))
    except Exception as error:
        raise features_error(", ".join(names), error, by="the model's forward") from error
    matched = output_list(outputs, labels)
    check_output_count(matched, labels)
    return [tuple(each.shape[1:]) for each in matched]
