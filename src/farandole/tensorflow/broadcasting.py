"""Broadcasts of variables and objects from one rank to all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from farandole.core.api import objects
from farandole.core.api.arrays import broadcast_arrays
from farandole.core.api.documented import documented
from farandole.core.api.ops import WORLD
from farandole.job import context
from farandole.job.context import ProcessSet
from farandole.tensorflow import graph
from farandole.tensorflow.gradients import alone, names_of

if TYPE_CHECKING:
    from farandole.base.types import Array


@documented(
    "init",
    "set",
    "root",
    "ValueError, on all ranks: their variables differ in number, shape or type; the message names"
    " the first difference.",
    variables="variables of TensorFlow or Keras, of any types; the same list on all ranks.",
    inplace="has no effect; accepted for Horovod's programs.",
    example="hvd.broadcast_variables(model.variables, root_rank=0)",
)
def broadcast_variables(
    variables: Sequence[Any], root_rank: int, process_set: ProcessSet = WORLD, inplace: bool = False
) -> Any:
    """Broadcast ``root_rank``'s values of ``variables`` to all ranks. In a graph, return an
    operation that does so.
    """
    variables = [variable for variable in tf.nest.flatten(list(variables)) if variable is not None]
    tables = [variable for variable in variables if _is_table(variable)]
    if tables:
        variables = [variable for variable in variables if not _is_table(variable)]
        _share_tables(tables, root_rank, process_set)
    if tf.executing_eagerly():
        _assign(variables, root_rank, process_set)
        return None
    return tf.group(*_assign(variables, root_rank, process_set))


def _is_table(variable: Any) -> bool:
    """Return whether Keras 2 lists a lookup table, such as a vocabulary, among the variables."""
    return hasattr(variable, "get_tensors") and hasattr(variable, "set_weights")


def _share_tables(tables: Sequence[Any], root_rank: int, process_set: ProcessSet) -> None:
    """Broadcast ``root_rank``'s tables, whose lengths may differ between ranks.

    Tables of a TensorFlow 1 graph are left unchanged, because only its session can read them.
    """
    if not tf.compat.v1.executing_eagerly_outside_functions():
        return
    with tf.init_scope():
        mine = [[tensor.numpy() for tensor in table.get_tensors()] for table in tables]
        roots = objects.broadcast_object(mine, root_rank, process_set=process_set)
        for table, old, new in zip(tables, mine, roots, strict=True):
            if not all(map(np.array_equal, old, new)):
                table.set_weights(new)


@documented(
    "init",
    "set",
    "root",
    "ValueError, on all ranks: their variables differ in number, shape or type; the message names"
    " the first difference.",
    variables="variables of TensorFlow or Keras, of any types; the same list on all ranks.",
    name="has no effect; accepted for Horovod's programs.",
)
def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = WORLD,
) -> list[Any]:
    """Broadcast variables as ``broadcast_variables`` does, and return the new values."""
    variables = list(variables)
    assigned = _assign(variables, root_rank, process_set)
    with tf.control_dependencies([] if tf.executing_eagerly() else assigned):
        return [tf.identity(tf.convert_to_tensor(variable)) for variable in variables]


def _assign(variables: Sequence[Any], root_rank: int, process_set: ProcessSet) -> list[Any]:
    if not variables or (alone(process_set) and root_rank == context.rank()):
        return []
    names = names_of(variables)
    values = [tf.convert_to_tensor(variable) for variable in variables]

    if tf.executing_eagerly():
        arrays = [graph.array(value) for value in values]
        results = broadcast_arrays(arrays, names, root_rank, process_set, variables, _read)
    else:

        def start(*arrays: Array) -> graph.Call:
            # a single string
            made = [
                np.array(array, object) if isinstance(array, bytes) else array for array in arrays
            ]
            return graph.Call(lambda: broadcast_arrays(made, names, root_rank, process_set))

        forms = [(value.dtype, value.shape) for value in values]
        results = graph.run("hvd.broadcast_variables", start, values, forms, in_order=True)
    assigned = [variable.assign(value) for variable, value in zip(variables, results, strict=True)]
    return (
        []
        if tf.executing_eagerly()
        else [operation for operation in assigned if operation is not None]
    )


def _read(variable: Any) -> Array:
    return graph.array(tf.convert_to_tensor(variable))


@documented("init", "RuntimeError: in eager mode, which has no global variables.")
def broadcast_global_variables(root_rank: int) -> Any:
    """Return an operation that broadcasts ``root_rank``'s values of the graph's global
    variables.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables() does not support eager execution. Please use "
            "`hvd.broadcast_variables(<model/optimizer variables>)` instead."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Broadcast ``root_rank``'s initialized or restored variables to all ranks, in a
    MonitoredSession. ``device`` has no effect.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self._operation: Any = None

    def begin(self) -> None:
        if self._operation is None or self._operation.graph is not tf.compat.v1.get_default_graph():
            self._operation = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        session.run(self._operation)


@documented(
    "init",
    "disagree",
    "set",
    "root",
    session="has no effect; accepted for Horovod's programs.",
    example="options = hvd.broadcast_object(options, root_rank=0)",
)
def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = WORLD,
) -> Any:
    """Return ``root_rank``'s ``obj`` on every rank (on the root: the object itself)."""
    return objects.broadcast_object(obj, root_rank, name, process_set)


@documented(session="has no effect; accepted for Horovod's programs.")
def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = WORLD,
) -> Callable[[Any], Any]:
    """Return ``broadcast_object`` as a function of the object alone."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


@documented(
    "init",
    "disagree",
    "set",
    session="has no effect; accepted for Horovod's programs.",
    example="scores = hvd.allgather_object({'rank': hvd.rank()})",
)
def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = WORLD
) -> list[Any]:
    """Return every rank's ``obj``, in rank order."""
    return objects.allgather_object(obj, name, process_set)
