"""DistributedOptimizer for Keras 2: any optimizer, old or new, stepping with the gradients of all
ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from farandole.base.contracts import Codec, Strategy
from farandole.base.types import ReduceOp
from farandole.core.api.compression import NoneCompressor
from farandole.core.api.ops import WORLD
from farandole.job.context import ProcessSet
from farandole.keras.attributes import held_by
from farandole.keras.clipping import by_parts
from farandole.keras.exchange import KerasExchange
from farandole.keras.loss_scaling import NO_STRATEGY, marked
from farandole.keras.tf_keras.loss_scale import reduced_scaled, watch
from farandole.keras.tf_keras.slots import innermost, make_slots, variables_of
from farandole.strategies.codecs import codec as codec_of
from farandole.strategies.codecs import state_label
from farandole.strategies.flat_layout import numbered
from farandole.strategies.inner_optimizer import of_named
from farandole.strategies.options import LINEAR, gradient_options
from farandole.tensorflow.checks import readable
from farandole.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from farandole.tensorflow.gradients import names_of
from farandole.tensorflow.reducer import VariableReducer, key_of
from farandole.tensorflow.weights import run_if


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
    strategy: str | Strategy | None = None,
    codec: str | Codec | None = None,
) -> Any:
    """Return a Keras 2 ``optimizer``, old (``optimizers.legacy``) or new, stepping with gradients
    reduced over all ranks.

    The result is of a subclass of its class, of the same name, and shares its state. The arguments
    are the same as for ``farandole.tensorflow.DistributedOptimizer``.
    """
    options = gradient_options(
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
    )
    if isinstance(optimizer, _Distributed):
        raise ValueError(
            "this optimizer is already distributed. Pass the optimizer that DistributedOptimizer"
            " wraps"
        )
    if not isinstance(
        optimizer, (tf_keras.optimizers.legacy.Optimizer, tf_keras.optimizers.Optimizer)
    ):
        raise ValueError(
            f"{type(optimizer).__module__}.{type(optimizer).__name__} is not an optimizer of Keras"
            " 2 (tf_keras). For an optimizer of Keras 3 use farandole.keras, or unset"
            " TF_USE_LEGACY_KERAS"
        )
    if options.strategy is not None:
        _check_exchangeable(options.strategy, scaled=hasattr(optimizer, "get_scaled_loss"))
    reducer = VariableReducer("DistributedOptimizer", options)
    base = type(optimizer)
    made: Any = object.__new__(
        type(base.__name__, (_Distributed, base), {"__module__": base.__module__})
    )
    made.__dict__.update(optimizer.__dict__)
    reducer.optimizer = made
    plain = innermost(optimizer)
    reducer.inner = of_named(plain, _rate_of(plain))
    made.__dict__["_farandole"] = _OptimizerState(reducer)
    return made


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
    layers = [layers] if isinstance(layers, tf_keras.layers.Layer) else list(layers)
    if not all(isinstance(layer, tf_keras.layers.Layer) for layer in layers):
        raise ValueError("All local layers must be of tf.keras.layers.Layer type.")
    made = DistributedOptimizer(
        optimizer,
        name=name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    made.__dict__["_farandole"].local_layers += layers
    return made


def state_of(optimizer: Any) -> _OptimizerState | None:
    """Return the state of a distributed optimizer, or of the optimizer that it wraps; None if
    neither is distributed.
    """
    inner = innermost(optimizer)  # a LossScaleOptimizer may be on either side
    state: _OptimizerState | None = optimizer.__dict__.get(
        "_farandole", inner.__dict__.get("_farandole")
    )
    return state


def all_optimizers_of(model: Any) -> list[Any]:
    """Return the compiled optimizer of ``model``, and any that the model holds for a custom
    ``train_step``, as a GAN does.
    """
    kinds = (tf_keras.optimizers.legacy.Optimizer, tf_keras.optimizers.Optimizer)
    held = [value for value in held_by(model) if isinstance(value, kinds)]
    found = {id(innermost(each)): each for each in [*held, model.optimizer] if each is not None}
    return sorted(found.values(), key=lambda each: each is not model.optimizer)


def optimizers_of(model: Any) -> list[Any]:
    """Return the compiled optimizer of ``model``, and any distributed ones that the model also
    holds.
    """
    found = all_optimizers_of(model)
    return [each for each in found if each is model.optimizer or state_of(each) is not None]


def plain_class(optimizer: Any) -> Any:
    """Return the wrapped class."""
    return next(base for base in type(optimizer).__mro__ if not issubclass(base, _Distributed))


def local_of(optimizer: Any) -> list[Any]:
    """Return the variables that a distributed optimizer, or one around it, keeps local to each
    rank.
    """
    state = state_of(optimizer)
    if state is None:
        return []
    return [
        *state.local,
        *(variable for layer in state.local_layers for variable in variables_of(layer)),
    ]


def local_layers_of(optimizer: Any) -> list[Any]:
    """Return the layers that a distributed optimizer keeps local to each rank."""
    state = state_of(optimizer)
    return [] if state is None else state.local_layers


def exchange_of(optimizer: Any) -> KerasExchange | None:
    """Return the optimizer's exchange of weights; None if it exchanges gradients or nothing."""
    state = state_of(optimizer)
    return None if state is None else state.exchange


