"""The operations under the name of Horovod's module: ``hvd.mpi_ops``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from farandole.core.api import names
from farandole.core.api.basics import *  # noqa: F403
from farandole.core.api.basics import _basics as _basics
from farandole.core.api.documented import documented
from farandole.core.api.ops import WORLD
from farandole.job import context
from farandole.tensorflow import functions, graph
from farandole.tensorflow.capabilities import cuda_built as cuda_built
from farandole.tensorflow.capabilities import nccl_built as nccl_built
from farandole.tensorflow.capabilities import rocm_built as rocm_built


@documented(
    "init",
    "failed",
    example="for batch in batches:  # more on some ranks\n    train(batch)\nlast = hvd.join()",
)
def join() -> Any:
    """Join: this rank has no more data, and takes part in the others' allreduces with zeros until
    all ranks have joined. Returns the rank that joined last, as an int32 tensor.
    """
    return functions.join()


@documented("init", "set", "disagree")
def barrier(process_set: context.ProcessSet = WORLD) -> Any:
    """Wait until all ranks (of the set) have called this. In a graph, return an operation to be
    fetched or depended on.
    """
    return functions.barrier(process_set)


def _number(value: Callable[[], int]) -> Any:
    """Evaluate ``value()`` when the graph runs, because it may change after tracing."""
    if tf.executing_eagerly():
        return tf.constant(value(), tf.int32)
    graph.check_not_compiled("rank_op, size_op or a similar function")
    number = tf.numpy_function(lambda: np.int32(value()), [], tf.int32)
    number.set_shape([])
    return number


@documented("init", name="has no effect; accepted for Horovod's programs.")
def rank_op(name: str | None = None) -> Any:
    """Return ``rank()`` when the graph runs, as an int32 tensor."""
    return _number(context.rank)


@documented("init", name="has no effect; accepted for Horovod's programs.")
def local_rank_op(name: str | None = None) -> Any:
    """Return ``local_rank()`` when the graph runs, as an int32 tensor."""
    return _number(context.local_rank)


@documented(
    "init",
    "ValueError: there is no such process set.",
    process_set_id="process_set.process_set_id. 0: all ranks.",
    name="has no effect; accepted for Horovod's programs.",
)
def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Return the number of ranks in the set of this id when the graph runs, as an int32 tensor."""
    return _number(lambda: len(_ranks(process_set_id)))


@documented("init", name="has no effect; accepted for Horovod's programs.")
def local_size_op(name: str | None = None) -> Any:
    """Return ``local_size()`` when the graph runs, as an int32 tensor."""
    return _number(context.local_size)


@documented(
    "init",
    "ValueError: there is no such process set.",
    process_set_id="process_set.process_set_id. 0: all ranks.",
    name="has no effect; accepted for Horovod's programs.",
)
def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Return 1 if this rank is in the set of this id when the graph runs, else 0, as an int32
    tensor.
    """
    return _number(lambda: int(context.rank() in _ranks(process_set_id)))


def _ranks(process_set_id: int) -> list[int]:
    sets = context.process_sets()
    if process_set_id not in sets:
        raise ValueError(
            f"there is no process set with id {process_set_id}. The registered ids are"
            f" {sorted(sets)}"
        )
    return sets[process_set_id]


@documented(num_rank="a whole number.")
def check_num_rank_power_of_2(num_rank: int) -> bool:
    """Return whether ``num_rank`` is a power of two. (Adasum here takes any number of ranks.)"""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


if not TYPE_CHECKING:
    __all__ = names.listed(
        names.BASICS,
        names.BUILT_FOR_FRAMEWORK,
        (
            "barrier",
            "check_num_rank_power_of_2",
            "join",
            "local_rank_op",
            "local_size_op",
            "process_set_included_op",
            "rank_op",
            "size_op",
        ),
    )
