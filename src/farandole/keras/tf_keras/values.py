"""Collectives of values: Python numbers, numpy arrays and tensors go in; tensors come out (numpy
arrays in a graph).
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tf_keras.api._v1.keras import backend  # where tf.compat.v1.keras is

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
    """The reduction of every rank's ``value``. ``op``: Average (the default), Sum, Min, Max, ..."""
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
    """Every rank's ``value``, one below the other. The first dimension may differ."""
    return evaluated(
        differentiable.allgather(tf.convert_to_tensor(value), name=name, process_set=process_set)
    )


def broadcast(
    value: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = WORLD
) -> Any:
    """``root_rank``'s ``value``."""
    return evaluated(
        differentiable.broadcast(
            tf.convert_to_tensor(value), root_rank, name=name, process_set=process_set
        )
    )


def reducescatter(
    value: Any, name: str | None = None, op: int = ReduceOp.AVERAGE, process_set: ProcessSet = WORLD
) -> Any:
    """This rank's rows of the reduction."""
    tensor = tf.convert_to_tensor(value)
    return evaluated(
        differentiable.reducescatter(tensor, name=name, op=op, process_set=process_set)
    )


def broadcast_global_variables(root_rank: int) -> Any:
    """Give all ranks ``root_rank``'s values of the graph's global variables, in Keras's session.

    Raises RuntimeError in eager mode, where there is no such list: use the callback, or
    ``broadcast_variables``.
    """
    return evaluated(broadcasting.broadcast_global_variables(root_rank))


def evaluated(found: Any) -> Any:
    """What was found, or what running it in Keras's session gives."""
    return found if tf.executing_eagerly() else backend.get_session().run(found)
