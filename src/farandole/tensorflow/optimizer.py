"""DistributedOptimizer: any TensorFlow optimizer, stepping with the gradients of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from farandole.base.contracts import Codec, Strategy
from farandole.base.types import ReduceOp
from farandole.core.api.compression import NoneCompressor
from farandole.core.api.documented import documented
from farandole.core.api.keras_version import keras_of
from farandole.core.api.ops import WORLD
from farandole.job.context import ProcessSet
from farandole.job.plugins import registry
from farandole.strategies.inner_optimizer import of_named
from farandole.strategies.options import gradient_options
from farandole.tensorflow.differentiable import grouped_allreduce
from farandole.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from farandole.tensorflow.reducer import VariableReducer


@documented(
    "init",
    "ValueError: arguments that are invalid together, or for this kind of optimizer.",
    optimizer="a tf.compat.v1.train.Optimizer, or one of Keras 3 or 2.",
    name="name of the new optimizer; used by optimizers of TensorFlow 1 only.",
    use_locking="use_locking of tf.compat.v1.train.Optimizer.",
    op=(
        "Average (the default), Sum, or (TensorFlow 1) Adasum, with which every rank steps with"
        " its own gradients and the steps are combined."
    ),
    num_groups="has no effect: all gradients of a step are sent together.",
    groups="has no effect: all gradients of a step are sent together.",
    strategy=(
        "what ranks exchange: gradients ('allreduce', 'adasum'); with Keras also weights"
        " ('local_sgd:8', or an object such as LocalSGD(8)). Default: the value of --strategy."
    ),
    example=(
        "optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.AdamOptimizer(0.001 * hvd.size()))"
    ),
)
def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = NoneCompressor,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = ReduceOp.AVERAGE,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = WORLD,
    scale_local_gradients: bool = True,
    *,
    strategy: str | Strategy | None = None,
    codec: str | Codec | None = None,
) -> Any:
    """Return ``optimizer``, stepping with gradients reduced over all ranks.

    A ``tf.compat.v1.train.Optimizer`` is wrapped, in eager mode, functions and graphs; a Keras
    optimizer is passed to ``farandole.keras.DistributedOptimizer``; a ``tf_keras`` optimizer
    becomes an instance of a subclass of its class.
    """
    arguments: dict[str, Any] = {
        "op": op,
        "gradient_predivide_factor": gradient_predivide_factor,
        "compression": compression,
        "backward_passes_per_step": backward_passes_per_step,
        "average_aggregated_gradients": average_aggregated_gradients,
        "num_groups": num_groups,
        "groups": groups,
        "sparse_as_dense": sparse_as_dense,
        "scale_local_gradients": scale_local_gradients,
        "process_set": process_set,
        "strategy": strategy,
        "codec": codec,
    }
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        options = gradient_options(**arguments, instead="an optimizer of Keras")
        made = _Adasum if options.op is ReduceOp.ADASUM else _Distributed
        return made(optimizer, name, use_locking, VariableReducer("DistributedOptimizer", options))
    if op == ReduceOp.ADASUM:
        raise ValueError("op == Adasum is not supported yet with Keras")
    return registry.load("optimizer", keras_of(optimizer))(optimizer, name=name, **arguments)


class _Wrapping(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """The common part of both kinds: all calls except for gradients are forwarded to the wrapped
    optimizer.
    """

    def __init__(
        self, optimizer: Any, name: str | None, use_locking: bool, reducer: VariableReducer
    ) -> None:
        super().__init__(
            name=name or f"Distributed{type(optimizer).__name__}", use_locking=use_locking
        )
        self._optimizer, self._reducer = optimizer, reducer
        reducer.optimizer = optimizer
        reducer.inner = of_named(optimizer, getattr(optimizer, "_learning_rate", 0.0))
        self._local: list[Any] = []
        options = reducer.options
        self._helper = LocalGradientAggregationHelper(
            options.passes, self._reduced, options.sparse_as_dense, options.average_passes
        )

    def register_local_var(self, var: Any) -> None:
        """Keep ``var`` local to each rank: its gradients are not exchanged."""
        self._local.append(var)

    def _reduced(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        return self._reducer.reduced(gradients, variables, self._local)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.variables(*args, **kwargs)


class _Distributed(_Wrapping):
    """An optimizer that reduces gradients when they are computed."""

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Return the wrapped optimizer's gradients, reduced over all ranks (zeros before the last
        of several passes).
        """
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        gradients, variables = (
            (list(column) for column in zip(*pairs, strict=True)) if pairs else ([], [])
        )
        return list(
            zip(self._helper.compute_gradients(gradients, variables), variables, strict=True)
        )

    def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """Apply the gradients from ``compute_gradients``, after the last of several passes."""
        global_step = kwargs.get("global_step", args[1] if len(args) > 1 else None)
        return self._helper.apply_gradients(
            lambda: self._optimizer.apply_gradients(*args, **kwargs),
            self._optimizer,
            *args,
            **{**kwargs, "global_step": global_step},
        )


class _Adasum(_Wrapping):
    """An optimizer that steps with each rank's own gradients and combines the steps."""

    def _reduced(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        return list(gradients)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Return the wrapped optimizer's gradients on this rank."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        gradients, variables = (
            (list(column) for column in zip(*pairs, strict=True)) if pairs else ([], [])
        )
        return list(
            zip(self._helper.compute_gradients(gradients, variables), variables, strict=True)
        )

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        """Step, and replace this rank's step with the combined step of all ranks."""
        pairs = list(grads_and_vars)

        def step() -> Any:
            return self._step(pairs, global_step, name)

        return self._helper.apply_gradients(step, self._optimizer, pairs, global_step=global_step)

    def _step(self, pairs: list[tuple[Any, Any]], global_step: Any, name: str | None) -> Any:
        local = {variable.ref() for variable in self._local}
        variables = [
            variable
            for gradient, variable in pairs
            if gradient is not None and variable.ref() not in local
        ]
        starts = [tf.identity(variable) for variable in variables]
        with _after(starts):
            applied = self._optimizer.apply_gradients(pairs, global_step, name)
        if self._reducer.trains_alone() or not variables:
            return applied
        with _after([applied]):
            steps = [
                variable - start for variable, start in zip(_read(variables), starts, strict=True)
            ]
            options = self._reducer.options
            combined = grouped_allreduce(
                steps,
                compression=options.compression,
                op=ReduceOp.ADASUM,
                process_set=options.process_set,
                name="DistributedAdasumOptimizer",
            )
            assigned = [
                variable.assign(start + step)
                for variable, start, step in zip(variables, starts, combined, strict=True)
            ]
        return (
            None
            if tf.executing_eagerly()
            else tf.group(*[assignment.op for assignment in assigned])
        )


def _read(variables: Sequence[Any]) -> list[Any]:
    return [variable.read_value() for variable in variables]


def _after(values: Sequence[Any]) -> Any:
    return tf.control_dependencies(
        [] if tf.executing_eagerly() else [value for value in values if value is not None]
    )
