"""Weights that are changed periodically on the host, inside or outside a traced program."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from farandole.tensorflow import graph


def run_if(
    due: Any, run: Callable[[Sequence[Any], int], None], values: Sequence[Any], step: Any
) -> Sequence[Any]:
    """Call ``run(arrays, step)`` if ``due``, and return the tensors ``values`` with its changes.

    ``run`` overwrites the arrays (float32 or float64) of ``values``. ``due`` (unless True) and
    ``step`` may be tensors of a graph.
    """

    def on_copies(*arrays: Any) -> list[Any]:
        *given, number = arrays
        wide = [
            np.array(array, np.float64 if array.dtype == np.float64 else np.float32)
            for array in given
        ]
        run(wide, int(number))
        return [array.astype(old.dtype) for array, old in zip(wide, given, strict=True)]

    def now() -> list[Any]:
        tensors = [*values, step]
        if tf.executing_eagerly():
            return [
                tf.convert_to_tensor(array)
                for array in on_copies(*[graph.array(tensor) for tensor in tensors])
            ]
        forms = [(value.dtype, value.shape) for value in values]
        start = functools.partial(_started, on_copies)
        found: list[Any] = graph.run("the exchange of weights", start, tensors, forms)
        return found

    if due is True or tf.executing_eagerly():
        return now() if due else values
    exchanged: Sequence[Any] = tf.cond(due, now, lambda: [tf.identity(value) for value in values])
    return exchanged


def _started(function: Callable[..., list[Any]], *arrays: Any) -> graph.Call:
    return graph.Call(lambda: function(*arrays))
