"""Checks of TensorFlow programs: digests of variables, settings of optimizers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import tensorflow as tf

from farandole.base.digests import digest, stride
from farandole.checks.agreement import Replica
from farandole.checks.replicas import Cures, numbers

CURES = Cures(
    "hvd.broadcast_variables(model.variables, root_rank=0)",
    "dataset.shard(hvd.size(), hvd.rank()), before shuffling",
    state="hvd.broadcast_variables(optimizer.variables, root_rank=0)",
    reduced="hvd.DistributedGradientTape",
)
_OLD = ("learning_rate", "lr", "momentum", "beta1", "beta2", "epsilon", "decay", "rho")


class TensorFlowReplica(Replica, Protocol):
    """A replica that holds variables of TensorFlow, or of Keras on TensorFlow."""

    variables: Sequence[Any]


class VariablesReplica:
    """A ``checks.agreement.Replica`` of TensorFlow variables.

    ``patient``: variables are often created, and broadcast, in the first step.
    """

    cures = CURES
    patient = True
    reported: Collection[str] = ()

    def __init__(
        self,
        variables: Sequence[Any],
        names: Sequence[str],
        settings: Callable[[], Mapping[str, str]],
    ) -> None:
        self.variables: Sequence[Any] = list(variables)
        self._names = [name.partition(":")[0] for name in names]
        self._settings = settings
        # evaluated here, because readable() is always true in TensorFlow's threads, which call
        # weights()
        self._readable = readable()

    def names(self) -> Sequence[str]:
        return self._names

    def weights(self) -> list[int] | None:
        """Return digests of the weights; None in a TensorFlow 1 graph, whose variables only a
        session can read.
        """
        return digests_of(self.variables) if self._readable else None

    def settings(self) -> Mapping[str, str]:
        return self._settings()


def readable() -> bool:
    """Return whether variables can be read without a session."""
    return bool(tf.compat.v1.executing_eagerly_outside_functions())


def digests_of(variables: Sequence[Any]) -> list[int]:
    """Return a digest per variable; 0 for one that is not trained."""
    return [_digest(variable) for variable in variables]


def _digest(variable: Any) -> int:
    inner = getattr(variable, "_value", None)  # Keras 3 variables wrap TensorFlow's
    variable = inner if isinstance(inner, tf.Variable) else variable
    if not isinstance(variable, tf.Variable) or not variable.trainable:
        return 0
    return digest(tf.reshape(variable, [-1])[:: stride(variable.shape.num_elements())].numpy())


def settings_of(optimizer: Any) -> Mapping[str, str]:
    """Return an optimizer's hyperparameters; empty if it has no configuration."""
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return numbers({name: vars(optimizer).get(f"_{name}") for name in _OLD})
    try:
        return numbers(optimizer.get_config())
    except Exception:  # errors of third-party optimizers must not end the training
        return {}
