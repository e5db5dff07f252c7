"""Several trainings on the same data, for Spark's tuning."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

Data = TypeVar("Data")


class ParamGridFits(Generic[Data]):
    """An iterator over (index, model) pairs, which several threads may share.

    ``data`` is a context manager, entered immediately and exited when the last training has ended,
    a training has failed, or the iterator is dropped. ``trainings``: functions that make a model
    from the value of ``data``. After a failure, trainings that have not started fail with the same
    error.
    """

    def __init__(
        self,
        data: contextlib.AbstractContextManager[Data],
        trainings: Sequence[Callable[[Data], Any]],
    ) -> None:
        held = contextlib.ExitStack()
        self._data = held.enter_context(data)
        self._trainings = trainings
        self._leave = weakref.finalize(self, held.close)
        self._begun = self._running = 0
        self._failure: BaseException | None = None
        self._lock = threading.Lock()

    def __iter__(self) -> ParamGridFits[Data]:
        return self

    def __next__(self) -> tuple[int, Any]:
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._begun == len(self._trainings):
                raise StopIteration
            number = self._begun
            self._begun += 1
            self._running += 1
        try:
            return number, self._trainings[number](self._data)
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._end()

    def _end(self) -> None:
        with self._lock:
            self._running -= 1
            over = not self._running and (
                self._failure is not None or self._begun == len(self._trainings)
            )
        if over:
            self._leave()
