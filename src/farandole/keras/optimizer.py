"""DistributedOptimizer: any Keras optimizer, stepping with the gradients of all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import keras

from farandole.base.contracts import Codec, Strategy
from farandole.base.types import ReduceOp
from farandole.core.api.compression import NoneCompressor
from farandole.core.api.documented import documented
from farandole.core.api.keras_version import keras_of
from farandole.core.api.ops import WORLD
from farandole.job import context
from farandole.job.context import ProcessSet
from farandole.keras.attributes import held_by
from farandole.keras.clipping import by_parts
from farandole.keras.loss_scaling import NO_STRATEGY
from farandole.keras.reducer import KerasReducer
from farandole.strategies.inner_optimizer import of_named
from farandole.strategies.options import LINEAR, gradient_options

_NO_EMA = (
    "use_ema=True replaces each rank's weights by their moving average, and strategy={spec!r}"
    " would sum these changes over all ranks. Remove use_ema, or use 'ps' or 'local_sgd'"
)


@documented(
    "init",
    "ValueError: an invalid op, factor or groups; an optimizer of Keras 2, or an already"
    " distributed one.",
    optimizer="any Keras optimizer, or its name ('adam').",
    name="has no effect; accepted for Horovod's programs.",
    op="Average (the default) or Sum.",
    num_groups="has no effect: all gradients of a step are sent together.",
    groups="has no effect: all gradients of a step are sent together.",
    strategy=(
        "what ranks exchange: gradients ('allreduce'), or weights periodically"
        " ('local_sgd:8', or an object such as LocalSGD(8)). Default: the value of --strategy."
    ),
    shard="model.fit divides its data among the ranks; see farandole.keras.shard.",
    backward_passes_per_step=(
        "number of batches whose gradients are added up before an exchange and a step; the same"
        " as Keras's gradient_accumulation_steps."
    ),
    sparse_as_dense=(
        "exchange the gradients of embeddings as dense tensors (TensorFlow; always dense"
        " elsewhere)."
    ),
    scale_local_gradients="divide the gradients of local variables by the number of ranks.",
    example=(
        "optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.001 * hvd.size()))\n"
        "model.compile(optimizer, 'mse')"
    ),
)
def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = NoneCompressor,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = ReduceOp.AVERAGE,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = WORLD,
    scale_local_gradients: bool = True,
    *,
    shard: bool = False,
    strategy: str | Strategy | None = None,
    codec: str | Codec | None = None,
) -> Any:
    """Return ``optimizer``, stepping with gradients reduced over all ranks: after accumulation,
    before clipping.

    The result is of a subclass of ``optimizer``'s class and shares its state. Saving it saves the
    wrapped optimizer, so that files load without Farandole. A ``LossScaleOptimizer`` stays on the
    outside.

    ``register_local_var(variable)`` of the result keeps a variable local to each rank.
    """
    context.size()
    chosen = gradient_options(
        op,
        gradient_predivide_factor,
        compression=compression,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        num_groups=num_groups,
        groups=groups,
        sparse_as_dense=sparse_as_dense,
        scale_local_gradients=scale_local_gradients,
        process_set=process_set,
        strategy=strategy,
        codec=codec,
        ops=LINEAR,
        by_shares=True,
    )
    if keras_of(optimizer) == "tf_keras":
        raise ValueError(
            f"{type(optimizer).__name__} is an optimizer of Keras 2 (tf_keras), but"
            " farandole.keras is for Keras 3. Set TF_USE_LEGACY_KERAS=1 and use"
            " farandole.tensorflow.keras (or horovod.tensorflow.keras), or use an optimizer of"
            " Keras 3"
        )
    optimizer = keras.optimizers.get(optimizer)
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        if chosen.strategy is not None:
            raise ValueError(NO_STRATEGY.format(spec=chosen.strategy.spec))
        options = {
            key: value for key, value in locals().items() if key not in ("optimizer", "chosen")
        }
        optimizer.inner_optimizer = DistributedOptimizer(optimizer.inner_optimizer, **options)
        return optimizer
    if gradients_of(optimizer) is not None:
        raise ValueError(
            "this optimizer is already distributed. Pass the optimizer that DistributedOptimizer"
            " wraps"
        )
    if chosen.strategy is not None and optimizer.use_ema and chosen.strategy.reference.adds_up:
        raise ValueError(_NO_EMA.format(spec=chosen.strategy.spec))
    reducer = KerasReducer(chosen, shard)
    if chosen.codec or chosen.strategy is not None:
        reducer.describe(of_named(optimizer, _rate_of(optimizer)))
    wrapped = _adopt(optimizer, reducer)
    if backward_passes_per_step > 1:
        _accumulate(wrapped, backward_passes_per_step)
    return wrapped


@documented(
    "init",
    "ValueError: local_layers are not layers; also all errors of DistributedOptimizer.",
    optimizer="any Keras optimizer, or its name ('adam').",
    name="has no effect; accepted for Horovod's programs.",
    op="Average (the default) or Sum.",
    groups="has no effect: all gradients of a step are sent together.",
    local_layers="a Keras layer, or several.",
    example="optimizer = hvd.PartialDistributedOptimizer(optimizer, local_layers=model.layers[0])",
)
def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = NoneCompressor,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = ReduceOp.AVERAGE,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Any = None,
    process_set: ProcessSet = WORLD,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Return a ``DistributedOptimizer`` that keeps the variables of ``local_layers`` (one layer or
    several) local to each rank.
    """
    layers = [] if local_layers is None else local_layers
    layers = [layers] if isinstance(layers, keras.layers.Layer) else list(layers)
    if not all(isinstance(layer, keras.layers.Layer) for layer in layers):
        raise ValueError("All local layers must be of tf.keras.layers.Layer type.")
    wrapped = DistributedOptimizer(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        0,
        groups,
        process_set,
        scale_local_gradients,
    )
    gradients = gradients_of(wrapped)
    assert gradients is not None
    gradients.local_layers += layers
    return wrapped


