"""The exchange of one optimizer's gradients, on whatever backend Keras has."""

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
from farandole.job import context
from farandole.job.context import ProcessSet
from farandole.keras.checks import KerasReplica
from farandole.keras.exchange import KerasExchange
from farandole.keras.loss_scaling import marked
from farandole.strategies.codecs import codec, state_label
from farandole.strategies.flat_layout import numbered
from farandole.strategies.list_reducer import GradientListReducer
from farandole.strategies.options import GradientOptions

if TYPE_CHECKING:
    from farandole.base.types import Array

    Values = Callable[[], "list[Array] | None"]


def backend() -> Any:
    """The file of this folder that is named for Keras's backend."""
    return importlib.import_module(f"farandole.keras.{keras.backend.backend()}")


class KerasReducer:
    """Reduces the gradients of one optimizer."""

    def __init__(self, options: GradientOptions, shard: bool) -> None:
        self.process_set, self.shard = options.process_set, shard
        # what results are multiplied with: Keras divides what it accumulates by the number of
        # passes
        self.factor = 1.0 if options.average_passes else float(options.passes)
        self.variables: list[Any] = []  # those that the gradients at hand belong to
        self.local_variables: list[Any] = []
        self.local_layers: list[Any] = []
        self.reported: set[str] = set()  # codes of findings
        self.not_broadcast: list[Any] = []  # variables that were not broadcast, on purpose
        self.outside = False  # somebody else has exchanged them already
        self._options = options
        strategy = options.strategy
        self.exchange = (  # of weights; None: of gradients
            None
            if strategy is None
            else KerasExchange(
                options, strategy, keras.ops.convert_to_tensor, keras.ops.convert_to_numpy
            )
        )
        self._applying = False
        # does something wait for the gradients to come?
        self._keeps = bool(state_label(codec(options.codec)))
        # a codec is given the sum of all passes: the votes and thresholds of some are of sizes
        self._before = self.factor if codec(options.codec) else 1.0
        self._list: tuple[Any, GradientListReducer] | None = None

    def among(self, process_set: ProcessSet) -> KerasReducer:
        """One with the same options, for these ranks."""
        other = KerasReducer(self._options._replace(process_set=process_set), self.shard)
        other.local_variables, other.local_layers = self.local_variables, self.local_layers
        return other

    def shared(self) -> bool:
        """Is there another rank to exchange gradients with?"""
        if not context.takes_part() or context.size() == 1:
            return False
        return self.process_set.included() and self.process_set.size() > 1

    @contextmanager
    def applying(self) -> Iterator[None]:
        """Inside, Keras has gradients that it may or may not apply, if it accumulates them."""
        self._applying = True
        try:
            yield
        finally:
            self._applying = False

    def reduced(self, optimizer: Any, grads: Sequence[Any]) -> list[Any]:
        """The gradients of all ranks (those of local variables: this rank's), for
        ``self.variables``.
        """
        found: list[Any] = backend().uncompiled(self._of_all, optimizer, grads)
        return found

    def reduced_scaled(self, optimizer: Any, grads: Sequence[Any], scale: Any) -> list[Any]:
        """The same, where ``grads`` are ``scale`` times as large as gradients. That changes from
        step to step: what a codec keeps is of gradients without it.
        """
        if not self._keeps:
            return self.reduced(optimizer, grads)
        reduced = self.reduced(optimizer, [_divided(grad, scale) for grad in grads])
        return [
            keras.ops.cast(_divided(one, 1.0 / scale), grad.dtype)
            for one, grad in zip(reduced, grads, strict=True)
        ]

    def marked(self, optimizer: Any, grads: Sequence[Any]) -> list[Any]:
        """``grads`` of ``self.variables``; where one of a local variable is not finite, no shared
        one is.
        """
        if not self.shared():
            return list(grads)
        shared = self.shared_places(optimizer)
        return marked(grads, shared, sorted(set(range(len(grads))) - set(shared)), _zero_of, _plus)

    def _of_all(self, optimizer: Any, grads: Sequence[Any]) -> list[Any]:
        if self.outside:
            return list(grads)
        if self._options.sparse_as_dense:  # in every job, for a norm of rows may be another
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
        if self._before != 1.0:
            shared = [keras.ops.multiply(grad, self._before) for grad in shared]
        reduced = self._reduced(optimizer, shared, names, variables)
        for number, grad in zip(common, reduced, strict=True):
            results[number] = grad
        factor = self.factor / (self.process_set.size() if self._options.scale_local else 1)
        for number in set(range(len(results))) - set(common) if factor != 1.0 else ():
            results[number] = keras.ops.multiply(results[number], factor)
        return results

    def before_step(self, optimizer: Any) -> None:
        """The optimizer is about to change ``self.variables``."""
        if self.exchange is not None and self.shared():
            self.exchange.before_step(
                backend().run_if, self._all(optimizer), *self._step(optimizer)
            )

    def after_step(self, optimizer: Any) -> None:
        """It has changed them."""
        if self.exchange is not None and self.shared():
            variables = self._all(optimizer)
            names = self._names(optimizer, variables)
            changed = {optimizer._var_key(variable) for variable in self.variables}
            trained = [optimizer._var_key(variable) in changed for variable in variables]
            step, final = self._step(optimizer)
            self.exchange.after_step(backend().run_if, variables, names, step, final, trained)

    def end_of_epoch(self, optimizer: Any) -> None:
        """Exchange weights, if the strategy does so at the end of each epoch. Outside of any
        program.
        """
        if self.exchange is not None and self.shared() and self.variables:
            self.exchange.end_of_epoch(self._all(optimizer), self._last_step(optimizer))

    def average_weights(self, optimizer: Any, *, replaced: bool = False) -> None:
        """Give every rank the mean of all ranks' weights. ``replaced``: on some rank the program
        has put others there since the last step. Outside of any program.
        """
        # also before the first step: a rank may have had no batch, or a file
        variables = self._all(optimizer)
        if self.exchange is not None and self.shared() and variables:
            if replaced:
                self.exchange.average_replaced(variables)
            else:
                self.exchange.average(variables, self._last_step(optimizer))

    def _last_step(self, optimizer: Any) -> int:
        return int(keras.ops.convert_to_numpy(counter(optimizer))) // (
            optimizer.gradient_accumulation_steps or 1
        )

    def _step(self, optimizer: Any) -> tuple[Any, Any]:
        """The number of this step, and whether it is one: on JAX, Keras steps for every batch that
        it accumulates, and drops the most of them.
        """
        batches, passes = counter(optimizer) + 1, optimizer.gradient_accumulation_steps or 1
        return (batches, True) if passes == 1 else (batches // passes, batches % passes == 0)

    def _all(self, optimizer: Any) -> list[Any]:
        """The variables of the optimizer that all ranks share, also those that are frozen now."""
        local = self._local_keys(optimizer)
        return [
            variable
            for variable in optimizer._trainable_variables
            if optimizer._var_key(variable) not in local
        ]

    def _names(self, optimizer: Any, variables: Sequence[Any]) -> list[str]:
        """A name for each, which it keeps where others of the optimizer are frozen: layers may have
        one name.
        """
        known = optimizer._trainable_variables
        names = dict(
            zip(map(optimizer._var_key, known), numbered(map(name_of, known)), strict=True)
        )
        return [
            names.get(optimizer._var_key(variable)) or name_of(variable) for variable in variables
        ]

    def shared_places(self, optimizer: Any) -> list[int]:
        """The places in ``self.variables`` of those that all ranks share."""
        local = self._local_keys(optimizer)
        keys = [optimizer._var_key(variable) for variable in self.variables]
        return [number for number, key in enumerate(keys) if key not in local]

    def _local_keys(self, optimizer: Any) -> set[Any]:
        return {optimizer._var_key(variable) for variable in self.local()}

    def local(self) -> list[Any]:
        """The variables that are left to each rank: those of local layers that are not trained
        (frozen ones, statistics), too.
        """
        return [
            *self.local_variables,
            *(weight for layer in self.local_layers for weight in layer.weights),
        ]

    def compare(self, optimizer: Any, variables: list[Any]) -> None:
        """Compare what the ranks hold of ``variables`` now, between two steps. Collective."""
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
        """The reducer of this job; ranks agree on its name by having as many optimizers that
        step.
        """
        engine = context.engine(self.process_set)
        if self._list is None or self._list[0] is not engine:
            after = self._options.postscale * self.factor / self._before
            options = self._options._replace(postscale=after)
            name = exchange_name(KERAS_LISTS, engine.numbers.next_optimizer())
            self._list = engine, GradientListReducer(name, options)
        return self._list[1]


def _divided(gradient: Any, factor: Any) -> Any:
    """As float32, or as float64 if it is that. (Old Keras divides rows of embeddings, and
    multiplies none.)
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
    """A number that differs when arrays differ, nearly always."""
    digest = 0
    for array in arrays:
        digest = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, digest)
    return digest


def counter(optimizer: Any) -> Any:
    """The variable that counts batches. Old Keras has it under another name."""
    found = optimizer.__dict__.get("_iterations")
    return optimizer.iterations if found is None else found


def name_of(variable: Any) -> str:
    """The last two parts of a variable's path, without the numbers that tell apart layers of one
    process: a rank may have made more of them, and a model that was loaded begins its paths
    elsewhere.
    """
    return _label(getattr(variable, "path", None) or str(variable.name).partition(":")[0])


@functools.cache
def _label(path: str) -> str:
    return re.sub(r"_\d+(?=/|$)", "", "/".join(path.split("/")[-2:]))
