"""Gradient tapes that return the gradients of all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from farandole.base.contracts import Codec
from farandole.base.types import ReduceOp
from farandole.core.api.compression import NoneCompressor
from farandole.core.api.documented import documented
from farandole.core.api.ops import WORLD
from farandole.job.context import ProcessSet
from farandole.strategies.options import gradient_options
from farandole.tensorflow.reducer import VariableReducer, key_of


@documented(
    "init",
    "ValueError: arguments that are invalid together.",
    gradtape="a tf.GradientTape, after its with block.",
    op="Average (the default), Sum or Adasum.",
    num_groups="has no effect: all gradients of a step are sent together.",
    groups="has no effect: all gradients of a step are sent together.",
    example=(
        "with tf.GradientTape() as tape:\n    loss = loss_of(model(x), y)\ntape ="
        " hvd.DistributedGradientTape(tape)\ngradients = tape.gradient(loss,"
        " model.trainable_variables)"
    ),
)
def DistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = NoneCompressor,
    sparse_as_dense: bool = False,
    op: int = ReduceOp.AVERAGE,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = WORLD,
    scale_local_gradients: bool = True,
    *,
    codec: str | Codec | None = None,
) -> Any:
    """Return ``gradtape`` with a ``gradient()`` that reduces gradients over all ranks, in one
    operation.

    The tape keeps its class. On a rank outside ``process_set`` it returns that rank's gradients.

    ``register_local_source(variable)`` of the result keeps a variable's gradients local to each
    rank.
    """
    options = gradient_options(
        op,
        gradient_predivide_factor,
        compression=compression,
        num_groups=num_groups,
        groups=groups,
        sparse_as_dense=sparse_as_dense,
        scale_local_gradients=scale_local_gradients,
        process_set=process_set,
        codec=codec,
        instead="tf.GradientTape, and hvd.DistributedOptimizer with an optimizer of Keras",
    )
    reducer = VariableReducer("DistributedGradientTape", options)
    reducer.differentiable = True  # by an outer tape, as for gradient penalties
    base = type(gradtape)
    wrapped: Any = object.__new__(
        type(base.__name__, (_Distributed, base), {"__module__": base.__module__})
    )
    wrapped.__dict__.update(gradtape.__dict__)
    wrapped._farandole, wrapped._local = reducer, []
    return wrapped


@documented(
    "init",
    "ValueError: local_layers are not layers, or arguments are invalid together.",
    gradtape="a tf.GradientTape, after its with block.",
    op="Average (the default), Sum or Adasum.",
    num_groups="has no effect: all gradients of a step are sent together.",
    groups="has no effect: all gradients of a step are sent together.",
    local_layers="a Keras layer that has its weights already, or several.",
    example="tape = hvd.PartialDistributedGradientTape(tape, local_layers=model.layers[0])",
)
def PartialDistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = NoneCompressor,
    sparse_as_dense: bool = False,
    op: int = ReduceOp.AVERAGE,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = WORLD,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Return a ``DistributedGradientTape`` that keeps the variables of ``local_layers`` local to
    each rank.
    """
    layers = [] if local_layers is None else local_layers
    layers = [layers] if not isinstance(layers, (list, tuple, set)) else list(layers)
    if not all(hasattr(layer, "trainable_weights") and callable(layer) for layer in layers):
        raise ValueError("All local layers must be of tf.keras.layers.Layer type.")
    wrapped = DistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    for layer in layers:
        for variable in layer.trainable_weights:
            wrapped.register_local_source(variable)
    return wrapped


class _Distributed:
    """The methods that a distributed tape adds to its base class."""

    _farandole: VariableReducer
    _local: list[Any]
    _alone = False  # whether to return this rank's gradients

    def register_local_source(self, source: Any) -> None:
        """Keep ``source``'s gradients local to each rank."""
        self._local.append(source)

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """Return the gradients of ``target``, reduced over all ranks, in the structure of
        ``sources``.

        ``use_generic_names``: accepted for compatibility with Horovod.
        """
        gradients = super().gradient(  # type: ignore[misc]
            target,
            sources,
            output_gradients=output_gradients,
            unconnected_gradients=unconnected_gradients,
        )
        return gradients if self._alone else self._reduced(gradients, sources)

    def jacobian(self, target: Any, sources: Any, *args: Any, **options: Any) -> Any:
        """Return the tape's ``jacobian``, reduced over all ranks as gradients are."""
        with self._by_itself():
            found = super().jacobian(target, sources, *args, **options)  # type: ignore[misc]
        return self._reduced(found, sources)

    def batch_jacobian(self, target: Any, source: Any, *args: Any, **options: Any) -> Any:
        """Return the tape's ``batch_jacobian``, reduced over all ranks as gradients are."""
        with self._by_itself():
            found = super().batch_jacobian(target, source, *args, **options)  # type: ignore[misc]
        return self._reduced(found, source)

    @contextmanager
    def _by_itself(self) -> Iterator[None]:
        """Return this rank's gradients within the context, in which TensorFlow calls ``gradient()``
        in a vectorized loop.
        """
        self._alone = True
        try:
            yield
        finally:
            self._alone = False

    def _reduced(self, gradients: Any, sources: Any) -> Any:
        # tf.IndexedSlices and None are leaves of this structure
        reduced = self._farandole.reduced(
            _leaves(gradients, sources), tf.nest.flatten(sources), self._local
        )
        return tf.nest.pack_sequence_as(sources, reduced)

    def get_local_and_global_gradients(
        self,
        target: Any,
        sources: Sequence[Any],
        output_gradients: Any = None,
        use_generic_names: bool = False,
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """Return the result of ``gradient()`` as two lists of (source, gradient) pairs: local
        sources and others.
        """
        local = {key_of(source) for source in self._local}
        pairs = list(
            zip(
                sources,
                self.gradient(target, sources, output_gradients, use_generic_names),
                strict=True,
            )
        )
        return (
            [pair for pair in pairs if key_of(pair[0]) in local],
            [pair for pair in pairs if key_of(pair[0]) not in local],
        )


def _leaves(gradients: Any, sources: Any) -> list[Any]:
    """Return the gradients in the order of ``tf.nest.flatten(sources)``, with None and
    tf.IndexedSlices as leaves.
    """
    if isinstance(sources, dict):
        return [leaf for key in sorted(sources) for leaf in _leaves(gradients[key], sources[key])]
    if isinstance(sources, (list, tuple)):
        return [
            leaf
            for one, other in zip(gradients, sources, strict=True)
            for leaf in _leaves(one, other)
        ]
    return [gradients]
