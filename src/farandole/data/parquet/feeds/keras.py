"""A reader for Keras 3, on any backend."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import keras

from farandole.data.parquet.reader import Reader
from farandole.errors import SettingsError

_PEEKED = 2  # batches that Keras looks at before an epoch begins, and asks for again


class KerasBatches(keras.utils.PyDataset):  # type: ignore[misc]
    """This rank's batches, for ``model.fit``. ``set_epoch``, ``state_dict`` and ``load_state_dict`` are ``reader``'s.

    Batches come in the reader's order, whatever numbers Keras asks for: ``fit`` shuffles these numbers by default, and
    rows are shuffled already.
    """

    sharded = True  # not to be dealt to ranks again

    def __init__(self, reader: Reader) -> None:
        super().__init__()
        self.reader = reader
        self._lock = threading.Lock()
        self._within = False  # an epoch of Keras
        self._begin()

    def _begin(self) -> None:
        self._batches: Iterator[Any] | None = None
        self._length = len(self.reader)
        self._served: set[int] = set()
        self._peeked: dict[int, Any] = {}
        self._again: dict[int, Any] = {}  # that Keras looked at in an epoch which it left

    @property
    def num_batches(self) -> int:
        return self._length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        with self._lock:
            if index in self._peeked and len(self._served) <= _PEEKED:
                self._again.pop(index, None)
                return self._peeked[index]
            if index in self._again:  # numbers that fit() shuffles anew come to it late
                return self._again.pop(index)
            if index in self._served or self._batches is None:
                self._end()
                self._batches = iter(self.reader)
            batch = next(self._batches)
            self._served.add(index)
            if len(self._served) <= _PEEKED:
                self._peeked[index] = batch
            if len(self._served) == self._length:
                self._batches.close()  # type: ignore[attr-defined]  # its threads end
            return batch

    def on_epoch_begin(self) -> None:
        if self.workers > 1 or self.use_multiprocessing:
            raise SettingsError(
                f"workers={self.workers}, use_multiprocessing={self.use_multiprocessing}: workers of Keras would mix "
                "up batches and epochs; use workers=1: the reader reads ahead in threads (threads=)"
            )
        self._within = True

    def on_epoch_end(self) -> None:
        """With ``steps_per_epoch`` an epoch of Keras ends in the middle of the reader's, and the next one goes on
        there. Without a beginning this is the end of Keras' look at the first batches."""
        with self._lock:
            within, self._within = self._within, False
            if len(self._served) <= _PEEKED:
                self._again = dict(self._peeked)
            if not within or len(self._served) == self._length:
                self._end()

    def _end(self) -> None:
        if self._batches is not None:
            self._batches.close()  # type: ignore[attr-defined]
        self._begin()
