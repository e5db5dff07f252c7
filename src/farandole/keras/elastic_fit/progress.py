"""The state of one ``fit`` in an elastic job: its position, the model, metrics and callbacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from farandole.core.api.objects import allgather_object, broadcast_object
from farandole.job import context
from farandole.keras.elastic_fit import snapshots

if TYPE_CHECKING:
    from farandole.base.types import Array

_completed: list[dict[str, Any]] = []  # the histories of earlier calls of ``fit``


class PassedError(Exception):
    """The other ranks are in a later ``fit`` of the program. ``history``: the values of this
    one.
    """

    def __init__(self, history: dict[str, Any]) -> None:
        super().__init__("the other ranks are in a later call of fit")
        self.history = history


class FitProgress:
    """A mixin that precedes ``KerasState``.

    Its plain values:

    - ``epoch``, ``batch``: The current epoch, and its completed steps.
    - ``done``: The completed part of its data; see ``data``.
    - ``started``: Whether the callbacks have begun on a rank of the job.
    - ``finished``: Whether all epochs are completed.
    """

    epoch: int
    batch: int
    done: int
    started: bool
    finished: bool

    def follow(
        self, callbacks: Sequence[Any], metrics: Callable[[], list[Any]], array_of: Any
    ) -> None:
        """Save the progress of callbacks and metrics, too, from now on.

        ``callbacks``: the program's, and the history. ``metrics``: returns the variables of
        the model's metrics; ``array_of``: a variable's value.
        """
        self._callbacks, self._metrics, self._array_of = callbacks, metrics, array_of
        self._number = len(_completed)
        self._sums: list[tuple[Any, Array]] = []
        self._taken = snapshots.taken(callbacks)
        # The history of this ``fit``, if a loaded commit belongs to a later one.
        self._passed: list[dict[str, Any]] = []

    def save(self) -> None:
        super().save()  # type: ignore[misc]
        self._keep()

    def restore(self) -> None:
        super().restore()  # type: ignore[misc]
        snapshots.put_back(self._callbacks, self._taken)

    def sync(self) -> None:
        """Adopt rank 0's state. Each rank keeps its own sums of metrics."""
        self._await_others()
        passed: list[dict[str, Any]] = broadcast_object(self._passed)
        if passed:
            _completed.extend(passed)
            raise PassedError(passed[0])
        received = broadcast_object(self._taken)
        super().sync()  # type: ignore[misc]
        self._taken = {**self._taken, **received}
        snapshots.put_back(self._callbacks, self._taken)

    def saved_values(self) -> Any:
        values = super().saved_values()  # type: ignore[misc]
        return values, self._taken, self._number, list(_completed)

    def use_saved_values(self, saved: Any) -> None:
        """Return to ``saved``. A commit of a later ``fit`` is left to that ``fit``."""
        values, taken, number, histories = saved
        if number != self._number:
            self._passed = histories[self._number : self._number + 1]
            return
        super().use_saved_values(values)  # type: ignore[misc]
        self._taken = taken

    def restore_metrics(self) -> None:
        """Continue with the metrics of the epoch from the last commit."""
        for variable, value in self._sums:
            variable.assign(value)

    def complete(self, history: dict[str, Any]) -> None:
        """Record the values of the history, for ranks that join later."""
        _completed.append(history)

    def _keep(self) -> None:
        self._sums = [(each, np.array(self._array_of(each))) for each in self._metrics()]
        self._taken = snapshots.taken(self._callbacks)

    def _await_others(self) -> None:
        """Wait until all ranks are in the same ``fit``. Collective.

        Raises PassedError on a new rank, in a ``fit`` that the others have completed.
        """
        while True:
            numbers: list[int] = allgather_object(self._number)
            latest = max(numbers)
            if min(numbers) == latest:
                return
            histories = broadcast_object(_completed, numbers.index(latest))
            if self._number < latest:
                _completed[:] = histories[: self._number + 1]
                raise PassedError(histories[self._number])
            context.agree(False)  # the others begin their next ``fit`` with this call
