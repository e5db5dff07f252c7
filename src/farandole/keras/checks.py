"""Keras's facts about a replica: digests of weights, settings of the optimizer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import keras

from farandole.base.digests import digest, stride
from farandole.checks.replicas import Cures, numbers

CURES = Cures(
    "hvd.broadcast_global_variables(0, model) (model.fit does so by itself)",
    "DistributedOptimizer(optimizer, shard=True), or model.fit(*hvd.shard(x, y), ...), or "
    "dataset.shard(hvd.size(), hvd.rank())",
    reduced="hvd.DistributedGradientTape",
)


class KerasReplica:
    """See ``checks.agreement.Replica``. Loops of one's own may broadcast after the first step,
    when optimizers have made their variables: ``patient``.
    """

    def __init__(
        self,
        optimizer: Any,
        variables: Sequence[Any],
        names: Sequence[str],
        *,
        cures: Cures = CURES,
        between_steps: bool = False,
        told: Collection[str] = (),
        not_broadcast: Sequence[Any] = (),
    ) -> None:
        """``between_steps``: no program is running; else JAX has taken away what the variables
        hold. ``told``: what the user knows already. ``not_broadcast``: variables that began
        differently on purpose.
        """
        self.optimizer, self.variables, self._names = optimizer, variables, names
        self.cures, self._readable = cures, between_steps or keras.backend.backend() != "jax"
        self.patient = not between_steps
        self.told: Collection[str] = told
        self.not_broadcast = not_broadcast

    def names(self) -> Sequence[str]:
        return self._names

    def weights(self) -> list[int] | None:
        if not self._readable:
            return None
        own = {id(variable) for variable in self.not_broadcast}
        return [0 if id(variable) in own else _digest(variable) for variable in self.variables]

    def settings(self) -> Mapping[str, str]:
        try:
            return numbers(self.optimizer.get_config()) if self._readable else {}
        except Exception:  # of whoever wrote the optimizer: no reason to end the training
            return {}


def _digest(variable: Any) -> int:
    value = getattr(variable, "value", variable)
    value = value() if callable(value) else value  # TensorFlow's own variables
    flat = keras.ops.reshape(value, (-1,))
    flat = flat[:: stride(int(flat.shape[0]))]
    return digest(keras.ops.convert_to_numpy(flat))
