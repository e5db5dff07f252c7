"""The specification of a training run, created and checked on the driver and sent to all ranks."""

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
    """The roles of columns.

    ``transform``: edits a pandas DataFrame of a batch, or, with ``by_row``, a dict of a row;
    ``edited``: name, dtype, shape and nullability of the columns that it adds; ``removed``: the
    columns that it drops. ``by_name``: whether the model takes columns by name, so that
    ``transform`` may return any columns. ``texts``: features that may be text, which the model
    itself looks up.
    """

    features: tuple[str, ...]
    labels: tuple[str, ...]
    weight: str | None = None
    transform: Callable[[Any], Any] | None = None
    edited: tuple[Sequence[Any], ...] = ()
    removed: tuple[str, ...] = ()
    by_row: bool = False
    by_name: bool = False
    texts: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(
            dict.fromkeys([*self.features, *self.labels, *([self.weight] if self.weight else [])])
        )


KINDS = ("logits", "probabilities", "log_probabilities")


class OutputKind(NamedTuple):
    """The output of a classifier. ``name``: one of ``KINDS``. ``binary``: whether each number
    decides for or against one class.
    """

    name: str
    binary: bool


class Reading(NamedTuple):
    """Settings for batches of rows. ``batch_size``: rows per rank. ``steps``: batches per epoch,
    None for all.
    """

    batch_size: int
    steps: int | None
    threads: int
    memory: int
    shuffle: bool = False
    seed: int = 0


class Watching(NamedTuple):
    """Settings for the best epoch and early stopping. ``patience``: epochs without improvement
    before training stops; None: no early stopping.

    ``monitor``: a metric; "" is the validation loss, or no metric if there is no validation.
    """

    monitor: str = ""
    mode: str = "min"
    min_delta: float = 0.0
    patience: int | None = None
    required: bool = True  # whether a missing metric is an error


def direction(metric: str) -> str:
    """Return "max" if larger values of the metric are better, otherwise "min", according to the
    last known word in its name. Raises SettingsError if it has no known word.
    """
    for word in reversed(re.findall("[a-z]+[0-9]*", metric.lower())):
        if word.endswith(FALLING):
            return "min"
        if word.endswith(RISING):
            return "max"
    raise SettingsError(
        f"mode='auto' cannot determine whether higher values of {metric!r} are better."
        " Use mode='min' or 'max'"
    )


class Spec(NamedTuple):
    """The specification of a training run. ``payload``: the model, and the options of its
    framework.
    """

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
    resume: bool  # from the run's checkpoint, if any
    # the model's origin: facts about the data, and hyperparameters, as JSON types
    fingerprint: dict[str, Any]
    verbose: int
    use_gpu: bool
    scale_lr: bool
    backward_passes: int
    compression: Any
    payload: dict[str, Any]
    kept: Any = None  # the state of an elastic job (trainers.elastic.EpochState), on a rank


class Result(NamedTuple):
    """The result on rank 0.

    ``history``: a record for each epoch (epoch, train, validation). ``weights``: from the best
    epoch, or, if no epoch is best, from the last one; ``best_epoch`` is then None.
    """

    history: list[dict[str, Any]]
    weights: bytes
    best_epoch: int | None
