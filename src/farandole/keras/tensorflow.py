"""Keras on TensorFlow: gradients are tensors of a graph, or rows of an embedding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import tensorflow as tf

from farandole.keras.checks import KerasReplica
from farandole.strategies.list_reducer import GradientListReducer
from farandole.tensorflow.gradients import reduce_gradients
from farandole.tensorflow.sparse import as_dense
from farandole.tensorflow.weights import run_if as run_if

plain_errors = nullcontext  # errors arrive as TensorFlow raises them
dense = as_dense


def uncompiled(call: Callable[..., Any], *args: Any) -> Any:
    """Return ``call(*args)``, which is part of the program on TensorFlow."""
    return call(*args)


def reduced(
    grads: Sequence[Any],
    names: Sequence[str],
    reducer: GradientListReducer,
    replica: KerasReplica,
    now: Callable[[], Any] | None,
) -> list[Any]:
    """Return the reduced gradients.

    See ``reducer``. ``now`` is not used: Keras calls this within a branch that runs only when it
    applies the gradients.
    """
    # Keras's scope name counts the optimizers of this process, which may differ between ranks
    with tf.name_scope("farandole/"):
        return reduce_gradients(grads, names, reducer, replica=replica)