def average_weights(model: Any, kept: Collection[Any]) -> None:
    """Average weights, and statistics like BatchNormalization's, if ranks exchange weights.

    ``kept``: the keys (``variable.ref()``) of variables that stay local to each rank.
    """
    optimizers = optimizers_of(model)
    local = {
        *kept,
        *(variable.ref() for optimizer in optimizers for variable in local_of(optimizer)),
    }
    trained = {variable.ref() for variable in model.trainable_variables}
    floats = [
        variable
        for variable in variables_of(model)
        if variable.ref() not in trained and variable.dtype.is_floating
    ]
    statistics = [variable for variable in floats if variable.ref() not in local]
    for optimizer in optimizers:
        state = state_of(optimizer)
        if state is not None:
            state.average_weights(optimizer, statistics)


def _given(pairs: Iterable[tuple[Any, Any]]) -> list[Any]:
    """Return the variables that have a gradient."""
    return [variable for gradient, variable in pairs if gradient is not None]


def _rate_of(optimizer: Any) -> float:
    """Return the first learning rate; 0 for a schedule, and in a graph."""
    try:
        numbers = getattr(optimizer, "_hyper", {})  # reading the attribute would create a variable
        return float(numbers.get("learning_rate") or optimizer.learning_rate)
    except Exception:  # of TensorFlow, or because it is a schedule
        return 0.0


def _array_of(variable: Any) -> Any:
    return variable.numpy()


def _scaled(optimizer: Any) -> bool:
    """Return whether a LossScaleOptimizer checks for non-finite gradients before the step."""
    outside = getattr(optimizer, "_is_wrapped_by_loss_scale_optimizer", False)
    return outside or hasattr(optimizer, "get_scaled_loss")


def _check_exchangeable(strategy: Strategy, *, scaled: bool) -> None:
    """Raise ValueError if weights cannot be exchanged."""
    if scaled:
        raise ValueError(NO_STRATEGY.format(spec=strategy.spec))
    if not readable():
        raise ValueError(
            f"strategy={strategy.spec!r} exchanges weights, but the weights of a TensorFlow 1"
            " graph are inside its session. Train eagerly or in a tf.function, or use"
            " strategy='allreduce'"
        )


