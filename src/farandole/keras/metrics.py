"""Metrics of a model over the samples of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from farandole.core.api.objects import broadcast_object
from farandole.job.context import ProcessSet
from farandole.keras.pooling import Tally, pooled_logs, pooled_states, root_of
from farandole.keras.weights import numpy_of

if TYPE_CHECKING:
    from farandole.base.types import Array

pooled_by_fit: set[int] = set()  # ids of models whose metrics ``fit`` pools
# by the aggregation of a variable; others are summed
_RULES = {"mean": "mean", "only_first_replica": "first"}


class Watch:
    """Keep the states of a model's training metrics until the epoch ends, before validation
    overwrites them.
    """

    def __init__(self) -> None:
        self._training: list[Array] | None = None
        self._validation = False

    def test_begins(self, model: Any) -> None:
        """Save the training states; call it before an evaluation within an epoch."""
        if self._training is None:
            self._training = states_of(model)
        self._validation = True

    def forget(self) -> None:
        """Drop the saved states when a new epoch begins."""
        self._training, self._validation = None, False

    def tallies(self, model: Any, logs: dict[str, Any]) -> tuple[Tally, Tally]:
        """Return this rank's tallies of the logs: of training, and of validation."""
        now = states_of(model)
        training = now if self._training is None else self._training
        numbers = _numbers(logs)
        own = {name: value for name, value in numbers.items() if not self._of_validation(name)}
        other = {
            name.removeprefix("val_"): value
            for name, value in numbers.items()
            if self._of_validation(name)
        }
        of_now = _results(model, now, now) if numbers else {}
        of_training = of_now if training is now or not own else _results(model, training, now)
        # A training log may be a view of its variable (PyTorch) and show validation's values.
        counted = by_samples(model, training), by_samples(model, now)
        return _tally(own, counted[0], of_training, of_now), _tally(other, counted[1], of_now)

    def pool(
        self,
        model: Any,
        everybody: Sequence[tuple[Tally, Tally]],
        logs: dict[str, Any],
        process_set: ProcessSet,
    ) -> None:
        """Put the values over all ranks into ``logs``, including values that this rank does not
        have.

        Callbacks therefore decide in the same way even if only one rank validates. ``everybody``:
        the tallies of each rank. Collective.
        """
        rules = [
            _RULES.get(str(getattr(variable, "aggregation", "sum")), "sum")
            for variable in model.metrics_variables
        ]
        now, found = states_of(model), {}
        for part, prefix in ((0, ""), (1, "val_")):
            tallies = [pair[part] for pair in everybody]
            having = [tally for tally in tallies if tally.logs]
            states = pooled_states(having, rules) if having else None
            exact = {} if states is None else _results(model, states, now)
            pooled = pooled_logs(tallies, exact)
            found.update({f"{prefix}{name}": value for name, value in pooled.items()})
        # All ranks use one rank's values: GPUs, and different processors, may compute a different
        # last digit from the same states.
        logs.update(broadcast_object(found, root_of(process_set), process_set=process_set))
        self.forget()

    def _of_validation(self, name: str) -> bool:
        return self._validation and name.startswith("val_")


def states_of(model: Any) -> list[Array]:
    """Return the current states of the model's metrics."""
    return [np.array(numpy_of(variable)) for variable in model.metrics_variables]


def by_samples(model: Any, states: list[Array]) -> list[Array]:
    """Return ``states`` with each output's loss weighted by this rank's samples.

    On TensorFlow, Keras counts samples if all batches are of one size, and batches otherwise; a
    rank with one smaller batch would contribute almost nothing.
    """
    places = {id(variable): place for place, variable in enumerate(model.metrics_variables)}
    samples = _places(getattr(model, "_loss_tracker", None), ("count",), places)
    found = list(states)
    if not samples or len(states) != len(places):
        return found
    for each in getattr(getattr(model, "_compile_loss", None), "metrics", None) or ():
        known = _places(each, ("total", "count"), places)
        if known and states[known[1]] > 0 and states[samples[0]] > 0:
            mean = states[known[0]] / states[known[1]]
            found[known[0]] = np.asarray(mean * states[samples[0]], dtype=mean.dtype)
            found[known[1]] = states[samples[0]]
    return found


def _places(metric: Any, names: Sequence[str], places: dict[int, int]) -> list[int]:
    """Return the indices of ``metric``'s variables with these names; empty if one is missing."""
    found = [places.get(id(getattr(metric, name, None))) for name in names]
    return [place for place in found if place is not None] if None not in found else []


def _tally(logs: dict[str, Array], states: list[Array], *results: dict[str, Array]) -> Tally:
    """Return the tally of ``logs``.

    ``computed`` are the logs that are in one of ``results``; a custom ``train_step`` may have added
    others.
    """
    same = {
        name
        for name, value in logs.items()
        if any(name in found and _same(found[name], value) for found in results)
    }
    return Tally(logs, states, frozenset(same))


def _same(one: Array, other: Array) -> bool:
    alike = one.size == other.size
    return alike and bool(
        np.allclose(one.ravel(), other.ravel(), rtol=1e-4, atol=1e-7, equal_nan=True)
    )


def _results(model: Any, states: list[Array], now: list[Array]) -> dict[str, Array]:
    """Compute the model's metrics from ``states``, then restore the states ``now``."""
    variables = model.metrics_variables
    if len(states) != len(variables):
        return {}
    _assign(variables, states)
    try:
        return _numbers(_flat(model.get_metrics_result()))
    finally:
        _assign(variables, now)


def _flat(results: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in results.items():
        flat.update(_flat(value) if isinstance(value, dict) else {name: value})
    return flat


def _assign(variables: Sequence[Any], states: Sequence[Array]) -> None:
    for variable, state in zip(variables, states, strict=True):
        variable.assign(state)


def _numbers(values: dict[str, Any]) -> dict[str, Array]:
    """Copy the numbers and arrays of numbers among ``values``, such as a score per class.

    A metric's result may be a view of its variable (PyTorch), which will be overwritten.
    """
    arrays = {
        name: np.array(keras.ops.convert_to_numpy(value) if keras.ops.is_tensor(value) else value)
        for name, value in values.items()
    }
    return {name: array for name, array in arrays.items() if array.dtype.kind in "biuf"}
