"""A rank's batches for an estimator: columns as inputs, labels and weights, in numpy arrays for any
framework.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from farandole.base.log import logger
from farandole.data import ParquetData
from farandole.data.steps import BatchRows, Steps
from farandole.errors import DataError
from farandole.estimators import row_weights
from farandole.estimators.spec import Columns, Reading
from farandole.estimators.transformation import transformed

if TYPE_CHECKING:
    from farandole.base.types import Array


LEAST = 2  # minimum rows of a batch, if there are enough: BatchNorm needs more than one row


class Batch(NamedTuple):
    """A batch of columns.

    ``rows``: the number of rows that count; a rank without rows holds a row of another rank, which
    does not count. ``share``: the factor for the mean over this rank's rows, so that the average
    over ranks equals the mean over all rows. ``even``: the number of rows per rank if all ranks had
    the same number of rows. ``others``: columns made by transformation_fn, by name, for a model
    that takes columns by name.
    """

    inputs: tuple[Array, ...]
    labels: tuple[Array, ...]
    weight: Array | None
    rows: int
    share: float
    others: Mapping[str, Array] = {}
    even: float = 0.0


class Batches:
    """A rank's batches. Each ``for`` loop is an epoch of all rows, or of the requested number of
    steps; the next loop continues from there.
    """

    def __init__(
        self, data: ParquetData, columns: Columns, reading: Reading, rank: int, size: int
    ) -> None:
        self._data = data
        self._columns = columns
        self._reading = reading
        self._rank = rank
        self._size = size
        self._next: dict[str, int] | None = None  # start of the next loop
        self._reader = data.numpy(
            reading.batch_size,
            shuffle=reading.shuffle,
            seed=reading.seed,
            rank=rank,
            size=size,
            threads=reading.threads,
            memory=reading.memory,
            least=LEAST,
        )

    def __len__(self) -> int:
        return self._reading.steps or len(self._reader)

    @property
    def rows(self) -> int:
        """The approximate number of rows of all ranks in an epoch."""
        steps = self._reading.steps
        return self._data.rows if not steps else steps * self._reading.batch_size * self._size

    @property
    def of_rank(self) -> int:
        """The number of this rank's rows in an epoch that begins with the first rows."""
        steps = self._epoch_steps()
        whole, rest = divmod(len(self), steps.count)
        return whole * steps.rows + sum(steps[step].rows for step in range(rest))

    def lengths(self) -> list[int]:
        """The lengths of this rank's batches in an epoch that begins with the first rows."""
        steps = self._epoch_steps()
        return [max(steps[step % steps.count].rows, 1) for step in range(len(self))]

    def _epoch_steps(self) -> Steps:
        return self._steps(self._data.rows)

    def _steps(self, left: int) -> Steps:
        """Return this rank's batches of the last ``left`` rows of an epoch."""
        return Steps(
            left=left,
            batch_size=self._reading.batch_size,
            rank=self._rank,
            size=self._size,
            even="exact",
            least=LEAST,
        )

    @property
    def uneven(self) -> bool:
        """True if the share of some batches is not 1."""
        # a partial epoch may leave any number of rows
        return bool(self._data.rows % self._size) or bool(self._reading.steps)

    def __iter__(self) -> Iterator[Batch]:
        if self._next is not None:
            self._reader.load_state_dict(self._next)
        left = len(self)
        while left:
            self._next, steps, done = None, self._remaining_steps(), 0
            with contextlib.closing(iter(self._reader)) as batches:
                for arrays in batches:
                    done += 1
                    last = done == left
                    # set before the last batch is yielded: a prefetching consumer may not request
                    # another batch
                    if last:
                        self._next = self._reader.state_dict(done)
                    yield self._batch(arrays, steps[done - 1])
                    if last:
                        return
            left -= done

    def state(self) -> dict[str, int]:
        """Return the start of the next loop, once the last batch of this one has been yielded."""
        return dict(self._next or self._reader.state_dict(0))

    def load(self, state: Mapping[str, int]) -> None:
        """Resume at a state. The epoch begins with the first rows if the order of the rows has
        changed, or if an epoch of all rows follows epochs of some rows.
        """
        try:
            if not self._reading.steps and state.get("position"):
                raise DataError("train_steps_per_epoch is no longer given")
            self._reader.load_state_dict(state)
            self._next = dict(state)
        except DataError as error:
            if state.get("position"):
                logger.warning("the epoch restarts, so some of its rows are read twice: %s", error)
            self._next = {
                **self._reader.state_dict(0),
                "epoch": state.get("epoch", 0),
                "position": 0,
            }

    def rewind(self) -> None:
        """Start the next loop at the first rows."""
        self._next = {**self._reader.state_dict(0), "epoch": 0, "position": 0}

    def _remaining_steps(self) -> Steps:
        return self._steps(self._data.rows - self._reader.position)

    def _batch(self, arrays: Mapping[str, Array], step: BatchRows) -> Batch:
        share = step.rows * self._size / step.all_rows
        return batch_of(arrays, self._columns, step.rows, share)._replace(
            even=step.all_rows / self._size
        )


def batch_of(arrays: Mapping[str, Array], columns: Columns, rows: int, share: float = 1.0) -> Batch:
    """Return arrays by name as a batch. Raises DataError for text, and for weights below 0."""
    if columns.transform is not None:
        arrays = transformed(arrays, columns)
    free = columns.by_name and columns.transform is not None
    for name in columns.all:
        if name not in arrays and not free:
            raise DataError(
                f"transformation_fn returns no column {name!r}; it returns {', '.join(arrays)}"
            )
    for name in arrays if free else columns.all:
        if arrays[name].dtype.kind in "OUS" and name not in columns.texts:
            cure = ", or name it in transformation_removed_fields" if free else ""
            raise DataError(
                f"column {name!r} holds text, which models do not accept. Convert it to indices"
                f" first (StringIndexer){cure}"
            )
    weight = None
    if columns.weight is not None and columns.weight in arrays:
        weight = arrays[columns.weight].astype(np.float32).reshape(-1)
        row_weights.check(columns.weight, row_weights.count_weights(weight), len(weight))
    if free:
        return Batch((), (), weight, rows, share, arrays)
    inputs, labels = (
        tuple(arrays[name] for name in names) for names in (columns.features, columns.labels)
    )
    return Batch(inputs, labels, weight, rows, share)


def first(data: ParquetData, columns: Columns, rows: int = 2) -> Batch:
    """Return the first rows of the data, for a check before training starts."""
    reader = data.numpy(rows, shuffle=False, rank=0, size=1, threads=0)
    with contextlib.closing(iter(reader)) as batches:
        arrays: Any = next(batches)
    return batch_of(arrays, columns, len(next(iter(arrays.values()))))
