"""Checks of Keras programs: digests of weights, settings of optimizers, and findings of ``fit`` and
its data.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import keras

from farandole.base.digests import digest, stride
from farandole.checks.catalogue import (
    LOCAL_BATCH_NORM,
    UNEVEN_SHUFFLE,
    UNEVEN_STEPS,
    XLA_SKIPPED,
)
from farandole.checks.finding import Finding
from farandole.checks.replicas import Cures, numbers

CURES = Cures(
    "hvd.broadcast_global_variables(0, model) (model.fit does this itself)",
    "DistributedOptimizer(optimizer, shard=True), or model.fit(*hvd.shard(x, y), ...), or "
    "dataset.shard(hvd.size(), hvd.rank())",
    reduced="hvd.DistributedGradientTape",
)


class KerasReplica:
    """A ``checks.agreement.Replica`` of a Keras optimizer.

    ``patient``: custom training loops may broadcast after the first step, when optimizers have
    created their variables.
    """

    def __init__(
        self,
        optimizer: Any,
        variables: Sequence[Any],
        names: Sequence[str],
        *,
        cures: Cures = CURES,
        between_steps: bool = False,
        reported: Collection[str] = (),
        not_broadcast: Sequence[Any] = (),
    ) -> None:
        """``between_steps``: no compiled program is running. (During one, JAX has taken the values
        out of the variables.) ``reported``: codes of findings that the user has already seen.
        ``not_broadcast``: variables that differ between ranks intentionally.
        """
        self.optimizer = optimizer
        self.variables = variables
        self._names = names
        self.cures = cures
        self._readable = between_steps or keras.backend.backend() != "jax"
        self.patient = not between_steps
        self.reported: Collection[str] = reported
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
        except Exception:  # an error in a third-party optimizer must not end the training
            return {}


def _digest(variable: Any) -> int:
    value = getattr(variable, "value", variable)
    value = value() if callable(value) else value  # TensorFlow's own variables
    flat = keras.ops.reshape(value, (-1,))
    flat = flat[:: stride(int(flat.shape[0]))]
    return digest(keras.ops.convert_to_numpy(flat))


def uneven_steps(steps: Sequence[int]) -> Finding:
    return UNEVEN_STEPS.finding(
        f"the ranks ran different numbers of steps in an epoch ({', '.join(map(str, steps))}):"
        " ranks with fewer steps waited, contributed zeros to averages, and continue with the"
        " weights of the ranks with more. Give all ranks the same amount of data, unless a"
        " callback stopped training on one of them"
    )


def xla_skipped() -> Finding:
    return XLA_SKIPPED.finding(
        "jit_compile=True has no effect on the training step, which exchanges gradients with"
        " other ranks; XLA compiles only evaluate() and predict()"
    )


def uneven_shuffle() -> Finding:
    return UNEVEN_SHUFFLE.finding(
        "the dataset is shuffled in a different order on each rank before it is divided, so in"
        " each epoch some rows are read twice and others never. Give shuffle() (list_files,"
        " image_dataset_from_directory ...) the same seed on all ranks, or shuffle the result of"
        " hvd.shard(dataset)"
    )


def local_batch_norm(layer: str) -> Finding:
    """Return the finding for a BatchNormalization with ``synchronized=True``.

    ``layer``: the layer's kind and name.
    """
    return LOCAL_BATCH_NORM.finding(
        f"{layer} has synchronized=True, which works only with tf.distribute; here each rank"
        " normalizes by its own batch. Use farandole.tensorflow.SyncBatchNormalization, which"
        " normalizes by the batches of all ranks"
    )
