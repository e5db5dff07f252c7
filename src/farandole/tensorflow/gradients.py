"""The gradients of a step: dense gradients in one operation, gradients of embeddings as rows."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.eager import record

from farandole.core.api.ops import WORLD
from farandole.job import context
from farandole.job.context import ProcessSet
from farandole.strategies.list_reducer import GradientListReducer
from farandole.strategies.options import GradientOptions
from farandole.tensorflow import graph, reductions
from farandole.tensorflow.checks import TensorFlowReplica
from farandole.tensorflow.functions import Names
from farandole.tensorflow.sparse import allreduce_slices, is_slices

if TYPE_CHECKING:
    from farandole.base.types import Array

# only one exchange at a time may block a TensorFlow thread
_waits_here = threading.Lock()


def alone(process_set: ProcessSet = WORLD) -> bool:
    """Return whether this rank has no other rank to exchange with, now or later. (An elastic job
    may grow.)
    """
    return context.engine(process_set).size == 1 and context.stays_alone(process_set)


def names_of(variables: Sequence[Any]) -> list[str]:
    """Return variable names for messages, without the numbers that depend on other objects of this
    process.
    """
    return [
        re.sub(
            r"_\d+(?=/|:|$)",
            "",
            str(getattr(variable, "path", None) or getattr(variable, "name", None) or "variable"),
        )
        for variable in variables
    ]


def reduce_gradients(
    gradients: Sequence[Any],
    names: Sequence[str],
    reducer: GradientListReducer,
    *,
    replica: TensorFlowReplica | None = None,
    differentiable: bool = False,
) -> list[Any]:
    """Return ``gradients`` reduced over the ranks by ``reducer``, in eager mode, tf.functions and
    v1 graphs.

    Dense gradients are exchanged as one list, so all ranks must have the same ones in the same
    order, of any type that can be reduced; shapes may be unknown when a graph is built. For
    tf.IndexedSlices the rows of all ranks are gathered (Average and Sum only). None stays None.

    ``names``: for messages. In a graph two calls with the same ``reducer`` must not run at the same
    time. ``differentiable``: gradients flow through the results, too, at the cost of one more
    operation in graphs. Raises ValueError (graphs: InvalidArgumentError) when the ranks' lists
    differ.
    """
    results, compression = list(gradients), reducer.options.compressor
    dense = [
        place
        for place, gradient in enumerate(results)
        if gradient is not None and not is_slices(gradient)
    ]
    if dense:
        pairs = [compression.compress(tf.convert_to_tensor(results[place])) for place in dense]
        labels = [names[place] for place in dense]
        exchanged = _differentiable if differentiable else _exchanged
        totals = exchanged([small for small, _ in pairs], labels, reducer, replica)
        for place, total, (_, token) in zip(dense, totals, pairs, strict=True):
            results[place] = compression.decompress(total, token)
    for place, gradient in enumerate(results):
        if is_slices(gradient):
            results[place] = _reduced_slices(gradient, f"{reducer.name}_{place}", reducer.options)
    return results


def _reduced_slices(slices: Any, name: str, options: GradientOptions) -> Any:
    names, factor = Names("Allreduce", name), options.prescale * options.postscale
    total = allreduce_slices(
        slices, options.op, 1.0, 1.0, options.compressor, names, options.process_set
    )
    if factor == 1.0:
        return total
    dtype = total.values.dtype
    values = tf.cast(total.values, dtype if dtype.is_floating else tf.float64) * factor
    return tf.IndexedSlices(tf.cast(values, dtype), total.indices, total.dense_shape)


def _differentiable(
    tensors: Sequence[Any],
    names: Sequence[str],
    reducer: GradientListReducer,
    replica: TensorFlowReplica | None,
) -> list[Any]:
    """Return the results of ``reducer``. Their gradients are reduced in the same way, because sums
    and averages are linear.
    """
    if tf.executing_eagerly() and not record.could_possibly_record():
        return _exchanged(tensors, names, reducer, replica)
    options = reducer.options
    back = Names("GroupedAllreduce", reducer.name).and_("_gradient")

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def through(*tensors: Any) -> Any:
        def gradient(*upstream: Any, variables: Sequence[Any] = ()) -> Any:
            found = reductions.reduced(
                reductions.dense(upstream),
                options.op,
                options.prescale,
                options.postscale,
                back,
                options.process_set,
                grouped=True,
            )
            # variables are only read for comparison
            return (found, [None] * len(variables)) if variables else found

        return _exchanged(tensors, names, reducer, replica), gradient

    return list(through(*tensors))


def _exchanged(
    tensors: Sequence[Any],
    names: Sequence[str],
    reducer: GradientListReducer,
    replica: TensorFlowReplica | None,
) -> list[Any]:
    if tf.executing_eagerly():
        results = reducer([graph.array(tensor) for tensor in tensors], names, replica=replica)
        return [tf.convert_to_tensor(result) for result in results]
    blocks = tf.compat.v1.executing_eagerly_outside_functions() and _threads() > 1

    def start(*arrays: Array) -> _Exchanging:
        return _Exchanging(reducer.start(arrays, names, replica=replica), blocks)

    forms = [(tensor.dtype, tensor.shape) for tensor in tensors]
    variables = [] if replica is None else replica.variables
    # so that all ranks compare values of the same step
    with tf.control_dependencies(graph.uses_of(variables)):
        results = graph.run("the exchange of gradients", start, tensors, forms)
    with tf.control_dependencies(results[:1]):
        graph.uses_of(variables)
    return results


def _threads() -> int:
    """Return the number of operations that TensorFlow runs at a time."""
    threads = tf.config.threading.get_inter_op_parallelism_threads() or os.environ.get(
        "TF_NUM_INTEROP_THREADS"
    )
    return int(threads) if threads else len(os.sched_getaffinity(0))


class _Exchanging(graph.Call):
    """A call that runs in TensorFlow's thread if it is the only active call of this process. Any
    other call gets a new thread, so that TensorFlow always has a free thread.
    """

    def __init__(self, finish: Callable[[], list[Array]], blocks: bool) -> None:
        self._blocks = blocks
        super().__init__(finish)

    def when_done(self, call: Callable[[], None]) -> None:
        if self._blocks and _waits_here.acquire(blocking=False):
            try:
                self.run(call)
            finally:
                _waits_here.release()
        else:
            super().when_done(call)


# also keeps the variables alive, so that their ids are not reused
_Reducers = dict[Any, tuple[GradientListReducer, Sequence[Any]]]
_reducers: _Reducers = {}


def reducer_for(
    what: str, options: GradientOptions, variables: Sequence[Any] = ()
) -> GradientListReducer:
    """Return a reducer with these options for one place in the program: the same one when a
    function is traced again.

    In a graph each call returns a new one, because two in one graph may run at the same time.
    Different ``variables`` get different reducers, with the lifetime of the variables.
    """
    place = Names("Gradients", what).of(None, options.process_set) or what
    scales = options.prescale, options.postscale
    how = options.compression, options.sparse_as_dense, options.codec
    key = (place, options.op, scales, id(options.process_set), *how, *map(id, variables))
    reducers: _Reducers = (
        vars(variables[0]).setdefault("_farandole_reducers", {}) if variables else _reducers
    )
    if key not in reducers:
        reducers[key] = GradientListReducer(place, options), variables
    return reducers[key][0]
