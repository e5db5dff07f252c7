"""Accumulation of the gradients of several passes, which are then reduced and applied once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from farandole.core.api.ops import WORLD
from farandole.job.context import ProcessSet
from farandole.tensorflow.reducer import divided, key_of
from farandole.tensorflow.sparse import is_slices


class LocalGradientAggregationHelper:
    """Accumulates gradients over ``backward_passes_per_step`` calls of ``compute_gradients``.

    ``allreduce_func``, a function of gradients and variables, reduces the sums in the last call;
    ``apply_gradients`` applies gradients only then.

    In v1 graphs the helper's variables must be initialized with the others.
    ``average_aggregated_gradients``: divide by the number of passes. ``sparse_as_dense``: accept
    tf.IndexedSlices as dense tensors; otherwise they raise ValueError. ``scale_local_gradients``:
    divide the gradients of variables registered with ``register_local_var`` by the number of ranks
    in ``process_set``. ``rank``, ``optimizer_type`` and ``name`` have no effect; they are accepted
    for compatibility with Horovod.
    """

    _OPTIMIZER_TYPE_KERAS, _OPTIMIZER_TYPE_LEGACY = "optimizer_type_keras", "optimizer_type_legacy"

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[..., Sequence[Any]],
        sparse_as_dense: bool = False,
        average_aggregated_gradients: bool = False,
        rank: int = 0,
        optimizer_type: str = "",
        process_set: ProcessSet = WORLD,
        scale_local_gradients: bool = True,
        name: str = "",
    ) -> None:
        if backward_passes_per_step <= 0:
            raise ValueError("backward_passes_per_step must be > 0")
        self.backward_passes_per_step = backward_passes_per_step
        self._allreduce, self._as_dense = allreduce_func, sparse_as_dense
        self._average = average_aggregated_gradients
        self._process_set, self._scale_local = process_set, scale_local_gradients
        self._local: list[Any] = []
        self._sums: dict[Any, Any] = {}  # by variable
        self._graph: Any = None
        self.counter: Any = None

    def register_local_var(self, var: Any) -> None:
        """Keep ``var`` local to each rank: ``allreduce_func`` does not get its gradient."""
        self._local.append(var)

    @property
    def variables(self) -> list[Any]:
        """Return the number of passes since the last step, and their sums; empty before the first
        pass.
        """
        return [] if self.counter is None else [self.counter, *self._sums.values()]

    def compute_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:
        """Accumulate ``grads``, and return the gradients to apply in the last pass (zeros in
        others).

        None stays None.
        """
        if self.backward_passes_per_step == 1:
            return self._exchanged(grads, vars)
        # the variable had a gradient in an earlier pass only: its sum still counts
        there = [
            place
            for place, gradient in enumerate(grads)
            if gradient is not None or key_of(vars[place]) in self._sums
        ]
        dense = [self._dense(grads[place]) for place in there]
        of = [vars[place] for place in there]
        sums, passes = self._sums_of(of), self.backward_passes_per_step
        # the counter is ``passes`` if a step was skipped
        number = tf.convert_to_tensor(self.counter) % passes + 1
        with tf.control_dependencies(
            _operations([self.counter.assign(number), *self._add(number, of, dense)])
        ):
            reduced = tf.cond(
                tf.equal(number, passes),
                lambda: self._reduced(sums, of),
                lambda: [tf.zeros_like(total) for total in sums],
            )
        results = list(grads)
        for place, gradient in zip(there, reduced, strict=True):
            results[place] = gradient
        return results

    def apply_gradients(
        self, apply_grads_closure: Callable[[], Any], optimizer: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Call ``apply_grads_closure()`` in the last pass.

        Other passes also count in a Keras 2 optimizer's ``iterations`` and in ``global_step``, as
        with Horovod, because programs set their learning rate decay and training length
        accordingly.
        """
        if self.backward_passes_per_step == 1:
            return apply_grads_closure()
        gradients = [
            gradient for gradient, _ in kwargs.get("grads_and_vars") or (args[0] if args else ())
        ]
        with tf.control_dependencies(_operations(gradients)):
            full = tf.equal(tf.convert_to_tensor(self.counter), self.backward_passes_per_step)
        counters = [getattr(optimizer, "_iterations", None), kwargs.get("global_step")]
        if tf.executing_eagerly():
            return self._applied(apply_grads_closure) if full else _counted(counters)
        return tf.cond(full, lambda: self._applied(apply_grads_closure), lambda: _counted(counters))

    def _applied(self, closure: Callable[[], Any]) -> Any:
        done = closure()
        with tf.control_dependencies(_operations([done])):
            return tf.group(*_operations([self.counter.assign(0)]))

    def _add(self, number: Any, variables: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        """Add ``gradients`` to the sums. Pass 1 resets them, even if the last sums were not
        applied: a LossScaleOptimizer skips steps with overflows.
        """
        found: dict[Any, Any] = {}
        for variable, gradient in zip(variables, gradients, strict=True):
            key = key_of(variable)
            if gradient is not None:
                found[key] = found[key] + gradient if key in found else gradient

        def begin() -> Any:
            sums = self._sums.items()
            first = [
                total.assign(found[key] if key in found else tf.zeros_like(total))
                for key, total in sums
            ]
            return tf.group(*_operations(first))

        def go_on() -> Any:
            return tf.group(
                *_operations(
                    [self._sums[key].assign_add(gradient) for key, gradient in found.items()]
                )
            )

        return [tf.cond(tf.equal(number, 1), begin, go_on)]

    def _reduced(self, sums: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        totals = [tf.convert_to_tensor(total) for total in sums]
        if self._average:
            totals = [total / self.backward_passes_per_step for total in totals]
        return [tf.convert_to_tensor(total) for total in self._exchanged(totals, variables)]

    def _exchanged(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return ``gradients`` with the shared variables' gradients reduced."""
        local = {key_of(variable) for variable in self._local}
        shared = [
            place for place, variable in enumerate(variables) if key_of(variable) not in local
        ]
        results = list(gradients)
        if local and self._scale_local:
            for place in set(range(len(results))) - set(shared):
                results[place] = divided(results[place], self._process_set.size())
        totals = self._allreduce(
            [gradients[place] for place in shared], [variables[place] for place in shared]
        )
        for place, total in zip(shared, totals, strict=True):
            results[place] = total
        return results

    def _dense(self, gradient: Any) -> Any:
        if not is_slices(gradient):
            return gradient
        if not self._as_dense:
            raise ValueError(
                "IndexedSlices are not supported when `backward_passes_per_step` > 1 and"
                " `sparse_as_dense` is False."
            )
        return tf.convert_to_tensor(gradient)

    def _sums_of(self, variables: Sequence[Any]) -> list[Any]:
        graph = (
            None
            if tf.compat.v1.executing_eagerly_outside_functions()
            else tf.compat.v1.get_default_graph()
        )
        with tf.init_scope():
            if self.counter is None or self._graph is not graph:
                self._graph, self._sums = graph, {}
                self.counter = tf.Variable(
                    0, trainable=False, dtype=tf.int32, name="aggregation_counter"
                )
            for variable in variables:
                if key_of(variable) not in self._sums:
                    zeros = tf.zeros(variable.shape, tf.as_dtype(variable.dtype))
                    self._sums[key_of(variable)] = tf.Variable(
                        zeros, trainable=False, name="aggregated_gradient"
                    )
        return [self._sums[key_of(variable)] for variable in variables]


class LocalGradientAggregationHelperEager(LocalGradientAggregationHelper):
    """The same helper, with the argument order of Horovod's helper for eager programs."""

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[..., Sequence[Any]],
        sparse_as_dense: bool = False,
        average_aggregated_gradients: bool = False,
        process_set: ProcessSet = WORLD,
        scale_local_gradients: bool = True,
    ) -> None:
        super().__init__(
            backward_passes_per_step,
            allreduce_func,
            sparse_as_dense,
            average_aggregated_gradients,
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
        )


def _counted(counters: Sequence[Any]) -> Any:
    """Count one more pass that is not the last."""
    return tf.group(
        *_operations([counter.assign_add(1) for counter in counters if counter is not None])
    )


def _operations(values: Sequence[Any]) -> list[Any]:
    """Return arguments for control dependencies."""
    return (
        []
        if tf.executing_eagerly()
        else [getattr(value, "op", value) for value in values if value is not None]
    )
