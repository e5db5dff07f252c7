"""Rows in Keras's form."""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from farandole.estimators.batches import Batch, Batches
from farandole.estimators.loaders.arrays import rows_of
from farandole.estimators.loaders.keras import inputs_of
from farandole.estimators.spec import Spec


class Rows:
    """Batches in Keras's form.

    ``ends``: the reader's state at the end of each epoch, however far Keras prefetches. ``counts``:
    the rows of each epoch. ``lengths``: lengths of batches, as Keras counts them and as they would
    be if ranks had the same number of rows. ``share``: whether a mean is scaled to this rank's
    share of the rows, as for the training loss.
    """

    def __init__(self, batches: Batches, model: Any, spec: Spec, *, share: bool) -> None:
        self.batches = batches
        self.ends = list[dict[str, int]]()
        self.counts = list[int]()
        self.lengths = deque[tuple[int, float]]()
        self._model = model
        self._spec = spec
        self._share = share
        self._weighted = spec.columns.weight is not None or (share and batches.uneven)
        self._lock = threading.Lock()
        self._place = -1
        self._iterator: Iterator[Batch] = iter(())

    @contextlib.contextmanager
    def endless(self) -> Iterator[Iterator[Any]]:
        """Yield an iterator over all epochs; Keras knows the number of batches per epoch."""
        epochs = self._epochs()
        try:
            yield epochs
        finally:
            with contextlib.suppress(ValueError):  # a thread of Keras is reading
                epochs.close()  # type: ignore[attr-defined]

    def _epochs(self) -> Iterator[Any]:
        while True:
            length, count = len(self.batches), 0
            for number, batch in enumerate(self.batches, 1):
                count += batch.rows
                if number == length:
                    self.ends.append(self.batches.state())
                    self.counts.append(count)
                self.lengths.append((len(batch.labels[0]), batch.even))
                yield self.given(batch)

    def at(self, index: int) -> tuple[Any, ...]:
        """Return the batch of an index, counted from the first rows: Keras reads some batches more
        than once.
        """
        with self._lock:
            if index != self._place:
                self.batches.rewind()
                self._iterator = itertools.islice(self.batches, index, None)
            self._place = index + 1
            return self.given(next(self._iterator))

    def given(self, batch: Batch) -> tuple[Any, ...]:
        """Return inputs and labels, and weights if any."""
        columns, payload = self._spec.columns, self._spec.payload
        inputs = inputs_of(self._model, columns.features, batch.inputs, payload["categories"])
        # tf.data treats a list as a single array
        inputs = tuple(inputs) if isinstance(inputs, list) else inputs
        labels = labels_of(self._spec, batch)
        heads = payload.get("heads")

        def like_outputs(values: list[Any]) -> Any:
            return (
                dict(zip(heads, values, strict=True))
                if heads
                else tuple(values)
                if len(values) > 1
                else values[0]
            )

        if not self._weighted:
            return inputs, like_outputs(labels)
        share = np.full(len(labels[0]), batch.share if self._share else 1.0, np.float32)
        weight = share if batch.weight is None else share * batch.weight
        return inputs, like_outputs(labels), like_outputs([weight] * len(labels))


def with_shapes(batches: Callable[[], Iterator[Any]]) -> Any:
    """Return batches as a TensorFlow dataset, which keeps the shape of a row. Keras 2 loses it for
    other iterators, and text layers need it.

    ``batches``: returns an iterator.
    """
    tf = sys.modules["tensorflow"]  # imported by Keras
    iterator = batches()
    first = next(iterator)
    begun = [itertools.chain([first], iterator)]
    signature = tf.nest.map_structure(
        lambda array: tf.TensorSpec((None, *tuple(array.shape)[1:]), array.dtype), first
    )
    return tf.data.Dataset.from_generator(
        lambda: begun.pop() if begun else batches(), output_signature=signature
    )


def indexed(keras: Any, rows: Rows) -> Any:
    """Return batches by index, which Keras reads again for each validation."""
    base = getattr(keras.utils, "PyDataset", None) or keras.utils.Sequence  # in Keras 2

    class Indexed(base):  # type: ignore[valid-type,misc]
        sharded = True  # must not be divided among ranks again

        def __len__(self) -> int:
            return len(rows.batches)

        def __getitem__(self, index: int) -> Any:
            return rows.at(index)

    return Indexed()


def labels_of(spec: Spec, batch: Batch) -> list[Any]:
    """Return labels as numbers that losses accept."""
    shapes = spec.payload["label_shapes"] or [None] * len(batch.labels)
    return [
        rows_of(label if label.dtype.kind in "iu" else label.astype(np.float32, copy=False), shape)
        for label, shape in zip(batch.labels, shapes, strict=True)
    ]
