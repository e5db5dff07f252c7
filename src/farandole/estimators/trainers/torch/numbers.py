"""The loss and the metrics of an epoch, of training or of validation."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from farandole.errors import DataError
from farandole.estimators.trainers.base import sum_over_ranks
from farandole.estimators.trainers.shape_errors import describe_columns
from farandole.estimators.trainers.torch.losses import Objective


class Numbers:
    """Accumulates values batch by batch, over all rows of all ranks."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self._functions = [
            (index, function) for index, group in enumerate(objective.metrics) for function in group
        ]
        self._sums = torch.zeros(1 + len(self._functions), dtype=torch.float64)
        self._rows = 0

    def add(self, rows: int, loss: Any, outputs: Any, labels: Any) -> None:
        """Add a batch with ``rows`` counted rows."""
        if not rows:
            return
        with torch.no_grad():
            outputs, labels = self._objective.matched(outputs, labels)
            values = [self._value(*each, outputs, labels) for each in self._functions]
            numbers = torch.tensor([_plain(loss), *values], dtype=torch.float64)
        self._rows += rows
        self._sums = self._sums + numbers * rows

    def _value(self, index: int, function: Any, outputs: Any, labels: Any) -> float:
        """Return a metric's value. Raises DataError, naming the metric and its label, if it is not
        a number.
        """
        output, label = outputs[index], labels[index]
        try:
            return _plain(function(output, label))
        except Exception as error:  # raised by the user's function
            column = describe_columns([self._objective.labels[index]], [label])
            raise DataError(
                f"the metric {_name(function)} must return one number for an output of shape"
                f" {tuple(output.shape[1:])} and the label {column}: {type(error).__name__}:"
                f" {error}"
            ) from error

    def means_over_ranks(self) -> dict[str, Any]:
        """Return the means over the rows of all ranks."""
        *totals, rows = sum_over_ranks([*self._sums.tolist(), self._rows])
        loss, *others = (total / rows for total in totals)
        means: dict[str, Any] = {"loss": loss}
        groups: list[list[float]] = [[] for _ in self._objective.metrics]
        for (index, function), mean in zip(self._functions, others, strict=True):
            name = _name(function)
            name = name if len(groups) == 1 else f"{self._objective.labels[index]}_{name}"
            number = next(
                number for number in itertools.count() if _numbered(name, number) not in means
            )
            means[_numbered(name, number)] = mean
            groups[index].append(mean)
        return {**means, "all_metrics": groups}


def _plain(value: Any) -> float:
    return float(torch.as_tensor(value).detach().item())


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _numbered(name: str, number: int) -> str:
    """Return a unique name for a metric: duplicates (lambdas, "loss") get a number."""
    return f"{name}_{number}" if number else name