def confined(optimizer: Any, process_set: ProcessSet) -> Any:
    """Return ``optimizer`` distributed over ``process_set``, with its own options if it is already
    distributed over all ranks. Raises ValueError if it is distributed over other ranks.
    """
    gradients = gradients_of(optimizer)
    if gradients is None:
        return DistributedOptimizer(optimizer, process_set=process_set)
    if gradients.process_set.process_set_id not in (
        WORLD.process_set_id,
        process_set.process_set_id,
    ):
        raise ValueError(
            f"the optimizer is distributed over the ranks {gradients.process_set.ranks}, but"
            f" process_set has the ranks {process_set.ranks}. Omit process_set"
        )
    distributed_in(optimizer).__dict__["_farandole"] = gradients.among(process_set)
    return optimizer


def distributed_in(optimizer: Any) -> Any:
    """Return ``optimizer`` if it is distributed, else the distributed optimizer that it wraps, or
    None.
    """
    while optimizer is not None and "_farandole" not in getattr(optimizer, "__dict__", {}):
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return optimizer


def gradients_of(optimizer: Any) -> KerasReducer | None:
    """Return the gradient reducer of ``optimizer``, or of the optimizer that it wraps; None if
    there is none.
    """
    found = distributed_in(optimizer)
    return None if found is None else found._farandole


def innermost(optimizer: Any) -> Any:
    """Return the optimizer within any loss-scaling wrappers."""
    while getattr(optimizer, "inner_optimizer", None) is not None:
        optimizer = optimizer.inner_optimizer
    return optimizer


def all_optimizers_of(model: Any) -> list[Any]:
    """Return the compiled optimizer of ``model``, and any that the model holds for a custom
    ``train_step``, as a GAN does.
    """
    held = [value for value in held_by(model) if isinstance(value, keras.optimizers.Optimizer)]
    found: dict[int, Any] = {}
    for each in [getattr(model, "optimizer", None), *held]:
        if each is not None:
            found.setdefault(id(innermost(each)), each)  # Keras wraps optimizers for mixed_float16
    return list(found.values())


def optimizers_of(model: Any) -> list[Any]:
    """Return the compiled optimizer of ``model``, and any distributed ones that the model also
    holds.
    """
    first = getattr(model, "optimizer", None)
    return [
        each for each in all_optimizers_of(model) if each is first or gradients_of(each) is not None
    ]


def reducers_of(model: Any) -> list[tuple[Any, KerasReducer]]:
    """Return the distributed optimizers of ``model``, each with its reducer."""
    pairs = [(optimizer, gradients_of(optimizer)) for optimizer in optimizers_of(model)]
    return [(optimizer, reducer) for optimizer, reducer in pairs if reducer is not None]


