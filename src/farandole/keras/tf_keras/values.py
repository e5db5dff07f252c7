"""Collectives of values: Python numbers, numpy arrays and tensors in, tensors out (numpy arrays in
a graph).
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tf_keras.api._v1.keras import backend  # tf.compat.v1.keras uses this backend

from farandole.base.types import ReduceOp
from farandole.core.api.compression import NoneCompressor
from farandole.core.api.ops import WORLD
from farandole.job.context import ProcessSet
from farandole.tensorflow import broadcasting, differentiable


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = NoneCompressor,
    process_set: ProcessSet = WORLD,
) -> Any:
    """Reduce every rank's ``value``. ``op``: Average (the default), Sum, Min, Max, ..."""
    return evaluated(
        differentiable.allreduce(
            tf.convert_to_tensor(value),
            average=average,
            name=name,
            compression=compression,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            process_set=process_set,
        )
    )


def allgather(value: Any, name: str | None = None, process_set: ProcessSet = WORLD) -> Any:
    """Concatenate every rank's ``value``. The first dimension may differ."""
    return evaluated(
        differentiable.allgather(tf.convert_to_tensor(value), name=name, process_set=process_set)
    )


def broadcast(
    value: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = WORLD
) -> Any:
    """Return ``root_rank``'s ``value``."""
    return evaluated(
        differentiable.broadcast(
            tf.convert_to_tensor(value), root_rank, name=name, process_set=process_set
        )
    )


def reducescatter(
    value: Any, name: str | None = None, op: int = ReduceOp.AVERAGE, process_set: ProcessSet = WORLD
) -> Any:
    """Return this rank's rows of the reduction."""
    tensor = tf.convert_to_tensor(value)
    return evaluated(
        differentiable.reducescatter(tensor, name=name, op=op, process_set=process_set)
    )


def broadcast_global_variables(root_rank: int) -> Any:
    """Broadcast ``root_rank``'s values of the graph's global variables, in Keras's session.

    Raises RuntimeError in eager mode, which has no list of variables: use the callback or
    ``broadcast_variables`` there.
    """
    return evaluated(broadcasting.broadcast_global_variables(root_rank))


def evaluated(found: Any) -> Any:
    """Return ``found``, or the result of running it in Keras's session."""
    return found if tf.executing_eagerly() else backend.get_session().run(found)
