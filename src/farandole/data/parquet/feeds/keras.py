"""A reader for Keras 3, on any backend."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

import keras

from farandole.data.parquet.reader import Reader
from farandole.errors import SettingsError

# batches that Keras reads to learn their types or to build the model, and then reads again
_PEEKED = 2


class KerasBatches(keras.utils.PyDataset):  # type: ignore[misc]
    """This rank's batches, for ``model.fit``.

    ``set_epoch``, ``state_dict`` and ``load_state_dict`` are ``reader``'s.

    Batches come in the reader's order, regardless of the indices that Keras requests: ``fit``
    shuffles these by default, but rows are already shuffled. With ``steps_per_epoch`` a Keras epoch
    ends in the middle of the reader's epoch, and the next one continues there.
    """

    sharded = True  # must not be divided among ranks again

    def __init__(self, reader: Reader) -> None:
        super().__init__()
        self.reader = reader
        self._lock = threading.Lock()
        self._within = False  # whether Keras is within an epoch
        self._fresh = False  # whether Keras starts a pass over the batches
        self._begin()

    def _begin(self) -> None:
        self._batches: Iterator[Any] | None = None
        self._length = len(self.reader)
        self._served = 0
        # batches that Keras may only have peeked at, by its indices
        self._first: dict[int, Any] = {}
        self._seen_in_epoch = False  # whether they were requested within an epoch
        self._again: deque[Any] = deque()

    @property
    def num_batches(self) -> int:
        """Return the number of batches. Keras reads this at the start of each pass over the
        batches; other callers use ``len``.
        """
        self._fresh = True
        return self._length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        with self._lock:
            if self._fresh:
                self._fresh = False
                self._pass()
            if self._again:
                self._first[index] = self._again.popleft()
            if index in self._first and self._served <= _PEEKED:
                return self._first[index]
            if self._batches is None or self._served == self._length:
                self._end()
                self._batches = iter(self.reader)
            batch = next(self._batches)
            self._served += 1
            if self._served <= _PEEKED:
                self._first[index] = batch
                self._seen_in_epoch = self._within
            if self._served == self._length:
                self._batches.close()  # type: ignore[attr-defined]  # its threads end
            return batch

    def _pass(self) -> None:
        """Begin a pass. If the previous one ended after its first batches, it was a peek, and these
        batches are returned again.
        """
        whole = self._served == self._length and self._seen_in_epoch
        if self._served > _PEEKED or whole:
            self._end()
        else:
            self._again = deque(self._first.values())
            self._first = {}

    def on_epoch_begin(self) -> None:
        if self.workers > 1 or self.use_multiprocessing:
            raise SettingsError(
                f"workers={self.workers} and use_multiprocessing={self.use_multiprocessing} would"
                " mix up batches and epochs. Use workers=1; the reader prefetches in threads"
                " (threads=)"
            )
        self._within = True

    def on_epoch_end(self) -> None:
        self._within = False

    def _end(self) -> None:
        if self._batches is not None:
            self._batches.close()  # type: ignore[attr-defined]
        self._begin()
