"""The reduction of variables' gradients, common to tapes and optimizers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from farandole.base.types import ReduceOp
from farandole.job import context
from farandole.strategies.flat_layout import numbered
from farandole.strategies.inner_optimizer import InnerOptimizer
from farandole.strategies.options import GradientOptions
from farandole.tensorflow.checks import VariablesReplica, settings_of
from farandole.tensorflow.differentiable import grouped_allreduce
from farandole.tensorflow.gradients import alone, names_of, reduce_gradients, reducer_for
from farandole.tensorflow.sparse import as_dense, is_slices


class VariableReducer:
    """Reduces the gradients of variables, for a tape or an optimizer."""

    def __init__(self, what: str, options: GradientOptions) -> None:
        """``what``: the tape or optimizer in the program, for names. Raises NotInitializedError
        before ``init()``.
        """
        context.size()
        self.what, self.options = what, options
        self.optimizer: Any = None  # the optimizer that steps with the gradients, if known
        # the facts about this optimizer, for a codec
        self.inner: InnerOptimizer | None = None
        self.differentiable = False

    def trains_alone(self) -> bool:
        """Return whether no other rank's gradients are to be reduced with this rank's."""
        return not self.options.process_set.included() or alone(self.options.process_set)

    def reduced(
        self, gradients: Sequence[Any], variables: Sequence[Any], local: Sequence[Any] = ()
    ) -> list[Any]:
        """Return ``gradients`` of ``variables``, reduced over all ranks.

        Gradients of variables in ``local`` are not summed over ranks, but divided by the number of
        ranks, because each rank's loss counts for its share.
        """
        # in every job, because a norm over rows may differ from a dense one
        if self.options.sparse_as_dense:
            gradients = as_dense(gradients)
        if self.trains_alone():
            return list(gradients)
        mine = {key_of(variable) for variable in local}
        common = [place for place, variable in enumerate(variables) if key_of(variable) not in mine]
        results = list(gradients)
        if mine and self.options.scale_local:
            for place in set(range(len(results))) - set(common):
                results[place] = divided(
                    results[place], context.engine(self.options.process_set).size
                )
        shared = [variables[place] for place in common]
        every = numbered(
            names_of(variables)
        )  # names do not change if other variables have no gradients
        names = [every[place] for place in common]
        replica = VariablesReplica(shared, names, self._settings)
        totals = self._reduced([gradients[place] for place in common], shared, names, replica)
        for place, total in zip(common, totals, strict=True):
            results[place] = total
        return results

    def _settings(self) -> Mapping[str, str]:
        return {} if self.optimizer is None else settings_of(self.optimizer)

    def _reduced(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        names: Sequence[str],
        replica: VariablesReplica,
    ) -> list[Any]:
        if self.options.op is ReduceOp.ADASUM:  # Adasum combines each tensor separately
            return grouped_allreduce(
                gradients,
                compression=self.options.compression,
                op=self.options.op,
                name=self.what,
                process_set=self.options.process_set,
            )
        reducer = reducer_for(self.what, self.options, self._model(variables))
        reducer.codec_context.describe(self.inner)
        return reduce_gradients(
            gradients, names, reducer, replica=replica, differentiable=self.differentiable
        )

    def _model(self, variables: Sequence[Any]) -> list[Any]:
        """Return the variables that identify a model, where models must be distinguished; else
        none.

        A codec keeps state for one model, and in graphs two reducers with one name that run at the
        same time are an error. (Plain tensors may differ in each step.)
        """
        if tf.executing_eagerly() and not self.options.codec:
            return []
        return [each for each in map(_tensor_of, variables) if isinstance(each, tf.Variable)]


def key_of(variable: Any) -> Any:
    """Return the identity of a variable. Keras 3 variables wrap TensorFlow's."""
    variable = _tensor_of(variable)
    return variable.ref() if hasattr(variable, "ref") else id(variable)


def _tensor_of(variable: Any) -> Any:
    inner = getattr(variable, "_value", None)
    return inner if isinstance(inner, tf.Variable) else variable


def divided(gradient: Any, size: int) -> Any:
    """Divide ``gradient``, dense or rows, by ``size``."""
    if gradient is None:
        return None
    if is_slices(gradient):
        return tf.IndexedSlices(gradient.values / size, gradient.indices, gradient.dense_shape)
    return gradient / size
