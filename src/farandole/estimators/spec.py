"""What every rank of a training must know. Made on the driver, checked there, and sent along."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from farandole.data import ParquetData, Store
from farandole.errors import SettingsError

FALLING = (
    "loss",
    "error",
    "entropy",
    "divergence",
    "perplexity",
    "mse",
    "mae",
    "mape",
    "msle",
    "nll",
)
RISING = (
    "acc",
    "accuracy",
    "auc",
    "auroc",
    "precision",
    "recall",
    "f1",
    "r2",
    "iou",
    "similarity",
    "specificity",
)


class Columns(NamedTuple):
    """Which columns are what. ``transform``: makes a pandas DataFrame of a batch's, or, ``by_row``,
    a dict of a row's; ``edited``: name, dtype, shape and nullability of columns that it makes;
    ``removed``: those that it takes away. ``by_name``: the model takes columns by their names, so
    that those which ``transform`` leaves may be others.
    """

    features: tuple[str, ...]
    labels: tuple[str, ...]
    weight: str | None = None
    transform: Callable[[Any], Any] | None = None
    edited: tuple[Sequence[Any], ...] = ()
    removed: tuple[str, ...] = ()
    by_row: bool = False
    by_name: bool = False

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(
            dict.fromkeys([*self.features, *self.labels, *([self.weight] if self.weight else [])])
        )


class Reading(NamedTuple):
    """How rows become batches. ``batch_size``: of a rank. ``steps``: batches that make an epoch,
    None: all.
    """

    batch_size: int
    steps: int | None
    threads: int
    memory: int
    shuffle: bool = False
    seed: int = 0


class Watching(NamedTuple):
    """Which epoch is the best one, and when to stop: ``patience`` epochs without a better one,
    None: never.

    ``monitor``: a metric; "" is the loss of validation where there is validation, and nothing
    otherwise.
    """

    monitor: str = ""
    mode: str = "min"
    min_delta: float = 0.0
    patience: int | None = None
    required: bool = True  # whether it is an error if there is no such metric


def direction(metric: str) -> str:
    """Of a metric of that name: "max" if larger values are better, otherwise "min". The last word
    that tells decides. SettingsError if none does.
    """
    for word in reversed(re.findall("[a-z]+[0-9]*", metric.lower())):
        if word.endswith(FALLING):
            return "min"
        if word.endswith(RISING):
            return "max"
    raise SettingsError(
        f"mode='auto' does not know which values of {metric!r} are better: give mode='min' or 'max'"
    )


class Spec(NamedTuple):
    """``payload``: the model and all that belongs to it, as its framework has it."""

    train: ParquetData
    validation: ParquetData | None
    columns: Columns
    train_reading: Reading
    validation_reading: Reading
    epochs: int
    seed: int
    watching: Watching
    store: Store | None
    run_id: str
    resume: bool  # from a checkpoint of that run, if there is one
    # of what a model comes from: numbers of the data, hyperparameters; as JSON has them
    fingerprint: dict[str, Any]
    verbose: int
    use_gpu: bool
    scale_lr: bool
    backward_passes: int
    compression: Any
    payload: dict[str, Any]


class Result(NamedTuple):
    """Of rank 0. ``history``: a record for each epoch: epoch, train, validation. ``weights``: of
    the best epoch, or the last one if none is better than others. ``best_epoch``: None then.
    """

    history: list[dict[str, Any]]
    weights: bytes
    best_epoch: int | None
