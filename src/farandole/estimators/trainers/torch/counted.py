"""Losses of classes whose mean is not one over rows: classes have weights, or some labels do not
count.
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
    """By what ``loss`` divides its sum, where that may be another number on ranks with as many
    rows; None elsewhere. All ranks decide alike.
    """
    if (
        not is_of_classes(loss)
        or label.is_floating_point()
        or getattr(loss, "reduction", "mean") != "mean"
    ):
        return None
    weight, ignored = getattr(loss, "weight", None), getattr(loss, "ignore_index", -100)
    if weight is None and ignored < 0 and label.dim() == 1:  # no label of a row is a class below 0
        return None
    counts = label[label != ignored]
    return float(counts.numel() if weight is None else weight.to(label.device)[counts].sum())


def summed(loss: Any) -> Callable[..., Any]:
    """``loss``, without its division."""
    if not isinstance(loss, torch.nn.Module):
        return functools.partial(loss, reduction="sum")
    summed: Any = copy.copy(loss)
    summed.reduction = "sum"
    return summed  # type: ignore[no-any-return]
