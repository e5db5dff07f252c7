"""The losses of a model's outputs, for labels of any shape that fits."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from farandole.errors import DataError, SettingsError, did_you_mean
from farandole.estimators.loaders.arrays import fits, rows_of
from farandole.estimators.loaders.torch import output_list
from farandole.estimators.spec import OutputKind, Spec
from farandole.estimators.trainers.shape_errors import check_output_count
from farandole.estimators.trainers.torch.counted import divisor, is_of_classes, summed


def losses(losses_given: Sequence[Any]) -> list[Callable[..., Any]]:
    """Return losses as functions. A name refers to a function in torch.nn.functional; raises
    SettingsError if there is none.
    """
    functions = torch.nn.functional
    known = [
        name for name in dir(functions) if "loss" in name or "entropy" in name or name == "kl_div"
    ]
    checked: list[Callable[..., Any]] = []
    for loss in losses_given:
        if isinstance(loss, str) and loss not in known:
            near = did_you_mean(loss, known)
            raise SettingsError(f"loss={loss!r} is not a loss of torch.nn.functional{near}")
        refuse_class("loss", loss)
        if not isinstance(loss, str) and not callable(loss):
            raise SettingsError(
                f"loss={loss!r} is not a function of output and label. Pass one, or its name"
            )
        checked.append(getattr(functions, loss) if isinstance(loss, str) else loss)
    return checked


_KINDS = {  # functions and classes of torch, without "Loss" and underscores
    "crossentropy": OutputKind("logits", False),
    "multimargin": OutputKind("logits", False),
    "nll": OutputKind("log_probabilities", False),
    "binarycrossentropywithlogits": OutputKind("logits", True),
    "bcewithlogits": OutputKind("logits", True),
    "binarycrossentropy": OutputKind("probabilities", True),
    "bce": OutputKind("probabilities", True),
}


def output_kind(loss: Any) -> OutputKind | None:
    """Return the kind of classifier output that a torch loss expects; None for other losses."""
    named = loss if hasattr(loss, "__name__") else type(loss)
    if not (getattr(named, "__module__", "") or "").startswith("torch."):
        return None
    name = named.__name__.lower().replace("_", "").removesuffix("loss")
    return _KINDS.get(name)


def refuse_class(parameter: str, value: Any) -> None:
    """Raise SettingsError for a class where an instance is expected."""
    if isinstance(value, type):
        needs, call = constructor(value)
        raise SettingsError(
            f"{parameter}: {value.__name__} is a class{needs}. Pass an instance, {call}"
        )


def constructor(kind: type) -> tuple[str, str]:
    """Describe a class's constructor for messages: " whose constructor needs (rate)",
    "Loss(rate=...)". The first is empty if it needs no arguments.
    """
    try:
        asked = [*inspect.signature(kind).parameters.values()]
    except ValueError:  # a function written in C
        asked = []
    names = [
        each.name
        for each in asked
        if each.default is each.empty and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
    ]
    needs = f" whose constructor needs ({', '.join(names)})" if names else ""
    return needs, f"{kind.__name__}({', '.join(f'{name}=...' for name in names)})"


class Objective:
    """The sum of the losses of all outputs. ``sums``: sums numbers over the ``size`` ranks."""

    def __init__(
        self,
        spec: Spec,
        sums: Callable[[Sequence[float]], Sequence[float]] = lambda numbers: numbers,
        size: int = 1,
    ) -> None:
        self.sums = sums
        self.size = size
        payload = spec.payload
        self.losses = payload["losses"]
        self.metrics = payload["metrics"]
        self.labels = payload["labels"]
        self.shapes = payload["label_shapes"]
        self.weights = payload["loss_weights"] or [1.0] * len(self.losses)
        self.rowwise = (
            [_rowwise(loss) for loss in self.losses] if spec.columns.weight is not None else []
        )

    def matched(self, outputs: Any, labels: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return outputs and labels as lists, with labels in the shape and type that the loss
        takes.
        """
        matched = output_list(outputs, self.labels)
        check_output_count(matched, self.labels)
        if self.shapes:
            labels = [rows_of(*each) for each in zip(labels, self.shapes, strict=True)]
        return matched, [_matched(*each) for each in zip(matched, labels, self.losses, strict=True)]

    def for_batch(self, share: float) -> BatchLoss:
        return BatchLoss(self, share)


