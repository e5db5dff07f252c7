"""What does not fit together, found before training starts: a model and its features, a loss and
its labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from farandole.errors import DataError


def describe_columns(names: Sequence[str], arrays: Iterable[Any]) -> str:
    """Columns with the type and the shape of a row, for messages."""
    pairs = zip(names, arrays, strict=True)
    return ", ".join(f"{name} {each.dtype}{list(each.shape[1:])}" for name, each in pairs)


def features_error(
    features: str, error: Exception, *, by: str = "the model", cure: str = ""
) -> DataError:
    """For a model that raised ``error``. ``by``: which part of it."""
    cure = f". {cure}" if cure else ""
    return DataError(
        f"{by} cannot take the features {features}: {type(error).__name__}: {error}{cure}"
    )


def loss_error(outputs: Any, labels: str, error: Exception) -> DataError:
    """For a loss that raised ``error``. ``outputs``: their shapes."""
    return DataError(
        f"the loss cannot take outputs of shape {outputs} and {labels}: {type(error).__name__}:"
        f" {error}"
    )


def check_output_count(outputs: Sequence[Any], labels: Sequence[str]) -> None:
    """DataError unless there is one output for each label."""
    if len(outputs) != len(labels):
        raise DataError(
            f"the model has {len(outputs)} outputs for {len(labels)} label columns: {labels}"
        )
