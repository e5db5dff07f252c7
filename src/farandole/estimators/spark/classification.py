"""A classifier's columns in Spark ML's types, for its evaluators: the class, and a score and a
probability for each class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pyspark.ml.functions import array_to_vector
from pyspark.ml.param import TypeConverters
from pyspark.sql import functions as F

from farandole.errors import SettingsError, did_you_mean
from farandole.estimators.spark.params import Row
from farandole.estimators.spec import KINDS, OutputKind

Make = Callable[[Any], Any]  # derives a column from another

PARAMS = (
    Row(
        "prediction_col",
        None,
        "column for the class with the highest score (a double, from 0), or the number of a model"
        " that does not classify",
        TypeConverters.toString,
    ),
    Row(
        "raw_prediction_col",
        None,
        "column for the score of each class, a vector",
        TypeConverters.toString,
    ),
    Row(
        "probability_col",
        None,
        "column for the probability of each class, a vector",
        TypeConverters.toString,
    ),
    Row(
        "output_kind",
        None,
        "a classifier's output: 'logits', 'probabilities' or 'log_probabilities'; default:"
        " derived from its loss",
        TypeConverters.toString,
    ),
)


class ClassColumns(NamedTuple):
    """The names of the columns (None for an absent one), and the kind of the model's output (None
    if its loss does not determine it).
    """

    prediction: str | None
    raw: str | None
    probability: str | None
    kind: OutputKind | None

    @classmethod
    def of(cls, params: Any, of_loss: OutputKind | None) -> ClassColumns:
        """Return the columns of an estimator or a model. ``of_loss``: the kind of output that its
        loss expects.
        """
        given = params.getOrDefault("output_kind")
        kind = of_loss if given is None else OutputKind(given, False)
        return cls(
            prediction=params.getOrDefault("prediction_col"),
            raw=params.getOrDefault("raw_prediction_col"),
            probability=params.getOrDefault("probability_col"),
            kind=kind,
        )

    @property
    def names(self) -> list[str]:
        return [name for name in self[:3] if name is not None]

    def check(self, labels: Sequence[str], outputs: Sequence[str]) -> None:
        """Raise SettingsError for incompatible parameters. ``outputs``: the names of the model's
        other columns.
        """
        if self.kind is not None and self.kind.name not in KINDS:
            raise SettingsError(
                f"output_kind={self.kind.name!r} must be one of {', '.join(KINDS)}"
                f"{did_you_mean(self.kind.name, KINDS)}"
            )
        names = [*self.names, *outputs]
        if self.names and len(set(names)) != len(names):
            raise SettingsError(
                "prediction_col, raw_prediction_col, probability_col and output_cols need"
                f" different names, not {', '.join(names)}"
            )
        if self.names and len(labels) != 1:
            raise SettingsError(
                f"prediction_col, raw_prediction_col and probability_col need one label column,"
                f" not {len(labels)} ({', '.join(labels)}): leave them out, and use output_cols"
            )

    def made(self, shape: Sequence[int]) -> dict[str, Make]:
        """Return, for each column, a function that derives it from the model's output: a double or
        an array of doubles. ``shape``: the shape of a row of the output.

        Raises SettingsError for an output without a score for each class.
        """
        if not self.names:
            return {}
        several = tuple(shape) not in ((), (1,))
        scored = self.raw is not None or self.probability is not None
        if several and len(shape) != 1:
            raise SettingsError(
                f"the model's output has shape {tuple(shape)} for a row, but prediction_col,"
                " raw_prediction_col and probability_col need one number for each class: leave"
                " them out, or let the model return a list of numbers"
            )
        if scored and self.kind is None:
            raise SettingsError(
                "raw_prediction_col and probability_col need to know what the model returns, and"
                " its loss does not show it: pass"
                f" output_kind={' or '.join(repr(kind) for kind in KINDS)}"
            )
        if scored and several and self.kind is not None and self.kind.binary:
            raise SettingsError(
                f"the loss is of two classes, and the model returns {shape[0]} numbers: they are"
                " not scores of exclusive classes. Leave out raw_prediction_col and"
                " probability_col, or pass output_kind="
            )
        makers = {
            self.prediction: self._prediction(several),
            self.raw: lambda output: array_to_vector(self._scores(output, several)),
            self.probability: lambda output: array_to_vector(self._probabilities(output, several)),
        }
        return {name: make for name, make in makers.items() if name is not None}

    def _prediction(self, several: bool) -> Make:
        if not several and self.kind is None:  # a regression
            return lambda output: output

        def prediction(output: Any) -> Any:
            scores = self._scores(output, several)
            return (F.array_position(scores, F.array_max(scores)) - 1).cast("double")

        return prediction

    def _scores(self, output: Any, several: bool) -> Any:
        if several:
            return output
        assert self.kind is not None
        others = {
            "logits": -output,
            "probabilities": 1 - output,
            "log_probabilities": F.log1p(-F.exp(output)),
        }
        return F.array(others[self.kind.name], output)

    def _probabilities(self, output: Any, several: bool) -> Any:
        assert self.kind is not None
        scores = self._scores(output, several)
        if self.kind.name == "probabilities":
            return scores
        if self.kind.name == "log_probabilities":
            return F.transform(scores, F.exp)
        if not several:
            return F.array(1 / (1 + F.exp(output)), 1 / (1 + F.exp(-output)))
        # without overflow
        shifted = _with(
            F.array_max(scores),
            lambda largest: F.transform(scores, lambda score: F.exp(score - largest)),
        )
        return _with(
            F.aggregate(shifted, F.lit(0.0), lambda one, other: one + other),
            lambda total: F.transform(shifted, lambda score: score / total),
        )


def _with(value: Any, make: Make) -> Any:
    """Return ``make(value)`` such that Spark computes ``value`` once, not once for each element."""
    return F.transform(F.array(value), make)[0]