class BatchLoss:
    """A function ``loss_fn(outputs, labels, sample_weights)`` whose gradients are scaled to this
    rank's share of the rows.
    """

    def __init__(self, objective: Objective, share: float) -> None:
        self._objective = objective
        self._share = share

    def __call__(
        self, outputs: Sequence[Any], labels: Sequence[Any], sample_weights: Any = None
    ) -> Any:
        mine = self._objective
        if sample_weights is None:
            parts = self._means(outputs, labels)
        else:
            parts = [
                (loss(*pair).reshape(len(sample_weights), -1).mean(1) * sample_weights).mean()
                for loss, *pair in zip(mine.rowwise, outputs, labels, strict=True)
            ]
        total = sum(part * weight for part, weight in zip(parts, mine.weights, strict=True))
        if self._share != 1 and total.requires_grad:
            total.register_hook(lambda gradient: gradient * self._share)
        return total

    def _means(self, outputs: Sequence[Any], labels: Sequence[Any]) -> list[Any]:
        """Return the losses. Ranks exchange the divisors of some losses, so that the mean over
        ranks equals one process's.
        """
        mine, share = self._objective, self._share
        own = [divisor(*each) for each in zip(mine.losses, labels, strict=True)]
        known = [number if share else 0.0 for number in own if number is not None]
        totals = iter(mine.sums(known) if known else ())
        parts = []
        for loss, output, label, number in zip(mine.losses, outputs, labels, own, strict=True):
            if number is None:
                parts.append(loss(output, label))
                continue
            total = next(totals)
            scale = mine.size / total / share if total and share else math.nan if share else 0.0
            parts.append(summed(loss)(output, label) * scale)
        return parts


def _matched(output: Any, label: Any, loss: Any) -> Any:
    if is_of_classes(loss) and label.numel() == len(label) and output.numel() != label.numel():
        _check_class_indices(label)
        return label.reshape(-1).long()
    turned = label.shape[:1] == output.shape[:1] and not fits(label.shape[1:], output.shape[1:])
    if label.numel() == output.numel() and output.is_floating_point() and not turned:
        return label.reshape(output.shape).to(output.dtype)
    return label


def _check_class_indices(label: Any) -> None:
    """Raise DataError for labels that are not class numbers, because long() would silently truncate
    them.
    """
    if label.is_floating_point() and not bool((label == label.trunc()).all()):
        wrong = label[label != label.trunc()].reshape(-1)[0].item()
        cure = "convert labels to indices (StringIndexer)"
        raise DataError(
            f"a label is {wrong:g}, but the loss takes class indices from 0. To fix this, {cure}"
        )


def _rowwise(loss: Any) -> Any:
    """Return the loss with a number for each row. Raises SettingsError if it does not support
    this.
    """
    if isinstance(loss, torch.nn.Module) and hasattr(loss, "reduction"):
        loss = copy.copy(loss)
        loss.reduction = "none"
        return loss
    try:
        parameters = inspect.signature(loss).parameters
        able = "reduction" in parameters or any(
            each.kind is each.VAR_KEYWORD for each in parameters.values()
        )
    except (TypeError, ValueError):  # a function written in C
        able = True
    if not able:
        raise SettingsError(
            "sample_weight_col needs the loss of each row. Pass a loss with an argument"
            f" reduction, such as torch's losses, instead of {getattr(loss, '__name__', loss)}"
        )
    return lambda output, label: loss(output, label, reduction="none")
