"""The exchange of one optimizer's gradients, on any Keras backend."""

from __future__ import annotations

import functools
import importlib
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from farandole.base.exchange_names import KERAS_LISTS, exchange_name
from farandole.base.types import ReduceOp
from farandole.job import context
from farandole.job.context import ProcessSet
from farandole.keras.checks import KerasReplica
from farandole.keras.exchange import KerasExchange
from farandole.keras.loss_scaling import marked
from farandole.keras.share_weight import ShareWeight
from farandole.strategies.codecs import codec, state_label
from farandole.strategies.flat_layout import numbered
from farandole.strategies.inner_optimizer import InnerOptimizer
from farandole.strategies.list_reducer import GradientListReducer
from farandole.strategies.options import GradientOptions

if TYPE_CHECKING:
    from farandole.base.types import Array

    Values = Callable[[], "list[Array] | None"]


def backend() -> Any:
    """Return the module in this package that is named for Keras's backend."""
    return importlib.import_module(f"farandole.keras.{keras.backend.backend()}")


class KerasReducer:
    """Reduces the gradients of one optimizer."""

    def __init__(self, options: GradientOptions, shard: bool) -> None:
        self.process_set, self.shard = options.process_set, shard
        # In a job with a fixed global batch, ranks with more shares count more.
        self.share_weight = ShareWeight(options) if context.shares() else None
        if self.share_weight is not None:
            options = options._replace(op=ReduceOp.SUM)
        # Results are multiplied by this factor, because Keras divides accumulated gradients by the
        # number of passes.
        self.factor = 1.0 if options.average_passes else float(options.passes)
        self.variables: list[Any] = []  # the variables of the current gradients
        self.local_variables: list[Any] = []
        self.local_layers: list[Any] = []
        self.reported: set[str] = set()  # codes of findings
        self.not_broadcast: list[Any] = []  # variables left out of the broadcast on purpose
        self.inner: InnerOptimizer | None = None  # the facts about the optimizer
        self.outside = False  # whether another optimizer has already exchanged the gradients
        self._options = options
        strategy = options.strategy
        self.exchange = (  # of weights; None if gradients are exchanged
            None
            if strategy is None
            else KerasExchange(
                options, strategy, keras.ops.convert_to_tensor, keras.ops.convert_to_numpy
            )
        )
        self._applying = False
        self._name = context.object_names().next() if context.is_elastic() else ""
        # whether the codec keeps a state, such as residuals
        self._keeps = bool(state_label(codec(options.codec)))
        # A codec gets the sum over all passes, because the votes and thresholds of some codecs
        # depend on magnitudes.
        self._before = self.factor if codec(options.codec) else 1.0
        self._list: tuple[Any, GradientListReducer] | None = None

    def describe(self, inner: InnerOptimizer) -> None:
        """Record the facts about the optimizer, for its codec or strategy."""
        self.inner = inner
        if self.exchange is not None:
            self.exchange.describe(inner)

    def among(self, process_set: ProcessSet) -> KerasReducer:
        """Return a reducer with the same options for the ranks of ``process_set``."""
        other = KerasReducer(self._options._replace(process_set=process_set), self.shard)
        other.inner = self.inner
        other.local_variables, other.local_layers = self.local_variables, self.local_layers
        return other

    def shared(self) -> bool:
        """Return whether there is another rank to exchange gradients with."""
        return context.takes_part() and not context.stays_alone(self.process_set)

    @contextmanager
    def applying(self) -> Iterator[None]:
        """Mark a context in which Keras may apply the gradients or only accumulate them."""
        self._applying = True
        try:
            yield
        finally:
            self._applying = False

    def reduced(self, optimizer: Any, grads: Sequence[Any]) -> list[Any]:
        """Return the gradients of ``self.variables``, reduced over all ranks; gradients of local
        variables stay this rank's.
        """
        found: list[Any] = backend().uncompiled(self._of_all, optimizer, grads)
        return found

    def reduced_scaled(self, optimizer: Any, grads: Sequence[Any], scale: Any) -> list[Any]:
        """Reduce ``grads`` that are ``scale`` times as large as the gradients.

        The scale changes between steps, so a codec's residuals are kept without it.
        """
        if not self._keeps:
            return self.reduced(optimizer, grads)
        reduced = self.reduced(optimizer, [_divided(grad, scale) for grad in grads])
        return [
            keras.ops.cast(_divided(one, 1.0 / scale), grad.dtype)
            for one, grad in zip(reduced, grads, strict=True)
        ]

    def marked(self, optimizer: Any, grads: Sequence[Any]) -> list[Any]:
        """Return ``grads`` of ``self.variables``, with all shared ones made non-finite if a local
        one is.
        """
        if not self.shared():
            return list(grads)
        shared = self.shared_places(optimizer)
        return marked(grads, shared, sorted(set(range(len(grads))) - set(shared)), _zero_of, _plus)

    def _of_all(self, optimizer: Any, grads: Sequence[Any]) -> list[Any]:
        if self.outside:
            return list(grads)
        # in every job, because a norm over rows may differ from a dense one
        if self._options.sparse_as_dense:
            grads = backend().dense(grads)
        if not self.shared() or self.exchange is not None:
            return (
                list(grads)
                if self.factor == 1.0
                else [keras.ops.multiply(grad, self.factor) for grad in grads]
            )
        common = self.shared_places(optimizer)
        results = list(grads)
        variables = [self.variables[number] for number in common]
        names = self._names(optimizer, variables)
        shared = [grads[number] for number in common]
        before = self._before * (1.0 if self.share_weight is None else self.share_weight.value())
        if before != 1.0:
            shared = [keras.ops.multiply(grad, before) for grad in shared]
        reduced = self._reduced(optimizer, shared, names, variables)
        for number, grad in zip(common, reduced, strict=True):
            results[number] = grad
        factor = self.factor / (self.process_set.size() if self._options.scale_local else 1)
        for number in set(range(len(results))) - set(common) if factor != 1.0 else ():
            results[number] = keras.ops.multiply(results[number], factor)
        return results

    def before_step(self, optimizer: Any) -> None:
        """Prepare for the optimizer's change of ``self.variables``."""
        if self.exchange is not None and self.shared():
            self.exchange.before_step(
                backend().run_if, self._all(optimizer), *self._step(optimizer)
            )

    def after_step(self, optimizer: Any) -> None:
        """Exchange weights after the optimizer has changed ``self.variables``."""
        if self.exchange is not None and self.shared():
            variables = self._all(optimizer)
            names = self._names(optimizer, variables)
            changed = {optimizer._var_key(variable) for variable in self.variables}
            trained = [optimizer._var_key(variable) in changed for variable in variables]
            step, final = self._step(optimizer)
            self.exchange.after_step(backend().run_if, variables, names, step, final, trained)

    def end_of_epoch(self, optimizer: Any) -> None:
        """Exchange weights, if the strategy does so at the end of each epoch. Call it outside of
        compiled programs.
        """
        if self.exchange is not None and self.shared() and self.variables:
            self.exchange.end_of_epoch(self._all(optimizer), self.last_step(optimizer))

    def average_weights(self, optimizer: Any, *, replaced: bool = False) -> None:
        """Replace each rank's weights by their mean over all ranks.

        ``replaced``: on some rank, the program has assigned other weights since the last step. Call
        it outside of compiled programs.
        """
        # also before the first step: a rank may have no batch, or may have loaded a file
        variables = self._all(optimizer)
        if self.exchange is not None and self.shared() and variables:
            if replaced:
                self.exchange.average_replaced(variables)
            else:
                self.exchange.average(variables, self.last_step(optimizer))

    def last_step(self, optimizer: Any) -> int:
        return int(keras.ops.convert_to_numpy(counter(optimizer))) // (
            optimizer.gradient_accumulation_steps or 1
        )

    def _step(self, optimizer: Any) -> tuple[Any, Any]:
        """Return the number of this step, and whether it counts: on JAX, Keras computes a step for
        every batch that it accumulates and drops most of them.
        """
        batches, passes = counter(optimizer) + 1, optimizer.gradient_accumulation_steps or 1
        return (batches, True) if passes == 1 else (batches // passes, batches % passes == 0)

    def _all(self, optimizer: Any) -> list[Any]:
        """Return the optimizer's variables that all ranks share, including frozen ones."""
        local = self._local_keys(optimizer)
        return [
            variable
            for variable in optimizer._trainable_variables
            if optimizer._var_key(variable) not in local
        ]

    def _names(self, optimizer: Any, variables: Sequence[Any]) -> list[str]:
        """Return a name for each variable that stays the same when other variables are frozen.
        Layers may share a name.
        """
        known = optimizer._trainable_variables
        names = dict(
            zip(map(optimizer._var_key, known), numbered(map(name_of, known)), strict=True)
        )
        return [
            names.get(optimizer._var_key(variable)) or name_of(variable) for variable in variables
        ]

    def shared_places(self, optimizer: Any) -> list[int]:
        """Return the indices of the shared variables in ``self.variables``."""
        local = self._local_keys(optimizer)
        keys = [optimizer._var_key(variable) for variable in self.variables]
        return [number for number, key in enumerate(keys) if key not in local]

    def _local_keys(self, optimizer: Any) -> set[Any]:
        return {optimizer._var_key(variable) for variable in self.local()}

    def local(self) -> list[Any]:
        """Return the variables that stay local to each rank, including untrained ones of local
        layers (frozen ones, statistics).
        """
        return [
            *self.local_variables,
            *(weight for layer in self.local_layers for weight in layer.weights),
        ]

    def compare(self, optimizer: Any, variables: list[Any]) -> None:
        """Compare the ranks' values of ``variables`` between two steps. Collective."""
        if self._list is not None and self.shared():
            names = self._names(optimizer, variables)
            self._list[1].compare(self._replica(optimizer, variables, names, between_steps=True))

    def _replica(self, *args: Any, **options: Any) -> KerasReplica:
        return KerasReplica(
            *args, reported=self.reported, not_broadcast=self.not_broadcast, **options
        )

    def _reduced(
        self, optimizer: Any, grads: list[Any], names: list[str], variables: list[Any]
    ) -> list[Any]:
        if not grads:
            return []
        steps = optimizer.gradient_accumulation_steps if self._applying else None
        found: list[Any] = backend().reduced(
            grads,
            names,
            self._open(),
            self._replica(optimizer, variables, names),
            None if not steps else lambda: (counter(optimizer) + 1) % steps == 0,
        )
        return found

    def _open(self) -> GradientListReducer:
        """Return the reducer for this job. Ranks agree on its name because their optimizers step in
        the same order; in an elastic job, because they are created in the same order: after a
        change of ranks some ranks use compiled steps, and others compile theirs.
        """
        engine = context.engine(self.process_set)
        if self._list is None or (self._list[0] is not engine and not self._name):
            after = self._options.postscale * self.factor / self._before
            options = self._options._replace(postscale=after)
            number = self._name or engine.numbers.next_optimizer()
            name = exchange_name(KERAS_LISTS, number)
            made = GradientListReducer(name, options)
            made.codec_context.describe(self.inner)
            self._list = engine, made
        return self._list[1]


def _divided(gradient: Any, factor: Any) -> Any:
    """Divide in float32, or in float64 for a float64 gradient. Old Keras can divide rows of
    embeddings but cannot multiply them.
    """
    wide = (
        gradient
        if keras.backend.standardize_dtype(gradient.dtype) == "float64"
        else keras.ops.cast(gradient, "float32")
    )
    return keras.ops.divide(wide, keras.ops.cast(factor, wide.dtype))


def _zero_of(gradient: Any) -> Any:
    return keras.ops.sum(keras.ops.multiply(keras.ops.convert_to_tensor(gradient), 0.0))


def _plus(gradient: Any, number: Any) -> Any:
    gradient = keras.ops.convert_to_tensor(gradient)
    return keras.ops.add(gradient, keras.ops.cast(number, gradient.dtype))


def digest_of(arrays: Sequence[Array]) -> int:
    """Return a number that differs when arrays differ, with very high probability."""
    digest = 0
    for array in arrays:
        digest = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, digest)
    return digest


def counter(optimizer: Any) -> Any:
    """Return the variable that counts batches; its name depends on the version of Keras."""
    found = optimizer.__dict__.get("_iterations")
    return optimizer.iterations if found is None else found


def name_of(variable: Any) -> str:
    """Return the last two parts of a variable's path, without the numbers that make layer names
    unique within a process.

    Ranks may have created different numbers of layers, and the paths of a loaded model begin
    differently.
    """
    return _label(getattr(variable, "path", None) or str(variable.name).partition(":")[0])


@functools.cache
def _label(path: str) -> str:
    return re.sub(r"_\d+(?=/|$)", "", "/".join(path.split("/")[-2:]))
