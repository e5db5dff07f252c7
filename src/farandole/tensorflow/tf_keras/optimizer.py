"""Models of Keras 2, which lives on as the package ``tf_keras``: its optimizers, callbacks and states."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from farandole import context
from farandole.context import ProcessSet
from farandole.frontend.objects import broadcast_object
from farandole.frontend.ops import WORLD
from farandole.frontend.state import ObjectState
from farandole.tensorflow.broadcasting import broadcast_variables
from farandole.tensorflow.differentiable import allreduce
from farandole.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from farandole.tensorflow.sync_batch_norm import Synchronized, check_not_fused
from farandole.tensorflow.terms import Terms


def DistributedOptimizer(
    optimizer: Any, terms: Terms, backward_passes_per_step: int = 1, average_aggregated_gradients: bool = False
) -> Any:
    """``optimizer`` of Keras 2, old (``optimizers.legacy``) or new, stepping with gradients reduced over all ranks.
    The result is of a subclass of its class, of the same name, and shares its state."""
    if isinstance(optimizer, _Distributed):
        raise ValueError("this optimizer is distributed already: pass the one that DistributedOptimizer was given")
    base = type(optimizer)
    made: Any = object.__new__(type(base.__name__, (_Distributed, base), {"__module__": base.__module__}))
    made.__dict__.update(optimizer.__dict__)
    made.__dict__["_farandole"] = _Exchange(made, terms, backward_passes_per_step, average_aggregated_gradients)
    return made


class _Exchange:
    """What a distributed optimizer knows beside what its base class knows."""

    def __init__(self, optimizer: Any, terms: Terms, passes: int, average: bool) -> None:
        self.terms, self.passes = terms, passes
        self.local: list[Any] = []
        self.ready = False  # the gradients that come next have been through the helper
        self.helper = LocalGradientAggregationHelper(passes, self.reduced, terms.sparse_as_dense, average)

    def through(self, pairs: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """The gradients to apply, with their variables."""
        pairs = list(pairs)
        variables = [variable for _, variable in pairs]
        return list(zip(self.helper.compute_gradients([each for each, _ in pairs], variables), variables, strict=True))

    def reduced(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        return self.terms.reduced(gradients, variables, self.local)


class _Distributed:
    """What a distributed optimizer does differently from its base class."""

    def register_local_var(self, var: Any) -> None:
        """Leave ``var`` to each rank: its gradients are not exchanged."""
        self.__dict__["_farandole"].local.append(var)

    @property
    def _agg_helper(self) -> LocalGradientAggregationHelper:
        """For programs that look at a Horovod optimizer."""
        return self.__dict__["_farandole"].helper  # type: ignore[no-any-return]

    def _compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Of old optimizers, where Horovod reduces in it: some programs call it, and then apply what it gave."""
        exchange: _Exchange = self.__dict__["_farandole"]
        base: Any = super()
        pairs = exchange.through(base._compute_gradients(*args, **kwargs))
        exchange.ready = True
        return pairs

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Reduce, and apply: after the last of several passes."""
        exchange: _Exchange = self.__dict__["_farandole"]
        base: Any = super()
        pairs = list(grads_and_vars)
        ready, exchange.ready = exchange.ready, False
        told = kwargs.get("skip_gradients_aggregation") or not kwargs.get("experimental_aggregate_gradients", True)
        if not pairs or (told and not ready):  # the caller has exchanged them
            return base.apply_gradients(pairs, *args, **kwargs)
        if not ready:
            pairs = exchange.through(pairs)
        variables = [variable for _, variable in pairs]
        if exchange.passes > 1:  # variables of the optimizer cannot be made inside of a branch
            with tf.init_scope():
                self._make_slots(variables)
        return exchange.helper.apply_gradients(lambda: base.apply_gradients(pairs, *args, **kwargs), self, pairs)

    def _make_slots(self, variables: Sequence[Any]) -> None:
        if hasattr(self, "_create_all_weights"):
            self._create_all_weights(variables)
        elif hasattr(self, "build"):
            self.build(variables)


class BroadcastGlobalVariablesCallback(tf_keras.callbacks.Callback):  # type: ignore[misc]
    """Gives every rank ``root_rank``'s weights and optimizer state: before the first step what is there by then, and
    the rest after it."""

    def __init__(self, root_rank: int, device: str = "", local_variables: Sequence[Any] | None = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self._local = {variable.ref() for variable in local_variables or ()}
        self._times = 0

    def register_local_var(self, var: Any) -> None:
        """Leave ``var`` to each rank."""
        self._local.add(var.ref())

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if not self._times:
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._times == 1:
            self._broadcast()

    def _broadcast(self) -> None:
        self._times += 1
        optimizer = self.model.optimizer
        of_optimizer = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
        variables = [each for each in [*self.model.variables, *of_optimizer] if each.ref() not in self._local]
        broadcast_variables(variables, self.root_rank)


class MetricAverageCallback(tf_keras.callbacks.Callback):  # type: ignore[misc]
    """Averages the epoch's logs over all ranks. Put it before callbacks that read them."""

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        names = sorted(name for name, value in (logs or {}).items() if np.ndim(value) == 0 and name != "lr")
        if names and context.size() > 1:
            means = allreduce(tf.constant([float(logs[name]) for name in names], tf.float64))
            logs.update(zip(names, means.numpy().tolist(), strict=True))


class SyncBatchNormalization(Synchronized, tf_keras.layers.BatchNormalization):  # type: ignore[misc]
    """``farandole.tensorflow.SyncBatchNormalization`` for models of Keras 2."""

    def __init__(self, fused: bool | None = False, process_set: ProcessSet = WORLD, **kwargs: Any) -> None:
        check_not_fused(fused)
        super().__init__(fused=False, **kwargs)
        self._process_set = process_set


class TensorFlowKerasState(ObjectState):
    """A model of Keras 2, its optimizer and plain values: see ``elastic.TensorFlowKerasState``."""

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        if not model.built:
            raise ValueError("Model must be built first. Run `model.build(input_shape)`.")
        self.model, self.optimizer = model, optimizer or model.optimizer
        super().__init__(broadcast_object, context.rank, **kwargs)
        self._save_variables()

    def save(self) -> None:
        self._save_variables()
        super().save()

    def restore(self) -> None:
        for variable, value in getattr(self, "_copies", ()):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        broadcast_variables(self._variables(), 0)
        self._save_variables()
        super().sync()

    def _save_variables(self) -> None:
        self._copies = [(variable, variable.numpy()) for variable in self._variables()]

    def _variables(self) -> list[Any]:
        of_optimizer = getattr(self.optimizer, "variables", [])
        return [*self.model.variables, *(of_optimizer() if callable(of_optimizer) else of_optimizer)]
