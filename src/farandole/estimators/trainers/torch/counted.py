"""Classification losses with a mean that is not over rows: classes have weights, or some labels are
ignored.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch

OF_CLASSES = (torch.nn.CrossEntropyLoss, torch.nn.NLLLoss)
OF_CLASSES_TOO = (torch.nn.functional.cross_entropy, torch.nn.functional.nll_loss)


def is_of_classes(loss: Any) -> bool:
    return isinstance(loss, OF_CLASSES) or loss in OF_CLASSES_TOO


def divisor(loss: Any, label: Any) -> float | None:
    """Return the divisor of ``loss``'s sum if it may differ between ranks with the same number of
    rows, else None. All ranks decide in the same way.
    """
    if (
        not is_of_classes(loss)
        or label.is_floating_point()
        or getattr(loss, "reduction", "mean") != "mean"
    ):
        return None
    weight, ignored = getattr(loss, "weight", None), getattr(loss, "ignore_index", -100)
    # a label for each row, and no class below 0
    if weight is None and ignored < 0 and label.dim() == 1:
        return None
    counts = label[label != ignored]
    return float(counts.numel() if weight is None else weight.to(label.device)[counts].sum())


def summed(loss: Any) -> Callable[..., Any]:
    """Return ``loss`` without its division."""
    if not isinstance(loss, torch.nn.Module):
        return functools.partial(loss, reduction="sum")
    summed: Any = copy.copy(loss)
    summed.reduction = "sum"
    return summed  # type: ignore[no-any-return]
