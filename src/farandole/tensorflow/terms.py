"""How gradients are reduced: what tapes and optimizers are told, and what they all do with it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from farandole import context
from farandole.context import ProcessSet
from farandole.frontend.compression import CastCompressor, NoneCompressor
from farandole.frontend.ops import WORLD
from farandole.frontend.predivide import predivided
from farandole.tensorflow.differentiable import grouped_allreduce
from farandole.tensorflow.gradients import alone, exchange_for, names_of, reduce_gradients
from farandole.tensorflow.replica import VariablesReplica, settings_of
from farandole.tensorflow.sparse import is_slices
from farandole.types import ReduceOp


class Terms:
    """The arguments that tapes and optimizers have in common, checked."""

    def __init__(
        self, what: str, op: int = ReduceOp.AVERAGE, gradient_predivide_factor: float = 1.0,
        compression: Any = NoneCompressor, sparse_as_dense: bool = False, process_set: ProcessSet = WORLD,
        scale_local_gradients: bool = True, num_groups: int = 0, groups: Any = None,
    ) -> None:  # fmt: skip
        """``what``: the place in the program that asks, for names.

        Raises ValueError for what makes no sense together, NotInitializedError before ``init()``.
        """
        context.size()
        self._factors = predivided(op, gradient_predivide_factor)
        _check_groups(num_groups, groups)
        self.what, self.op, self.process_set = what, ReduceOp(op), process_set
        self.compression, self.sparse_as_dense = compression, sparse_as_dense
        self.scale_local = scale_local_gradients
        self.optimizer: Any = None  # that steps with them, if it is known
        self.differentiable = False
        is_cast = isinstance(compression, type) and issubclass(compression, CastCompressor)
        self._wire = compression.dtype if is_cast else None

    def apart(self) -> bool:
        """Is there nobody whose gradients this rank's should meet? Then they stay as they are."""
        return not self.process_set.included() or alone(self.process_set)

    def reduced(self, gradients: Sequence[Any], variables: Sequence[Any], local: Sequence[Any] = ()) -> list[Any]:
        """``gradients`` of ``variables``, over all ranks; of those in ``local``, this rank's, divided by the number of
        ranks (they are added up nowhere, and the loss counts for one rank's part)."""
        if self.apart():
            return list(gradients)
        mine = {key_of(variable) for variable in local}
        common = [place for place, variable in enumerate(variables) if key_of(variable) not in mine]
        results = list(gradients)
        if mine and self.scale_local:
            for place in set(range(len(results))) - set(common):
                results[place] = _divided(results[place], context.engine(self.process_set).size)
        names = names_of([variables[place] for place in common])
        replica = VariablesReplica([variables[place] for place in common], names, self._settings)
        totals = self._reduced([gradients[place] for place in common], names, replica)
        for place, total in zip(common, totals, strict=True):
            results[place] = total
        return results

    def _settings(self) -> Mapping[str, str]:
        return {} if self.optimizer is None else settings_of(self.optimizer)

    def _reduced(self, gradients: Sequence[Any], names: Sequence[str], replica: VariablesReplica) -> list[Any]:
        if self.op is ReduceOp.ADASUM:  # of each tensor for itself, so not of all as one
            if self.sparse_as_dense:
                gradients = [
                    tf.convert_to_tensor(gradient) if is_slices(gradient) else gradient for gradient in gradients
                ]
            return grouped_allreduce(
                gradients, compression=self.compression, op=self.op, process_set=self.process_set, name=self.what
            )
        exchange = exchange_for(self.what, self.op, *self._factors, self.process_set, self._wire)
        compression = NoneCompressor if self._wire is not None else self.compression
        return reduce_gradients(
            gradients, names, exchange, sparse_as_dense=self.sparse_as_dense, compression=compression, replica=replica,
            differentiable=self.differentiable,
        )  # fmt: skip


def key_of(variable: Any) -> Any:
    """The identity of a variable: those of Keras 3 wrap TensorFlow's."""
    inner = getattr(variable, "_value", None)
    variable = inner if isinstance(inner, tf.Variable) else variable
    return variable.ref() if hasattr(variable, "ref") else id(variable)


def _divided(gradient: Any, size: int) -> Any:
    if gradient is None:
        return None
    if is_slices(gradient):
        return tf.IndexedSlices(gradient.values / size, gradient.indices, gradient.dense_shape)
    return gradient / size


def _check_groups(num_groups: int, groups: Any) -> None:
    if num_groups:
        warnings.warn("Parameter `num_groups` has been replaced by `groups`.", DeprecationWarning, stacklevel=4)
    counted = isinstance(groups, int) and not isinstance(groups, bool) and groups >= 0
    listed = isinstance(groups, (list, tuple)) and all(isinstance(group, (list, tuple)) for group in groups)
    if groups is not None and not counted and not listed:
        raise ValueError("groups should be a non-negative integer or a list of list of tf.Variable.")
