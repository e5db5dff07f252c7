"""Keras on TensorFlow: gradients are tensors of a graph, or rows of an embedding."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from farandole.keras.exchange import Run
from farandole.keras.replica import KerasReplica
from farandole.strategies.list_reducer import GradientListReducer
from farandole.tensorflow import graph
from farandole.tensorflow.gradients import reduce_gradients


def uncompiled(call: Callable[..., Any], *args: Any) -> Any:
    """``call(*args)``: here it is part of the program."""
    return call(*args)


def reduced(
    grads: Sequence[Any], names: Sequence[str], reducer: GradientListReducer, replica: KerasReplica,
    now: Callable[[], Any] | None,
) -> list[Any]:  # fmt: skip
    """See ``reducer``: Keras has this inside of a branch that runs only when it applies them, so ``now`` does not
    matter."""
    with tf.name_scope("farandole/"):  # Keras's scope counts how many optimizers this process has made
        return reduce_gradients(grads, names, reducer, replica=replica)


def run_if(due: Any, run: Run, values: Sequence[Any], step: Any) -> Sequence[Any]:
    """See ``exchange``."""

    def on_copies(*arrays: Any) -> list[Any]:
        *given, number = arrays
        wide = [np.array(array, np.float64 if array.dtype == np.float64 else np.float32) for array in given]
        run(wide, int(number))
        return [array.astype(old.dtype) for array, old in zip(wide, given, strict=True)]

    def now() -> list[Any]:
        tensors = [*values, step]
        if tf.executing_eagerly():
            return [tf.convert_to_tensor(array) for array in on_copies(*[graph.array(tensor) for tensor in tensors])]
        forms = [(value.dtype, value.shape) for value in values]
        start = functools.partial(_started, on_copies)
        found: list[Any] = graph.run("the exchange of weights", start, tensors, forms)
        return found

    if tf.executing_eagerly():
        return now() if due else values
    told: Sequence[Any] = tf.cond(due, now, lambda: [tf.identity(value) for value in values])
    return told


def _started(function: Callable[..., list[Any]], *arrays: Any) -> graph.Call:
    return graph.Call(lambda: function(*arrays))
