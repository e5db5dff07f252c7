"""Errors about shapes, found before training starts: of a model and its features, or of a loss and
its labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from farandole.errors import DataError


def describe_columns(names: Sequence[str], arrays: Iterable[Any]) -> str:
    """Describe columns with the type and shape of a row, for messages."""
    pairs = zip(names, arrays, strict=True)
    return ", ".join(f"{name} {each.dtype}{list(each.shape[1:])}" for name, each in pairs)


def features_error(
    features: str, error: Exception, *, by: str = "the model", cure: str = ""
) -> DataError:
    """Return the error for a model that raised ``error``. ``by``: the part of the model that raised
    it.
    """
    cure = f". {cure}" if cure else ""
    return DataError(
        f"{by} cannot take the features {features}: {type(error).__name__}: {error}{cure}"
    )


def loss_error(outputs: Any, labels: str, error: Exception) -> DataError:
    """Return the error for a loss that raised ``error``. ``outputs``: the shapes of outputs."""
    return DataError(
        f"the loss cannot take outputs of shape {outputs} and {labels}: {type(error).__name__}:"
        f" {error}"
    )


def check_output_count(outputs: Sequence[Any], labels: Sequence[str]) -> None:
    """Raise DataError unless there is one output for each label."""
    if len(outputs) != len(labels):
        raise DataError(
            f"the model has {len(outputs)} outputs for {len(labels)} label columns: {labels}"
        )