class Distributed:
    """The methods that a distributed optimizer adds to its base class."""

    _farandole: KerasReducer

    def register_local_var(self, var: Any) -> None:
        """Keep ``var`` local to each rank: its gradients are not exchanged, and it is not
        broadcast.
        """
        self._farandole.local_variables.append(var)

    def end_of_epoch(self) -> None:
        """Exchange weights, if the strategy does so at the end of each epoch ("local_sgd:epoch").

        ``fit`` calls this; a custom training loop must call it itself (with JAX, once variables
        hold their values again). Collective for such a strategy.
        """
        self._farandole.end_of_epoch(self)

    def average_weights(self) -> None:
        """Replace each rank's weights by their mean over all ranks, to evaluate or save them.

        ``fit`` does so at the end. Collective if ranks exchange weights; otherwise their weights
        are equal already.
        """
        self._farandole.average_weights(self)

    def state_dict(self) -> dict[str, Any]:
        """Return the strategy's state on this rank, such as the outer momentum; empty if it
        exchanges gradients.

        Keras's files do not contain it, because Keras does not load an optimizer's state from a
        file with additional entries.
        """
        exchange = self._farandole.exchange
        return {} if exchange is None else exchange.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the strategy's state, together with weights and an optimizer saved at the same
        moment.

        Raises ValueError for the state of another strategy.
        """
        exchange = self._farandole.exchange
        if exchange is not None and state:
            exchange.load_state_dict(state)

    # Keras calls these between the gradients and the step, in this order (old Keras: the first two
    # in the opposite order).

    def _filter_empty_gradients(self, grads: Any, vars: Any) -> Any:
        grads, variables = super()._filter_empty_gradients(grads, vars)  # type: ignore[misc]
        self._farandole.variables = list(variables)
        return grads, variables

    def _overwrite_variables_directly_with_gradients(self, grads: Any, vars: Any) -> Any:
        overwrite = super()._overwrite_variables_directly_with_gradients  # type: ignore[misc]
        grads, variables = overwrite(grads, vars)
        self._farandole.variables = list(variables)
        return grads, variables

    def _clip_gradients(self, grads: Any) -> Any:
        if self._clips():
            grads = self._farandole.reduced(self, grads)
        base: Any = super()
        if not getattr(self, "global_clipnorm", None):
            return base._clip_gradients(grads)
        return by_parts(base._clip_gradients, grads, self._farandole.shared_places(self))

    def _apply_weight_decay(self, variables: Any) -> None:
        self._farandole.before_step(self)  # weight decay is part of the step
        super()._apply_weight_decay(variables)  # type: ignore[misc]

    def _backend_apply_gradients(self, grads: Any, trainable_variables: Any) -> Any:
        with self._farandole.applying():
            return super()._backend_apply_gradients(  # type: ignore[misc]
                grads, trainable_variables
            )

    def _backend_update_step(self, grads: Any, trainable_variables: Any, learning_rate: Any) -> Any:
        if not self._clips():
            grads = self._farandole.reduced(self, grads)
        result = super()._backend_update_step(  # type: ignore[misc]
            grads, trainable_variables, learning_rate
        )
        self._farandole.after_step(self)
        return result

    def _clips(self) -> bool:
        """Return whether gradients must be reduced in every pass.

        Old Keras clips each gradient that it accumulates; without clipping, exchanging the sum is
        enough.
        """
        return any(
            getattr(self, option, None) for option in ("clipnorm", "global_clipnorm", "clipvalue")
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copy and pickle the wrapped optimizer only. A copy must be distributed again."""
        return self._plain().__reduce_ex__(protocol)

    def _plain(self) -> Any:
        base = self.__class__
        plain = object.__new__(base)
        plain.__dict__.update(
            {key: value for key, value in self.__dict__.items() if key != "_farandole"}
        )
        return plain


def _rate_of(optimizer: Any) -> float:
    """Return the first learning rate; 0 in a program that is being compiled."""
    try:
        return float(keras.ops.convert_to_numpy(optimizer.learning_rate))
    except Exception:  # of the backend: a symbolic value
        return 0.0


def _adopt(optimizer: Any, gradients: KerasReducer) -> Any:
    """Move ``optimizer``'s state to an object of a distributed subclass.

    Its ``__class__`` is reported as ``optimizer``'s class, because Keras saves it under that name.
    """
    base = type(optimizer)
    body = {
        "__module__": base.__module__,
        "__doc__": base.__doc__,
        "__class__": property(lambda self: base),
    }
    wrapped: Any = object.__new__(type(base.__name__, (Distributed, base), body))
    wrapped.__dict__.update(optimizer.__dict__)
    wrapped.__dict__["_farandole"] = gradients
    return wrapped


def _accumulate(optimizer: Any, passes: int) -> None:
    known = optimizer.gradient_accumulation_steps
    if known not in (None, passes):
        raise ValueError(
            f"backward_passes_per_step={passes}, but the optimizer has"
            f" gradient_accumulation_steps={known}, which means the same. Set only one of them"
        )
    if known is None and optimizer.built:
        raise ValueError(
            f"backward_passes_per_step={passes} needs an optimizer that is not built yet. Pass a"
            f" new one, or create it with gradient_accumulation_steps={passes}"
        )
    optimizer.gradient_accumulation_steps = passes


# Loss scaling: gradients decide whether a step is skipped, so ranks must check the reduced ones.


@contextmanager
def exchanged_outside(optimizer: Any) -> Iterator[None]:
    """Mark gradients that a LossScaleOptimizer passes on to ``optimizer`` as already reduced."""
    gradients = gradients_of(optimizer)
    assert gradients is not None
    gradients.outside = True
    try:
        yield
    finally:
        gradients.outside = False


def reduced_for_scaling(optimizer: Any, grads: Sequence[Any], variables: Any) -> list[Any]:
    """Return the reduced gradients for a LossScaleOptimizer around a distributed optimizer.

    They are non-finite on all ranks if they are on one. Raises ValueError if ranks exchange
    weights.
    """
    inner = distributed_in(optimizer)
    gradients: KerasReducer = inner._farandole
    if gradients.exchange is not None:  # Keras or the program has wrapped the optimizer
        raise ValueError(NO_STRATEGY.format(spec=gradients.exchange.spec))
    variables = inner._trainable_variables if variables is None else list(variables)
    there = [number for number, grad in enumerate(grads) if grad is not None]
    gradients.variables = [variables[number] for number in there]
    own = gradients.marked(inner, [grads[place] for place in there])
    results = list(grads)
    for number, result in zip(
        there, gradients.reduced_scaled(inner, own, optimizer.dynamic_scale), strict=True
    ):
        results[number] = result
    return results