class _OptimizerState:
    """A distributed optimizer's own state."""

    def __init__(self, reducer: VariableReducer) -> None:
        self.reducer, options = reducer, reducer.options
        self.passes = options.passes
        self.local: list[Any] = []
        self.local_layers: list[Any] = []
        # the next gradients have been reduced where they were computed
        self.computed = False
        self.ready = False  # the next gradients to apply have been reduced
        self.applying = False
        self.given: list[Any] = []  # variables of the gradients being applied
        self.scale: Any = None  # of the gradients being computed
        # whether the codec keeps a state, such as residuals
        self._keeps = bool(state_label(codec_of(options.codec)))
        if self._keeps:
            watch()
        chosen = options.strategy
        self.exchange = (
            None
            if chosen is None
            else KerasExchange(options, chosen, tf.convert_to_tensor, _array_of)
        )
        if self.exchange is not None:
            self.exchange.describe(reducer.inner)
        self._stepped: dict[Any, Any] = {}  # the variables of all steps so far, by key
        self.helper = LocalGradientAggregationHelper(
            options.passes, self.reduced, options.sparse_as_dense, options.average_passes
        )

    def through(self, pairs: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Return the reduced gradients to apply, with their variables."""
        pairs = list(pairs)
        gradients, variables = (
            [gradient for gradient, _ in pairs],
            [variable for _, variable in pairs],
        )
        if _scaled(self.reducer.optimizer):
            gradients = self._marked(gradients, variables)
        return list(
            zip(self.helper.compute_gradients(gradients, variables), variables, strict=True)
        )

    def reduced(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        if self.exchange is not None:
            return list(gradients)
        if self.scale is None or not self._keeps:
            return self._of_all(gradients, variables)
        return reduced_scaled(lambda plain: self._of_all(plain, variables), gradients, self.scale)

    def _of_all(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        return self.reducer.reduced(gradients, variables, self._locals())

    def step(self, optimizer: Any, variables: Sequence[Any], apply: Callable[[], Any]) -> Any:
        """Call ``apply()``, which changes ``variables``, and exchange weights after it."""
        if self.exchange is None or self.reducer.trains_alone():
            return apply()
        _check_exchangeable(
            self.reducer.options.strategy,  # type: ignore[arg-type]
            scaled=_scaled(optimizer),
        )
        local = {key_of(variable) for variable in self._locals()}
        now = {
            key_of(variable): variable for variable in variables if key_of(variable) not in local
        }
        self._stepped.update(now)
        common, trained = list(self._stepped.values()), [key in now for key in self._stepped]
        number = (tf.convert_to_tensor(optimizer.iterations) + 1) // self.passes
        began = self.exchange.before_step(run_if, common, number)
        with tf.control_dependencies([] if tf.executing_eagerly() else began):
            result = apply()
        with tf.control_dependencies([] if tf.executing_eagerly() or result is None else [result]):
            self.exchange.after_step(
                run_if, common, numbered(names_of(common)), number, True, trained
            )
        return result

    def end_of_epoch(self, optimizer: Any) -> None:
        if self.exchange is not None and self._stepped and not self.reducer.trains_alone():
            self.exchange.end_of_epoch(list(self._stepped.values()), self.last_step(optimizer))

    def average_weights(self, optimizer: Any, statistics: Sequence[Any] = ()) -> None:
        if self.exchange is not None and self._stepped and not self.reducer.trains_alone():
            self.exchange.average(
                list(self._stepped.values()), self.last_step(optimizer), statistics
            )

    def last_step(self, optimizer: Any) -> int:
        return int(optimizer.iterations.numpy()) // self.passes

    def shared_places(self, variables: Sequence[Any]) -> list[int]:
        """Return the indices of the shared variables in ``variables``."""
        local = {key_of(variable) for variable in self._locals()}
        return [place for place, variable in enumerate(variables) if key_of(variable) not in local]

    def _locals(self) -> list[Any]:
        return [
            *self.local,
            *(variable for layer in self.local_layers for variable in layer.trainable_weights),
        ]

    def _marked(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return ``gradients``, with all shared ones made non-finite if a local one is, so that
        ranks skip steps together.
        """
        mine = {key_of(variable) for variable in self._locals()}
        there = [place for place, gradient in enumerate(gradients) if gradient is not None]
        local = [place for place in there if key_of(variables[place]) in mine]
        return marked(
            gradients, [place for place in there if place not in local], local, _zero_of, _plus
        )


def _zero_of(gradient: Any) -> Any:
    return tf.reduce_sum(tf.convert_to_tensor(gradient) * 0)


def _plus(gradient: Any, number: Any) -> Any:
    gradient = tf.convert_to_tensor(gradient)
    return gradient + tf.cast(number, gradient.dtype)


class _Distributed:
    """The methods that a distributed optimizer adds to its base class."""

    def register_local_var(self, var: Any) -> None:
        """Keep ``var`` local to each rank: its gradients are not exchanged."""
        self.__dict__["_farandole"].local.append(var)

    def end_of_epoch(self) -> None:
        """Exchange weights, if the strategy does so at the end of each epoch ("local_sgd:epoch").

        In ``fit``, the BroadcastGlobalVariablesCallback calls this; a custom training loop must
        call it itself. Collective for such a strategy.
        """
        self.__dict__["_farandole"].end_of_epoch(self)

    def average_weights(self) -> None:
        """Replace each rank's weights by their mean over all ranks, to evaluate or save them.
        Collective if ranks exchange weights; otherwise their weights are equal already.
        """
        self.__dict__["_farandole"].average_weights(self)

    def state_dict(self) -> dict[str, Any]:
        """Return the strategy's state; see ``farandole.keras.DistributedOptimizer``."""
        exchange = self.__dict__["_farandole"].exchange
        return {} if exchange is None else exchange.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the strategy's state; see ``farandole.keras.DistributedOptimizer``."""
        exchange = self.__dict__["_farandole"].exchange
        if exchange is not None and state:
            exchange.load_state_dict(state)

    @property
    def _agg_helper(self) -> LocalGradientAggregationHelper:
        """Horovod's aggregation helper, for programs that read it."""
        return self.__dict__["_farandole"].helper  # type: ignore[no-any-return]

    # Horovod reduces in these methods. Some programs call one, change the result (by clipping, for
    # instance) and apply it.

    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> list[tuple[Any, Any]]:
        base: Any = super()
        if hasattr(base, "_compute_gradients"):  # an old optimizer
            return self._computed(base._compute_gradients(loss, var_list, grad_loss, tape=tape))
        return self._computed(base.compute_gradients(loss, var_list, tape=tape))

    def compute_gradients(
        self, loss: Any, var_list: Any, tape: Any = None
    ) -> list[tuple[Any, Any]]:
        return self._compute_gradients(loss, var_list, None, tape)

    def get_gradients(self, loss: Any, params: Any) -> list[Any]:
        """Return the reduced gradients, for old optimizers."""
        params = list(params)
        gradients = super().get_gradients(loss, params)  # type: ignore[misc]
        return [gradient for gradient, _ in self._computed(zip(gradients, params, strict=True))]

    def _computed(self, pairs: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        state: _OptimizerState = self.__dict__["_farandole"]
        reduced = state.through(pairs)
        state.computed = True
        return reduced

    # A LossScaleOptimizer around this one calls one of these methods for the reduced gradients, and
    # then checks that they are finite: all ranks must reach the same result.

    def _aggregate_gradients(self, grads_and_vars: Any) -> Any:
        return self._aggregated(grads_and_vars, super()._aggregate_gradients)  # type: ignore[misc]

    def aggregate_gradients(self, grads_and_vars: Any) -> Any:
        return self._aggregated(grads_and_vars, super().aggregate_gradients)  # type: ignore[misc]

    def _aggregated(self, grads_and_vars: Any, otherwise: Callable[[Any], Any]) -> Any:
        state: _OptimizerState = self.__dict__["_farandole"]
        if state.applying or not getattr(self, "_is_wrapped_by_loss_scale_optimizer", False):
            return otherwise(grads_and_vars)
        pairs = list(grads_and_vars)
        if not state.computed and pairs:
            pairs = state.through(pairs)
        state.computed, state.ready = False, True
        return pairs

    # Clipping by a global norm uses one norm for the shared gradients and one for the local ones.
    # For new optimizers, and for old ones:

    def _clip_gradients(self, grads: Any) -> Any:
        base, state = super()._clip_gradients, self.__dict__["_farandole"]  # type: ignore[misc]
        if not self.global_clipnorm:  # type: ignore[attr-defined]
            return base(grads)
        return by_parts(base, grads, state.shared_places(state.given))

    def _transform_gradients(self, grads_and_vars: Any) -> Any:
        base = super()._transform_gradients  # type: ignore[misc]
        state = self.__dict__["_farandole"]
        pairs = list(grads_and_vars)
        if not self.global_clipnorm:  # type: ignore[attr-defined]
            return base(pairs)
        return by_parts(base, pairs, state.shared_places([variable for _, variable in pairs]))

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Reduce and apply gradients, after the last of several passes."""
        state: _OptimizerState = self.__dict__["_farandole"]
        base: Any = super()
        pairs = list(grads_and_vars)
        state.given = _given(pairs)
        ready = state.computed or state.ready
        state.computed = state.ready = False
        exchanged = kwargs.get("skip_gradients_aggregation") or not kwargs.get(
            "experimental_aggregate_gradients", True
        )
        if not pairs or (exchanged and not ready):  # the caller has exchanged them
            return state.step(
                self, _given(pairs), lambda: base.apply_gradients(pairs, *args, **kwargs)
            )
        if not ready:
            pairs = state.through(pairs)
        variables = [variable for _, variable in pairs]
        if state.passes > 1:  # an optimizer's variables cannot be created within a branch
            with tf.init_scope():
                make_slots(self, variables)
        state.applying = True
        try:
            given = _given(pairs)
            return state.helper.apply_gradients(
                lambda: state.step(
                    self, given, lambda: base.apply_gradients(pairs, *args, **kwargs)
                ),
                self,
                pairs,
            )
        finally:
            state.applying = False
